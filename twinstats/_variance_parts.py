"""Points, intervals and warnings of an account of variance.

Each helper appends to `doubts`, one sentence for everything it leaves undefined. Leaves out the
sums (`_variance_columns`) and their draws (`_variance_draws`).
"""

from typing import Any

import numpy as np

from twinstats._clustered_mean import clustered_mean, differences, scaled, t_interval
from twinstats._moments import pair_moments
from twinstats._outcomes import FEW_CLUSTERS, Pairs, outcome_array, rounding_of
from twinstats._variance_columns import (
    base_columns,
    equal_column,
    gain_columns,
    mean_columns,
    pair_column,
    statistics,
)
from twinstats._variance_draws import cell_sums, cluster_draws, sums_without_each
from twinstats.results import show

Interval = tuple[float, float] | None
MOMENTS = (
    "variance_factual",
    "variance_twin",
    "covariance",
    "variance_paired",
    "variance_independent",
)
"""Mean squared deviations and products: their expectation is (n - 1) / n of what they estimate.

Estimates and ends of intervals make up for it. Else the draws of p (1 - p) all lie below 1/4, and
the interval leaves out the estimate where p is near 1/2, and the truth at p = 1/2.
"""

SQUARED = (
    *MOMENTS,
    "floor",
    "covariance_twins",
    "variance_mean_twin",
    "variance_one_more",
    "variance_many",
)


def extra_columns(
    pairs: Pairs, control: Any, equal: Any, null: Any, doubts: list[str]
) -> dict[str, np.ndarray]:
    """Columns of the gains, the share of equal decisions and the null-twin floor."""
    columns: dict[str, np.ndarray] = {}
    shared = pairs.asked_factual - pairs.asked_twin
    is_equal = None if equal is None else equal_column(equal, pairs)
    if is_equal is not None:
        columns |= mean_columns("equal_share", np.where(pairs.valid, is_equal, np.nan))
        broken = int(np.count_nonzero((is_equal == 1) & pairs.valid & (shared != 0)))
        if broken:
            doubts.append(f"replay_noise: {broken} pairs with equal decisions have two outcomes.")
    if control is not None:
        outcome, rounding = pair_column("control", control, pairs)
        outcome = np.ldexp(outcome, -pairs.exponent)
        fresh = pairs.asked_factual - outcome
        errors = (
            rounding_of(pairs.asked_factual, outcome, (pairs.rounding[0], rounding)),
            rounding_of(pairs.asked_factual, pairs.asked_twin, pairs.rounding),
        )
        columns |= gain_columns("gain", pairs.asked_factual, (fresh, shared), errors)
        if is_equal is not None:
            kept = np.where(is_equal == 1, 0.0, np.where(np.isnan(is_equal), np.nan, fresh))
            kept = np.where(np.isnan(fresh), np.nan, kept)
            columns |= gain_columns("dedup", pairs.asked_factual, (kept, shared), errors)
    if null is not None:
        columns |= _floor_columns(pairs, null)
    return columns


def _floor_columns(pairs: Pairs, null: Any) -> dict[str, np.ndarray]:
    outcome, _ = outcome_array("null", null)
    num_rows = len(pairs.row) // pairs.num_twins
    if outcome.shape != (num_rows,):
        raise ValueError(f"`null` must have one outcome a row, {num_rows}, got {outcome.shape}.")
    is_first = np.arange(len(pairs.row)) % pairs.num_twins == 0
    outcome = np.where(is_first, np.ldexp(outcome[pairs.row], -pairs.exponent), np.nan)
    return mean_columns("floor", (pairs.asked_factual - outcome) ** 2)


def points(
    pairs: Pairs, extras: dict[str, np.ndarray], doubts: list[str]
) -> dict[str, float | None]:
    """Every statistic of pairs at its point estimate, in squared units of the outcome."""
    moments = pair_moments(pairs, np.ones(int(np.count_nonzero(pairs.valid))))
    found: dict[str, float | None] = {
        "rho": moments.rho,
        "rho_max": moments.rho_max,
        "rho_eff": moments.rho_eff,
        "discordance": moments.discordance,
        "effect": None,
    }
    doubts += _data_doubts(pairs) + moments.undefined()
    if pairs.valid.any():
        sample = differences(pairs)
        found["effect"] = scaled(clustered_mean(sample).estimate, sample.exponent)
    num_rows = pairs.num_rows
    if num_rows > 1:
        assert moments.variance_factual is not None and moments.variance_twin is not None
        assert moments.covariance is not None and moments.variance_difference is not None
        unbiased = num_rows / (num_rows - 1)
        found["variance_factual"] = moments.variance_factual * unbiased
        found["variance_twin"] = moments.variance_twin * unbiased
        found["covariance"] = moments.covariance * unbiased
        found["variance_paired"] = moments.variance_difference * unbiased
        total = moments.variance_factual + moments.variance_twin
        found["variance_independent"] = total * unbiased
    totals = statistics({name: column.sum(keepdims=True) for name, column in extras.items()})
    for name, (value,) in totals.items():
        found[name] = float(value) if np.isfinite(value) else None
        if found[name] is None:
            doubts.append(f"{name}: undefined: {_REASONS[name]}.")
    return found


_REASONS = {
    "coupling_gain": "without a control, or without variance among shared-luck differences",
    "coupling_gain_deduplicated": "no control, or no variance among shared-luck differences",
    "rho_prefix": "the control's difference does not vary with the factual",
    "rho_luck": "no fork was replayed at two lucks, or an outcome never varies within a fork",
    "noise_gain": "no fork was replayed at two lucks, or differences never vary within a fork",
    "floor": "no null twin has an outcome",
    "equal_share": "no pair says whether its decisions are equal",
}


def _data_doubts(pairs: Pairs) -> list[str]:
    num_pairs = int(np.count_nonzero(pairs.valid))
    if num_pairs == 0:
        return ["no_pairs: every pair failed, so nothing is defined."]
    doubts = []
    if pairs.num_missing:
        doubts.append(f"missing: {pairs.num_missing} of {len(pairs.row)} pairs failed, dropped.")
    if pairs.num_rows == 1:
        doubts.append("one_pair: one factual has no variance.")
    num_clusters = pairs.num_clusters
    if num_clusters == 1:
        doubts.append("one_cluster: one cluster has no intervals.")
    elif num_clusters < FEW_CLUSTERS:
        doubts.append(f"few_clusters: {num_clusters} clusters make bootstrap intervals too short.")
    if not (pairs.factual != pairs.twin).any():
        most = 1 - 0.025 ** (1 / num_clusters)
        doubts.append(
            "no_discordance: degenerate data: no pair differs; discordance is below "
            f"{show(most)} (exact, 95%, {num_clusters} clusters)."
        )
    return doubts


def twin_decomposition(pairs: Pairs, doubts: list[str]) -> dict[str, float | None]:
    """Variance of factual - mean of K twins, and what one more twin, and many, would leave.

    Sample covariances over the factuals that have all K twins.
    """
    if pairs.num_twins == 1:
        return {}
    shape = (-1, pairs.num_twins)
    is_whole = pairs.valid.reshape(shape).all(axis=1)
    if np.count_nonzero(is_whole) < 2:
        doubts.append("variance_mean_twin: undefined: fewer than 2 factuals have all twins.")
        return {}
    factual = pairs.asked_factual.reshape(shape)[is_whole, 0]
    twins = pairs.asked_twin.reshape(shape)[is_whole]
    table = np.cov(factual, twins, rowvar=False)
    first, crossed, between = table[0, 0], table[0, 1:].mean(), table[1:, 1:]
    num_twins = pairs.num_twins
    own = np.trace(between) / num_twins
    shared = (between.sum() - np.trace(between)) / (num_twins * (num_twins - 1))
    limit = first - 2 * crossed + shared
    return {
        "covariance_twins": float(shared),
        "variance_mean_twin": float(np.var(factual - twins.mean(axis=1), ddof=1)),
        "variance_one_more": float(limit + (own - shared) / (num_twins + 1)),
        "variance_many": float(limit),
    }


def intervals(
    pairs: Pairs, extras: dict[str, np.ndarray], confidence: float
) -> dict[str, Interval]:
    """Quantile intervals of all statistics, and the t interval of the effect."""
    found: dict[str, Interval] = {"effect": _effect_interval(pairs, confidence)}
    num_clusters = pairs.num_clusters
    is_single = pairs.num_twins == 1 and num_clusters == np.count_nonzero(pairs.valid)
    is_cells = pairs.is_binary and is_single
    base = base_columns(pairs)
    columns = extras if is_cells else base | extras
    empty = np.full(1, np.nan)
    names = statistics({name: empty for name in base | extras})
    found |= dict.fromkeys(names)
    if not pairs.valid.any():
        return found
    draws: dict[str, np.ndarray] = {}
    if columns and num_clusters > 1:
        draws = statistics(cluster_draws(columns, pairs.asked_cluster))
    if is_cells:
        draws |= statistics(cell_sums(pairs))
    levels = (1 - confidence) / 2, (1 + confidence) / 2
    for name, values in draws.items():
        is_moment = name in MOMENTS
        if np.isfinite(values).all() and not (is_moment and num_clusters == 1):
            unbiased = num_clusters / (num_clusters - 1) if is_moment else 1.0
            low, high = np.quantile(values, levels) * unbiased
            found[name] = float(low), float(high)
    return found


def stderrs(pairs: Pairs, extras: dict[str, np.ndarray]) -> dict[str, float | None]:
    """Jackknife over clusters: sqrt((G - 1) / G * sum over g of (x_-g - their mean)^2).

    Null with one cluster, and where a statistic is undefined without one of them.
    """
    found = statistics(sums_without_each(base_columns(pairs) | extras, pairs.asked_cluster))
    errors: dict[str, float | None] = {}
    for name, without in found.items():
        errors[name] = None
        if len(without) > 1 and np.isfinite(without).all():
            error = float(np.sqrt((len(without) - 1) * np.var(without)))
            is_squared = name in SQUARED
            errors[name] = _in_range(error, 2 * pairs.exponent) if is_squared else error
    return errors


def _effect_interval(pairs: Pairs, confidence: float) -> Interval:
    sample = differences(pairs)
    if sample.num_clusters < 2:
        return None
    low, high = t_interval(clustered_mean(sample), sample.num_clusters, confidence)
    return scaled(low, sample.exponent), scaled(high, sample.exponent)


def in_outcome_unit(
    found: dict[str, float | None], ends: dict[str, Interval], exponent: int, doubts: list[str]
) -> None:
    """Undoes the scaling of variances, in place; null where float64 cannot hold one."""
    for name in SQUARED:
        value, interval = found.get(name), ends.get(name)
        if value is not None:
            found[name] = _in_range(value, 2 * exponent)
            if found[name] is None:
                doubts.append(f"{name}: undefined: outside the range of float64.")
        if interval is not None:
            low, high = (_in_range(end, 2 * exponent) for end in interval)
            ends[name] = None if low is None or high is None else (low, high)


def _in_range(value: float, exponent: int) -> float | None:
    result = scaled(value, exponent)
    return result if np.isfinite(result) and (result != 0 or value == 0) else None


def advice(
    found: dict[str, float | None], ends: dict[str, Interval], *, has_control: bool
) -> list[str]:
    """What the caller should do about coupling that does not pay."""
    said = []
    rho_eff = found["rho_eff"]
    if rho_eff is not None and rho_eff < 0:
        said.append(
            f"USE INDEPENDENT TWINS: rho_eff is {show(rho_eff)} < 0: pairs vary more than "
            "independent outcomes would."
        )
    for name, remedy in (
        ("coupling_gain", "fresh luck"),
        ("coupling_gain_deduplicated", "fresh luck with equal decisions taken as difference 0"),
    ):
        interval = ends.get(name)
        if interval is not None and interval[1] < 1:
            said.append(
                f"USE INDEPENDENT TWINS: the interval of {name} ends at {show(interval[1])} < 1: "
                f"{remedy} has less variance."
            )
    if not has_control:
        said.append(
            "no_control: pooled rho also counts what task and prefix share, so the gain of "
            "coupling is unknown without `control`, and so is equivalent_independent_pairs."
        )
    return said
