"""What shared luck saves: the variance of pairs, taken apart.

Leaves out the test of the effect (`pairs`) and sample sizes (`power`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinstats._numbers import Number
from twinstats._outcomes import read_pairs
from twinstats._variance_columns import fork_codes, luck_columns
from twinstats._variance_parts import (
    Interval,
    advice,
    extra_columns,
    in_outcome_unit,
    intervals,
    points,
    stderrs,
    twin_decomposition,
)
from twinstats.results import Result, show, show_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceAccount(Result):
    """Variance of pairs (factual F, twin T), what coupling saved of it, and how sure that is.

    Variances are of one pair, in squared units of the outcome. What needs an argument that was
    not given is null; every other null has its reason in `warnings`.

    Attributes:
        variance_factual: Var F.
        variance_twin: Var T.
        covariance: Cov(F, T).
        variance_paired: Var(F - T) = (1 - rho_eff) * variance_independent.
        variance_independent: Var F + Var T.
        rho: Pearson correlation of the pair.
        rho_max: The largest correlation that these two margins admit.
        rho_eff: 2 Cov(F, T) / (Var F + Var T). Pooled over forks it also counts the task and the
            prefix that two worlds share even when their luck is independent.
        discordance: Share of pairs with F != T.
        effect: Mean of F - T.
        coupling_gain: Var(F - C) / Var(F - T) over pairs with a control C (fresh luck, the same
            fork and decision): what shared luck saves on the same forks.
        coupling_gain_deduplicated: The same with F - C set to 0 where decisions are equal: what
            coupling itself gives.
        equal_share: Share of pairs whose two decisions are equal.
        rho_prefix: [Cov(F,T) - Cov(F,C)] / [Var F - Cov(F,C)] over pairs with a control;
            coupling_gain = 1 / (1 - rho_prefix) when T and C vary as much as F.
        rho_luck: Correlation of F and T over luck within forks.
        noise_gain: 1 / (1 - 2 S_FT / (S_FF + S_TT)), from the same within-fork sums.
        floor: Mean squared difference of factual and null twin: noise of the replay itself.
        variance_above_floor: variance_paired - floor.
        equivalent_independent_pairs: num_pairs * coupling_gain.
        num_twins: K.
        covariance_twins: Mean Cov(T_j, T_k), j != k, over factuals with all K twins.
        variance_mean_twin: Var(F - mean of K twins); variance_paired when K = 1.
        variance_one_more: The same, predicted for K + 1 twins.
        variance_many: Its limit for many twins: what another factual, not another twin, reduces.
        num_pairs: Pairs with both outcomes.
        num_clusters: Independent units among them.
        num_missing: Failed pairs, which were dropped.
        stderr: For each statistic of single pairs its standard error, or null.
        intervals: For each statistic its interval, or null; none if `confidence` was null.
        confidence: Nominal coverage of `intervals`.
        warnings: Everything that is undefined or doubtful, one sentence each.
    """

    variance_factual: float | None
    variance_twin: float | None
    covariance: float | None
    variance_paired: float | None
    variance_independent: float | None
    rho: float | None
    rho_max: float | None
    rho_eff: float | None
    discordance: float | None
    effect: float | None
    coupling_gain: float | None
    coupling_gain_deduplicated: float | None
    equal_share: float | None
    rho_prefix: float | None
    rho_luck: float | None
    noise_gain: float | None
    floor: float | None
    variance_above_floor: float | None
    equivalent_independent_pairs: float | None
    num_twins: int
    covariance_twins: float | None
    variance_mean_twin: float | None
    variance_one_more: float | None
    variance_many: float | None
    num_pairs: int
    num_clusters: int
    num_missing: int
    stderr: Mapping[str, float | None]
    intervals: Mapping[str, Interval]
    confidence: float | None
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"spent: {self.num_pairs} pairs in {self.num_clusters} clusters"]
        for title, names in _SECTIONS:
            known = [name for name in names if getattr(self, name) is not None]
            lines += [f"{title}:"] * bool(known) + [f"  {self._line(name)}" for name in known]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def _line(self, name: str) -> str:
        line = f"{name.replace('_', ' ')}: {show(getattr(self, name))}"
        if self.confidence is None or name not in self.intervals:
            return line
        return f"{line}, {100 * self.confidence:g}% interval {show_interval(self.intervals[name])}"

    @property
    def deduplication_gain(self) -> float | None:
        """What taking equal decisions as difference 0 saves: raw over deduplicated gain."""
        if self.coupling_gain is None or not self.coupling_gain_deduplicated:
            return None
        return self.coupling_gain / self.coupling_gain_deduplicated

    def best_twins(self, factual_cost: Number, twin_cost: Number) -> float | None:
        """The number of twins a factual that buys the most precision for its cost.

        With Var(K) = many + within / K it minimises Var(K) * (factual_cost + K * twin_cost):
        K* = sqrt(factual_cost / twin_cost * within / many), at least 1, and 1 when the factual is
        already paid for (cost 0). A real number: compare its two neighbours. Infinite where
        another factual would reduce nothing; null where the account had one twin a factual.

        Args:
            factual_cost: Cost of a factual, at least 0.
            twin_cost: Cost of a twin in the same unit, above 0.

        Raises:
            ValueError: A cost outside its range.
        """
        if not (0 <= factual_cost < math.inf and 0 < twin_cost < math.inf):
            raise ValueError(
                f"`factual_cost` must be at least 0 and `twin_cost` above 0, both finite, "
                f"got {factual_cost} and {twin_cost}."
            )
        if self.variance_many is None or self.variance_one_more is None:
            return None
        within = (self.variance_one_more - self.variance_many) * (self.num_twins + 1)
        if factual_cost == 0 or within <= 0:
            return 1.0
        if self.variance_many <= 0:
            return math.inf
        return max(1.0, math.sqrt(factual_cost / twin_cost * within / self.variance_many))


_SECTIONS = (
    ("found", ("effect", "discordance")),
    (
        "what luck costs",
        ("variance_independent", "variance_paired", "rho", "rho_eff", "rho_luck", "noise_gain"),
    ),
    ("what coupling saved", ("coupling_gain", "coupling_gain_deduplicated")),
    ("what deduplication saved", ("equal_share", "deduplication_gain")),
    ("floor of the replay", ("floor", "variance_above_floor")),
    (
        "what more twins buy",
        ("variance_mean_twin", "variance_one_more", "variance_many"),
    ),
)


def variance_account(
    factual: Any,
    twin: Any,
    *,
    control: Any = None,
    equal: Any = None,
    fork: Any = None,
    luck: Any = None,
    cluster: Any = None,
    null: Any = None,
    confidence: Number | None = 0.95,
) -> VarianceAccount:
    """Where the variance of pairs comes from, and what shared luck saves of it.

    Var(F - T) = Var F + Var T - 2 Cov = (1 - rho_eff)(Var F + Var T), always; (1 - rho) only if
    Var F = Var T. With a control C, coupling_gain = Var(F - C) / Var(F - T). Since C and T have the
    same mean, E[(F-C)^2] / E[(F-T)^2] is the same gain with effect^2 added above and below: equal
    at effect 0, nearer to 1 otherwise.
    With forks replayed over luck l = 0..L-1, S_FT = sum_f sum_l (F - F_f)(T - T_f) divided by
    sum_f (L_f - 1), F_f and T_f the means of fork f; rho_luck = S_FT / sqrt(S_FF S_TT).
    With K twins a factual, Var(F - mean T) = Var F - 2 Cov + (Var T + (K - 1) Cov(T, T')) / K: more
    twins never go below Var F - 2 Cov + Cov(T, T').

    Intervals: Dirichlet(1/2) posterior of the 2x2 cells for binary, unclustered pairs with K = 1,
    else Dirichlet(1) weights over clusters (Bayesian bootstrap), both of 20,000 keyed draws; gains,
    luck and floor always by the latter, the effect by CR1 t. Ends of variances and covariance are
    times G / (G - 1), G the clusters, as the estimates are times n / (n - 1). Standard errors:
    jackknife over clusters.

    Degenerate: an outcome that does not vary has no rho; one pair has no variance; a gain without
    any variance below is null. One cluster has no intervals.

    Args:
        factual: Outcome of each episode as played; null (None or NaN) where it failed.
        twin: Outcome of its twin, or K columns.
        control: Outcome of the fresh-luck fork with the same decision, in the shape of `twin`; null
            for pairs without one.
        equal: Whether the resampled decision equals the factual one, in the shape of `twin`.
        fork: Label of the fork (history, decision, other decision) that was replayed over luck.
        luck: Number of the luck; with `fork`.
        cluster: Label of the independent unit of each factual. Without it: the fork, if given,
            else the factual.
        null: Outcome of each factual's null twin (KEEP, shared luck); null where there is none.
        confidence: Nominal coverage of the intervals; null for none, which is much faster.

    Returns:
        VarianceAccount, in squared units of the outcome.

    Raises:
        ValueError: Empty, infinite or unequal inputs, or `fork` without `luck`.

    Source: Bayesian bootstrap, Rubin 1981, Annals of Statistics 9:130-134.

    >>> account = variance_account([1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 0, 0])
    >>> round(account.rho_eff, 4), round(account.rho, 4), account.discordance == 1 / 6
    (0.7059, 0.7071, True)
    >>> account.coupling_gain is None, account.warnings[-1][:10]
    (True, 'no_control')
    """
    if confidence is not None and not 0 < confidence < 1:
        raise ValueError(f"`confidence` must be in (0, 1), got {confidence}.")
    units = ("fork", fork) if cluster is None else ("cluster", cluster)
    others = {"control": control, "null": null}
    pairs = read_pairs(factual, twin, units[1], cluster_name=units[0], others=others)
    doubts: list[str] = []
    extras = extra_columns(pairs, control, equal, null, doubts)
    if fork is not None or luck is not None:
        extras |= luck_columns(pairs, fork_codes(fork, luck, pairs))
    found = points(pairs, extras, doubts) | twin_decomposition(pairs, doubts)
    if pairs.num_twins == 1:
        found["variance_mean_twin"] = found.get("variance_paired")
    ends = {} if confidence is None else intervals(pairs, extras, float(confidence))
    in_outcome_unit(found, ends, pairs.exponent, doubts)
    doubts += advice(found, ends, has_control=control is not None)
    gain, paired, floor = (found.get(x) for x in ("coupling_gain", "variance_paired", "floor"))
    num_pairs = int(np.count_nonzero(pairs.valid))
    return VarianceAccount(
        **{name: found.get(name) for name in _POINTS},
        variance_above_floor=None if floor is None or paired is None else paired - floor,
        equivalent_independent_pairs=None if gain is None else num_pairs * gain,
        num_twins=pairs.num_twins,
        num_pairs=num_pairs,
        num_clusters=pairs.num_clusters,
        num_missing=pairs.num_missing,
        stderr=stderrs(pairs, extras),
        intervals=ends,
        confidence=None if confidence is None else float(confidence),
        warnings=tuple(doubts),
    )


_POINTS = (
    "variance_factual",
    "variance_twin",
    "covariance",
    "variance_paired",
    "variance_independent",
    "rho",
    "rho_max",
    "rho_eff",
    "discordance",
    "effect",
    "coupling_gain",
    "coupling_gain_deduplicated",
    "equal_share",
    "rho_prefix",
    "rho_luck",
    "noise_gain",
    "floor",
    "covariance_twins",
    "variance_mean_twin",
    "variance_one_more",
    "variance_many",
)
