"""Which law the number of pairs follows: a fitted exponent, and the regime of a run's own twins.

Theta(1/effect) holds if and only if discordance shrinks with the effect; otherwise it is
Theta(1/effect^2). Leaves out sample sizes: `power`.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc, ndtri, stdtrit

from twinstats._numbers import Numbers, first_where
from twinstats._regime import Regime, column, regime, same_length
from twinstats.results import Result, show, show_interval

__all__ = ["ExponentFit", "Regime", "fit_exponent", "regime"]

_CONFIDENCE = 0.95
_LACK_OF_FIT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentFit(Result):
    """A straight line through log pairs against log effect.

    Attributes:
        slope: The exponent; null when undefined.
        interval: 95% interval of the slope; null when undefined.
        local_slopes: Slopes between neighbouring effects, from the largest effect down.
        chi2: Goodness of fit against the standard errors given; null without them.
        chi2_pvalue: Its p-value, points - 2 degrees of freedom.
        num_points: Rows that were used.
        num_excluded: Rows left out because effect or pairs had no logarithm.
        warnings: Why something is null, and what to distrust.
    """

    slope: float | None
    interval: tuple[float, float] | None
    local_slopes: tuple[float, ...]
    chi2: float | None
    chi2_pvalue: float | None
    num_points: int
    num_excluded: int
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"exponent {show(self.slope)} {show_interval(self.interval)} from {self.num_points} "
            f"points ({self.num_excluded} excluded), fit p = {show(self.chi2_pvalue)}"
        )


def fit_exponent(
    effect: Numbers,
    pairs: Numbers,
    *,
    stderr: Numbers | None = None,
    censored: Numbers | None = None,
    offset: Numbers | None = None,
) -> ExponentFit:
    """The exponent b of log(pairs) = a + b log(effect) + offset, by weighted least squares.

    With `stderr` weights are 1 / stderr^2, the interval is normal, and chi2 says whether a straight
    line fits at all. Without, all points weigh the same and the interval is a t interval from the
    residuals. Curvature that is known belongs in `offset`: discordance equal to the effect gives
    pairs = k (1 - effect) / effect, whose offset log(1 - effect) makes the slope exactly -1.

    Assumption: errors of the points are independent (common seeds across effects break it).
    Degenerate: rows whose effect or pairs are not positive, or undefined, have no logarithm: they
    are left out and counted. Fewer than 3 points, or a single effect: slope null with the reason.

    >>> effects = [0.4, 0.2, 0.1, 0.05]
    >>> round(fit_exponent(effects, [4 / e**2 for e in effects]).slope, 6)
    -2.0

    Args:
        effect: Size of the effect, one a row.
        pairs: Pairs needed to resolve it; medians where some runs were censored.
        stderr: Standard error of log(pairs).
        censored: Share of the runs behind a row that hit their cap, or true and false.
        offset: Known curvature, on the scale of log(pairs).

    Returns:
        Slope with interval, slopes between neighbours, goodness of fit.

    Raises:
        ValueError: Lengths differ, a standard error is not positive, or half or more of a row's
            runs were censored: dropping such rows or keeping the cap fabricates a slope.
    """
    x, y = column("effect", effect), column("pairs", pairs)
    same_length("pairs", y, len(x))
    errors = None if stderr is None else same_length("stderr", column("stderr", stderr), len(x))
    if np.any(np.isinf(x)) or np.any(np.isinf(y)):
        raise ValueError(
            "`effect` and `pairs` must be finite: an infinite count is a censored one."
        )
    warnings = _censoring(censored, len(x))
    known = np.zeros(len(x)) if offset is None else column("offset", offset)
    same_length("offset", known, len(x))
    keep = (x > 0) & (y > 0)
    if errors is not None and np.any(wrong := keep & ~((errors > 0) & np.isfinite(errors))):
        raise ValueError(f"`stderr` must be positive and finite, got {first_where(errors, wrong)}.")
    if np.any(wrong := keep & ~np.isfinite(known)):
        raise ValueError(f"`offset` must be finite, got {first_where(known, wrong)}.")
    log_pairs = np.log(y[keep]) - known[keep]
    return _fit(
        np.log(x[keep]),
        log_pairs,
        None if errors is None else errors[keep],
        warnings,
        num_excluded=int(np.count_nonzero(~keep)),
    )


def _censoring(censored: Numbers | None, length: int) -> list[str]:
    if censored is None:
        return []
    share = same_length("censored", column("censored", censored), length)
    if np.any(wrong := ~((share >= 0) & (share <= 1))):
        raise ValueError(
            f"`censored` must be true, false or a share in [0, 1], got {first_where(share, wrong)}."
        )
    if np.any(share >= 0.5):
        raise ValueError(
            f"`censored` must be below half in every row: {np.count_nonzero(share >= 0.5)} hit "
            "their cap, and neither the cap nor leaving them out gives the true slope. Raise the "
            "cap, or fit larger effects only and say so."
        )
    if np.any(share > 0):
        return ["Some runs were censored: `pairs` must be medians in those rows."]
    return []


def _fit(
    x: np.ndarray,
    y: np.ndarray,
    errors: np.ndarray | None,
    warnings: list[str],
    num_excluded: int,
) -> ExponentFit:
    if num_excluded:
        warnings.append(f"{num_excluded} rows have no logarithm and were left out.")
    slope = interval = chi2 = pvalue = None
    if len(x) < 3 or len(np.unique(x)) < 2:
        warnings.append(f"{len(x)} points with {len(np.unique(x))} effects: slope undefined.")
    else:
        slope, half_width, squares = _line(x, y, errors)
        interval = (slope - half_width, slope + half_width)
        if errors is None:
            warnings.append("No standard errors: goodness of fit undefined.")
        else:
            chi2, pvalue = squares, float(chdtrc(len(x) - 2, squares))
    if pvalue is not None and pvalue < _LACK_OF_FIT:
        warnings.append("A straight line does not fit: read local slopes, or give the offset.")
    return ExponentFit(
        slope=slope,
        interval=interval,
        local_slopes=_local_slopes(x, y, errors),
        chi2=chi2,
        chi2_pvalue=pvalue,
        num_points=len(x),
        num_excluded=num_excluded,
        warnings=tuple(warnings),
    )


def _line(x: np.ndarray, y: np.ndarray, errors: np.ndarray | None) -> tuple[float, float, float]:
    """Slope, half width of its interval, and weighted sum of squared residuals."""
    weights = np.ones(len(x)) if errors is None else errors**-2.0
    x_centred = x - np.average(x, weights=weights)
    y_centred = y - np.average(y, weights=weights)
    spread = float(weights @ x_centred**2)
    slope = float(weights @ (x_centred * y_centred)) / spread
    squares = float(weights @ (y_centred - slope * x_centred) ** 2)
    tail = (1 + _CONFIDENCE) / 2
    if errors is None:
        freedom = len(x) - 2
        stderr = math.sqrt(squares / freedom / spread)
        return slope, float(stdtrit(freedom, tail)) * stderr, squares
    return slope, float(ndtri(tail)) / math.sqrt(spread), squares


def _local_slopes(x: np.ndarray, y: np.ndarray, errors: np.ndarray | None) -> tuple[float, ...]:
    """Slopes between neighbouring effects; rows of the same effect are averaged first."""
    weights = np.ones(len(x)) if errors is None else errors**-2.0
    places, which = np.unique(-x, return_inverse=True)
    heights = np.bincount(which, weights * y) / np.bincount(which, weights)
    return tuple((np.diff(heights) / -np.diff(places)).tolist()) if len(x) else ()
