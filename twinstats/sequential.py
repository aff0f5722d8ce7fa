"""Anytime-valid test and interval for the mean of paired differences: look whenever you like.

A gambler bets on the sign of each difference; at the true mean nobody can expect to win, so great
wealth is evidence. Leaves out asymptotic sequences and empirical-Bernstein bounds, which are
wider here.
"""

import math
from functools import lru_cache

import numpy as np
from scipy.special import betaln, expit, roots_legendre

from twinstats._numbers import Number, Numbers, first_where, float_array

_NODES = 1024
_CHUNK = 512
_LOWEST_LOGIT = -700.0
_ROUNDING = 1e-12


def log_wealth(wins: Numbers, losses: Numbers) -> np.ndarray:
    """Log wealth against "no effect" after `wins` positive and `losses` negative unit differences.

    W(b, c) = mean over l ~ U(-1, 1) of (1 + l)**b (1 - l)**c = 2**(b + c) B(b + 1, c + 1).
    Ties change nothing. A martingale under the null: W(b, c) = (W(b + 1, c) + W(b, c + 1)) / 2.

    >>> round(float(log_wealth(12, 3)), 7)
    1.5043216

    Args:
        wins: Number of pairs with difference 1, any shape.
        losses: Number of pairs with difference -1, broadcast against `wins`.

    Returns:
        Natural logarithm of the wealth that began as 1.

    Raises:
        ValueError: A negative or undefined count.
    """
    b, c = float_array("wins", wins), float_array("losses", losses)
    for name, count in (("wins", b), ("losses", c)):
        if np.any(wrong := ~((count >= 0) & np.isfinite(count))):
            raise ValueError(
                f"`{name}` must hold counts of at least 0, got {first_where(count, wrong)}."
            )
    return np.asarray((b + c) * math.log(2.0) + betaln(b + 1.0, c + 1.0))


class PairedSequence:
    """A test of "mean difference 0" and an interval for the mean, valid at every look.

    At the null value m the wealth is W_m = mean over l ~ U(-1/(1 - m), 1/(1 + m)) of
    prod(1 + l (D_i - m)); the interval is {m : W_m < 1/alpha}, intersected over all looks so far.
    The set is an interval because W_m is log-convex in m: with s = (1 + l (1 - m)) (1 + m) / 2,
    which is uniform on (0, 1), each factor is (1 + D) s / (1 + m) + (1 - D) (1 - s) / (1 - m).

    Differences in {-1, 0, 1} have the closed form of `log_wealth`. All else is a Gauss-Legendre
    sum over 1,024 values of s: exact up to 2,047 differences, to about 1e-8 up to 100,000; beyond
    that it is the wealth of a mixture over those values, so validity never rests on the accuracy.

    Assumption: given the past, every difference has the same conditional mean (for the test: 0).
    So feed one mean difference a cluster, unweighted, and choose pairs by their past only. Both
    errors together, over all looks, have probability at most alpha. After stopping early the
    plain average is biased; this interval is not.

    Degenerate: without data the wealth is 1 and the interval [-1, 1]. When the mean moves, the
    intersection may become empty: the interval is then one point, and `warnings` says so.

    >>> sequence = PairedSequence()
    >>> sequence.update([1, 1, 0, 1, 1, 1, 1, 1])
    >>> sequence.rejected
    False
    >>> sequence.update(1)
    >>> sequence.rejected, sequence.num_pairs
    (True, 9)
    >>> low, high = sequence.confidence_interval()
    >>> 0 < low < high < 1
    True

    Args:
        alpha: Probability of ever being wrong, in (0, 1).

    Raises:
        ValueError: `alpha` outside (0, 1).

    Source: Waudby-Smith and Ramdas, arXiv 2010.09686 (betting); the mixture over all bets is
        the universal portfolio.
    """

    __slots__ = ("_edges", "_history", "_peak", "_product", "_tally", "_wealth", "alpha")

    def __init__(self, alpha: Number = 0.05) -> None:
        if not 0.0 < alpha < 1.0:
            raise ValueError(f"`alpha` must lie in (0, 1), got {alpha}.")
        self.alpha = float(alpha)
        self._history: list[float] = []
        self._tally = (0, 0)
        self._product: np.ndarray | None = None
        self._wealth = 0.0
        self._peak = 0.0
        threshold = -math.log(self.alpha)
        self._edges = (_Edge(1.0, threshold), _Edge(-1.0, threshold))

    def update(self, difference: Numbers) -> None:
        """Takes the next difference, or several in their order.

        Args:
            difference: Factual minus twin outcome, in [-1, 1]; one entry a cluster.

        Raises:
            ValueError: A difference outside [-1, 1] or undefined; nothing is taken then.
        """
        if isinstance(difference, (int, float)) and difference in (-1, 0, 1):
            if self._product is None:
                return self._step(int(difference))
        values = _differences(difference)
        if not len(values):
            return
        path = self._advance(values)
        self._history.extend(values.tolist())
        self._wealth = float(path[-1])
        self._peak = max(self._peak, float(path.max()))

    @property
    def num_pairs(self) -> int:
        """How many differences have been taken."""
        return len(self._history)

    @property
    def log_wealth(self) -> float:
        """Natural logarithm of the present wealth against mean 0."""
        return self._wealth

    @property
    def rejected(self) -> bool:
        """Whether the wealth ever reached 1/alpha: once rejected, always rejected."""
        return self._peak >= -math.log(self.alpha)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the interval has to know."""
        low, high = self._interval()
        if low <= high:
            return ()
        return ("The intersection of all intervals is empty: the mean moved. One point is shown.",)

    def confidence_interval(self) -> tuple[float, float]:
        """The interval for the mean difference, valid at all looks together.

        Bounds of [-1, 1] mean "nothing excluded on this side yet".
        """
        low, high = self._interval()
        if low > high:
            low = high = (low + high) / 2
        return low, high

    def __repr__(self) -> str:
        low, high = self.confidence_interval()
        return (
            f"PairedSequence(alpha={self.alpha:g}): {self.num_pairs} pairs, "
            f"log wealth {self.log_wealth:.4g}, rejected {self.rejected}, [{low:.4g}, {high:.4g}]"
        )

    def _interval(self) -> tuple[float, float]:
        history = np.array(self._history)
        lower, upper = (edge.advance(history) for edge in self._edges)
        return lower, -upper

    def _step(self, difference: int) -> None:
        """One unit difference or tie by the ratio of neighbours: W(b + 1, c) / W(b, c)."""
        wins, losses = self._tally
        if difference:
            same = wins if difference > 0 else losses
            self._wealth += math.log(2.0 * (same + 1) / (wins + losses + 2))
            self._tally = (wins + (difference > 0), losses + (difference < 0))
            self._peak = max(self._peak, self._wealth)
        self._history.append(float(difference))

    def _advance(self, values: np.ndarray) -> np.ndarray:
        """Log wealth at mean 0 after each of `values`."""
        wins, losses = self._tally
        if self._product is None:
            if np.all((values == 0) | (np.abs(values) == 1)):
                won, lost = wins + np.cumsum(values == 1), losses + np.cumsum(values == -1)
                self._tally = int(won[-1]), int(lost[-1])
                return log_wealth(won, lost)
            share, _ = _grid()
            self._product = wins * np.log(2 * share) + losses * np.log(2 * (1 - share))
        path, self._product = _wealth_path(self._product, values, 0.0)
        return path


class _Edge:
    """The lower end of the running interval of sign * D, as the logit of (1 + m) / 2.

    Works lazily: differences that came since the last call are all looked at, one prefix after
    another, when the interval is asked for.
    """

    __slots__ = ("_logit", "_num_seen", "_product", "_sign", "_threshold")

    def __init__(self, sign: float, threshold: float) -> None:
        self._sign = sign
        self._threshold = threshold
        self._logit = -math.inf
        self._num_seen = 0
        self._product = np.zeros(0)

    def advance(self, history: np.ndarray) -> float:
        """The null value m at the edge once all of `history` has been looked at."""
        if self._num_seen < len(history):
            values = self._sign * history
            self._raise(values)
            self._num_seen = len(history)
        return math.tanh(self._logit / 2)

    def _raise(self, values: np.ndarray) -> None:
        """Moves the edge to the largest lower end of any prefix that ends in the new values.

        A prefix with mean d has its lower end above m < d if and only if W_m reaches 1/alpha,
        since W_d <= 1 (Jensen) and W is log-convex. So: solve one offending prefix, keep those
        that still offend at its end, repeat.
        """
        ends = np.arange(self._num_seen, len(values))
        mean = np.cumsum(values)[ends] / (ends + 1)
        path, product = self._new_path(values, self._product)
        offending = (path >= self._threshold) & (mean > math.tanh(self._logit / 2))
        while offending.any():
            candidates = np.flatnonzero(offending)
            worst = int(candidates[-1 - np.argmax(path[candidates][::-1])])
            logit = self._solve(values[: ends[worst] + 1], float(mean[worst]))
            offending[worst] = False
            if logit > self._logit:
                self._logit = logit
                start = _log_product(values[: self._num_seen], logit)
                path, product = self._new_path(values, start)
            offending &= (path >= self._threshold) & (mean > math.tanh(self._logit / 2))
        self._product = product

    def _new_path(self, values: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        new = values[self._num_seen :]
        if self._logit == -math.inf:  # wealth is infinite unless all differences are -1
            return np.full(len(new), math.inf), start
        return _wealth_path(start, new, self._logit)

    def _solve(self, values: np.ndarray, mean: float) -> float:
        """Logit of the null value below `mean` at which the wealth of `values` is 1/alpha."""
        from scipy.optimize import brentq  # 0.1 s, only needed here

        unique, counts = np.unique(values, return_counts=True)

        def excess(logit: float) -> float:
            product = counts @ _log_factors(unique, logit)
            return float(_log_mean(product[None])[0]) - self._threshold

        low = max(self._logit, _LOWEST_LOGIT)
        high = min(max(math.log1p(mean) - _log(1.0 - mean), low), -_LOWEST_LOGIT)
        if excess(low) < 0 or excess(high) >= 0:
            return low
        return float(brentq(excess, low, high, xtol=1e-13, rtol=1e-14))


def _differences(difference: Numbers) -> np.ndarray:
    values = float_array("difference", difference)
    if values.ndim > 1:
        raise ValueError(
            f"`difference` must be one number or a list of them, got shape {values.shape}."
        )
    values = values.reshape(-1)
    if not np.all(np.abs(values) <= 1.0 + _ROUNDING):
        wrong = values[~(np.abs(values) <= 1.0 + _ROUNDING)][0]
        raise ValueError(f"`difference` must lie in [-1, 1], got {wrong}.")
    return np.asarray(np.clip(values, -1.0, 1.0))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


@lru_cache(maxsize=1)
def _grid() -> tuple[np.ndarray, np.ndarray]:
    """Nodes on (0, 1) and the logarithms of their weights, which add up to 1."""
    nodes, weights = roots_legendre(_NODES)
    return (1.0 + nodes) / 2.0, np.log(weights / weights.sum())


def _log_factors(values: np.ndarray, logit: float) -> np.ndarray:
    """Log of 1 + l (D - m) for each value (rows) and node (columns); logit is that of (1 + m)/2."""
    share, _ = _grid()
    up, down = (1.0 + values[:, None]) / 2.0, (1.0 - values[:, None]) / 2.0
    factors = up * (share / expit(logit)) + down * ((1.0 - share) / expit(-logit))
    return np.asarray(np.log(factors))


def _log_product(values: np.ndarray, logit: float) -> np.ndarray:
    if not len(values):
        return np.zeros(_NODES)
    unique, counts = np.unique(values, return_counts=True)
    return np.asarray(counts @ _log_factors(unique, logit))


def _log_mean(products: np.ndarray) -> np.ndarray:
    """Log of the weighted mean over nodes of exp(products), row by row."""
    terms = products + _grid()[1]
    peak = terms.max(axis=1)
    return np.asarray(peak + np.log(np.exp(terms - peak[:, None]).sum(axis=1)))


def _wealth_path(
    start: np.ndarray, values: np.ndarray, logit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Log wealth after each value, and the log product per node after the last."""
    unique, which = np.unique(values, return_inverse=True)
    path = np.empty(len(values))
    for begin in range(0, len(values), _CHUNK):
        part = which[begin : begin + _CHUNK]
        rows = _log_factors(unique[np.unique(part)], logit)[np.unique(part, return_inverse=True)[1]]
        products = start + np.cumsum(rows, axis=0)
        path[begin : begin + _CHUNK] = _log_mean(products)
        start = products[-1]
    return path, start
