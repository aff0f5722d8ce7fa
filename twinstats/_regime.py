"""Which law a run's own twins follow: linear or quadratic in the effect. Part of `complexity`."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from twinstats._numbers import Number, Numbers, float_array
from twinstats._outcomes import FEW_CLUSTERS, label_codes
from twinstats.noise import generator
from twinstats.results import Result, show, show_interval

_NUM_DRAWS = 4_000
_MOST_BLOCKS = 2_000
_CHUNK = 200
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime(Result):
    """Which law the pairs of a run follow.

    Attributes:
        law: "linear" (pairs of order 1/effect), "quadratic" (1/effect^2) or "undecided".
        ratio: discordance / effect; null when undefined.
        interval: Interval of the ratio; its upper end is infinite (null in JSON) where an effect
            of 0 is not excluded. Null when undefined.
        effect: Root mean square over forks of the fork's own mean difference, luck averaged out.
        discordance: Mean over forks of P(the two outcomes differ).
        num_pairs: Pairs that were used.
        num_forks: Forks with two or more draws of luck.
        num_clusters: Independent clusters of those forks.
        reason: Why the law is undecided; null otherwise.
        warnings: What to distrust, and why something is null.
    """

    law: str
    ratio: float | None
    interval: tuple[float, float] | None
    effect: float | None
    discordance: float | None
    num_pairs: int
    num_forks: int
    num_clusters: int
    reason: str | None
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"{self.law}{why}: discordance / effect {show(self.ratio)} "
            f"{show_interval(self.interval)}, {self.num_forks} forks"
        )


def regime(
    factual: Numbers,
    twin: Numbers,
    *,
    fork: Sequence[Hashable] | np.ndarray | None = None,
    luck: Sequence[Hashable] | np.ndarray | None = None,
    cluster: Sequence[Hashable] | np.ndarray | None = None,
    confidence: Number = 0.95,
    linear_below: Number = 3.0,
    quadratic_above: Number = 10.0,
) -> Regime:
    """The ratio of discordance to effect over forks, and the law that it implies.

    Pairs needed are about k (discordance - effect^2) / effect^2 per fork: of order 1/effect while
    the ratio stays small, of order discordance/effect^2 once it is large. On-policy twins average
    to zero (E[A] = 0), so the pooled mean difference says nothing; effect^2 is the mean over forks
    of D_1 D_2, the product of differences under two independent draws of luck (all pairs of draws
    of a fork averaged): unbiased for the mean squared effect of a fork.

    The interval is a bootstrap with Dirichlet weights over clusters, the same draws every time.

    Assumption: outcomes differ by at most 1; draws of luck with different ids are independent;
    clusters are independent (a draw of luck or a task shared by several forks makes them one).
    Degenerate: without forks replicated over luck, without a discordant pair, with one cluster, or
    with differences above 1 the law is "undecided" with the reason.

    >>> forks, luck = [index // 2 for index in range(60)], [0, 1] * 30
    >>> outcome = regime([1] * 60, [0] * 60, fork=forks, luck=luck)
    >>> outcome.law, outcome.ratio
    ('linear', 1.0)

    Args:
        factual: Outcome of the factual decision, one entry a pair.
        twin: Outcome of its twin under the same luck; pairs with a null outcome are dropped.
        fork: Which (history, decision, alternative) each pair belongs to.
        luck: Which draw of luck; each (fork, luck) once.
        cluster: Independent unit of each fork, such as its task; the fork by default.
        confidence: Coverage of the interval.
        linear_below: "linear" if the whole interval lies below.
        quadratic_above: "quadratic" if the whole interval lies above.

    Returns:
        Law, ratio and interval, with what they rest on.

    Raises:
        ValueError: Lengths differ, a label is null, a (fork, luck) occurs twice, a fork is in two
            clusters, or a threshold or `confidence` is out of range.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"`confidence` must lie in (0, 1), got {confidence}.")
    if not 0.0 < linear_below <= quadratic_above:
        raise ValueError(
            f"`linear_below` must be positive and at most `quadratic_above`, got {linear_below} "
            f"and {quadratic_above}."
        )
    difference = _difference(factual, twin)
    if fork is None or luck is None:
        return _undecided("needs `fork` and `luck`: each fork played under several draws of luck")
    forks = _forks(difference, fork, luck, cluster)
    if reason := _obstacle(forks):
        return _undecided(reason, forks)
    return _decide(forks, float(confidence), float(linear_below), float(quadratic_above))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forks:
    """Replicated forks: mean product of two draws, share of differing outcomes, cluster."""

    product: np.ndarray
    discordance: np.ndarray
    cluster: np.ndarray
    largest: float
    num_pairs: int
    warnings: tuple[str, ...]

    @property
    def num_clusters(self) -> int:
        return len(np.unique(self.cluster))


def column(name: str, values: Numbers) -> np.ndarray:
    """`values` as a float column; null becomes NaN."""
    array = float_array(name, values)
    if array.ndim != 1:
        raise ValueError(f"`{name}` must be a list of numbers, got shape {array.shape}.")
    return array


def same_length(name: str, values: np.ndarray, length: int) -> np.ndarray:
    """`values`, which must have `length` entries."""
    if len(values) != length:
        raise ValueError(f"`{name}` must have one entry a row ({length}), got {len(values)}.")
    return values


def _difference(factual: Numbers, twin: Numbers) -> np.ndarray:
    first, second = column("factual", factual), column("twin", twin)
    same_length("twin", second, len(first))
    for name, values in (("factual", first), ("twin", second)):
        if np.any(np.isinf(values)):
            raise ValueError(f"`{name}` must be finite or null, got inf.")
    if np.isinf(first).any() or np.isinf(second).any():
        raise ValueError("`factual` and `twin` must be finite or null.")
    return np.asarray(first - second)


def _forks(
    difference: np.ndarray,
    fork: Sequence[Hashable] | np.ndarray,
    luck: Sequence[Hashable] | np.ndarray,
    cluster: Sequence[Hashable] | np.ndarray | None,
) -> _Forks:
    fork_id, luck_id = (
        label_codes(n, ids, len(difference)) for n, ids in (("fork", fork), ("luck", luck))
    )
    cluster_id = fork_id if cluster is None else label_codes("cluster", cluster, len(difference))
    if len(np.unique(np.stack([fork_id, luck_id]), axis=1).T) < len(difference):
        raise ValueError("`luck` must differ within a fork: the same (fork, luck) occurs twice.")
    if len(np.unique(np.stack([fork_id, cluster_id]), axis=1).T) > len(np.unique(fork_id)):
        raise ValueError("`cluster` must be the same for all pairs of a fork.")
    known = ~np.isnan(difference)
    d, fork_id, cluster_id = difference[known], fork_id[known], cluster_id[known]
    num_draws = np.bincount(fork_id)
    used = num_draws >= 2
    draws = num_draws[used]
    total = np.bincount(fork_id, d)[used]
    squares = np.bincount(fork_id, d**2)[used]
    clusters = np.zeros(len(num_draws), np.int64)
    clusters[fork_id] = cluster_id
    warnings = [
        f"{count} {what}."
        for count, what in (
            (np.count_nonzero(~known), "pairs with a null outcome were dropped"),
            (np.count_nonzero(num_draws == 1), "forks with a single draw of luck were left out"),
        )
        if count
    ]
    return _Forks(
        product=(total**2 - squares) / (draws * (draws - 1)),
        discordance=np.bincount(fork_id, np.abs(d) > _ROUNDING)[used] / draws,
        cluster=clusters[used],
        largest=float(np.abs(d).max(initial=0.0)),
        num_pairs=int(draws.sum()),
        warnings=tuple(warnings),
    )


def _obstacle(forks: _Forks) -> str | None:
    if not len(forks.product):
        return "no fork was played under two draws of luck"
    if forks.largest > 1 + _ROUNDING:
        return f"outcomes differ by up to {forks.largest:g}: scale them into [0, 1]"
    if not forks.discordance.any():
        return "no twin's outcome differed"
    if forks.num_clusters < 2:
        return "one cluster gives no interval"
    return None


def _undecided(reason: str, forks: _Forks | None = None) -> Regime:
    has_forks = forks is not None and len(forks.product) > 0
    return Regime(
        law="undecided",
        ratio=None,
        interval=None,
        effect=None,
        discordance=float(forks.discordance.mean()) if forks is not None and has_forks else None,
        num_pairs=forks.num_pairs if forks is not None else 0,
        num_forks=len(forks.product) if forks is not None else 0,
        num_clusters=forks.num_clusters if forks is not None else 0,
        reason=reason,
        warnings=(f"Ratio and interval are null: {reason}.", *(forks.warnings if forks else ())),
    )


def _decide(
    forks: _Forks, confidence: float, linear_below: float, quadratic_above: float
) -> Regime:
    low, high = _ratio_interval(forks, confidence)
    discordance, square = float(forks.discordance.mean()), float(forks.product.mean())
    effect = float(np.sqrt(square)) if square > 0 else None
    law, reason = "undecided", None
    if high < linear_below:
        law = "linear"
    elif low > quadratic_above:
        law = "quadratic"
    else:
        reason = f"the interval [{low:.3g}, {high:.3g}] leaves more than one law"
    warnings = list(forks.warnings)
    if effect is None:
        warnings.append("The mean product of two draws is not positive: effect and ratio are null.")
    if not np.isfinite(high):
        warnings.append("An effect of 0 is not excluded: the ratio has no upper end.")
    if forks.num_clusters < FEW_CLUSTERS:
        warnings.append(f"Only {forks.num_clusters} clusters: the interval is too short.")
    return Regime(
        law=law,
        ratio=discordance / effect if effect is not None else None,
        interval=(low, high),
        effect=effect,
        discordance=discordance,
        num_pairs=forks.num_pairs,
        num_forks=len(forks.product),
        num_clusters=forks.num_clusters,
        reason=reason,
        warnings=tuple(warnings),
    )


def _ratio_interval(forks: _Forks, confidence: float) -> tuple[float, float]:
    """Quantiles of the ratio over Dirichlet weights; many clusters are first joined into blocks."""
    block = np.unique(forks.cluster, return_inverse=True)[1] % _MOST_BLOCKS
    columns = (forks.product, forks.discordance, np.ones(len(block)))
    sums = np.stack([np.bincount(block, column) for column in columns], axis=1)
    rng = generator(0, "bootstrap")
    ratios = []
    for _ in range(_NUM_DRAWS // _CHUNK):
        square, differing, count = (rng.standard_exponential((_CHUNK, len(sums))) @ sums).T
        effect = np.sqrt(np.maximum(square / count, 0.0))
        with np.errstate(divide="ignore"):
            ratios.append(differing / count / effect)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.quantile(np.concatenate(ratios), tails, method="inverted_cdf")
    return float(low), float(high)
