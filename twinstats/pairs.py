"""Paired outcomes: the effect of one changed decision under the same luck.

The front door: estimate, standard error, test and interval. Leaves out what coupling saved
(`variance`), sample sizes (`power`) and sequential looking (`sequential`).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from twinstats._clustered_mean import scaled
from twinstats._numbers import Number
from twinstats._outcomes import FEW_CLUSTERS
from twinstats._paired_intervals import INTERVALS, interval
from twinstats._paired_sample import Sample, evidence_of, need_counts
from twinstats._paired_tests import mcnemar_pvalue, signflip_pvalue, t_pvalue, tango_pvalue
from twinstats.errors import unknown
from twinstats.results import Result, show, show_interval

TESTS = ("auto", "exact", "midp", "tango", "t", "signflip")
ALTERNATIVES = ("two-sided", "greater", "less")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedResult(Result):
    """The effect factual - twin, estimated from pairs.

    Attributes:
        estimate: Mean of factual - twin, in the unit of the outcome; null if every pair failed.
        stderr: Its CR1 standard error; null with one cluster.
        num_pairs: Pairs with both outcomes.
        num_clusters: Independent units among them.
        discordant: (b, c): pairs with factual > twin, and with factual < twin.
        ties: Pairs with equal outcomes.
        discordance: Share of pairs whose outcomes differ (weighted, if weights were given).
        rho: Pearson correlation of the pair; null where an outcome does not vary.
        rho_eff: 2 Cov / (Var factual + Var twin); null where neither outcome varies.
        pvalue: Of the null hypothesis that the effect is `margin`; null where undefined.
        method: The test behind `pvalue`: exact, midp, tango, t or signflip.
        num_missing: Failed pairs, which were dropped.
        missing_bounds: The estimate had all failed pairs come out worst, and best; null where
            the range of outcomes is unknown.
        warnings: Everything that is undefined or doubtful, one sentence each.
    """

    estimate: float | None
    stderr: float | None
    num_pairs: int
    num_clusters: int
    discordant: tuple[int, int]
    ties: int
    discordance: float | None
    rho: float | None
    rho_eff: float | None
    pvalue: float | None
    method: str
    num_missing: int
    missing_bounds: tuple[float, float] | None
    warnings: tuple[str, ...]
    _hypothesis: tuple[str, float] = field(repr=False)
    _sample: Sample = field(repr=False, compare=False)

    def confidence_interval(
        self, confidence: Number = 0.95, method: str = "auto", *, seed: int = 0
    ) -> tuple[float, float] | None:
        """Two-sided interval of the effect, whatever the alternative of the test.

        Args:
            confidence: Its nominal coverage.
            method: "auto" (Tango for binary, unweighted, unclustered pairs with one twin each,
                else "t"), "tango", "bonett-price", "t" (CR1, clusters - 1 degrees of freedom),
                "bca" (bootstrap over clusters) or "anytime" (valid under continuous looking:
                cluster means in order of first appearance, within [-1, 1]).
            seed: Of the bootstrap draws.

        Returns:
            (low, high) in the unit of the outcome. Null where undefined: "t" and "bca" with one
            cluster, anything without a pair. Constant differences: no width, and a warning.

        Raises:
            ValueError: An unknown method, or one that does not fit the data.

        Source: Tango 1998 (score); Bonett and Price 2012; Efron 1987 (bca); Waudby-Smith and
        Ramdas, arXiv 2010.09686 (anytime).
        """
        if not 0 < confidence < 1:
            raise ValueError(f"`confidence` must be in (0, 1), got {confidence}.")
        if method not in INTERVALS:
            raise unknown("method", method, INTERVALS)
        return interval(self._sample, method, confidence=float(confidence), seed=seed)

    def __str__(self) -> str:
        b, c = self.discordant
        alternative, margin = self._hypothesis
        ends = show_interval(self.confidence_interval())
        lines = [
            f"factual - twin = {show(self.estimate)} (stderr {show(self.stderr)}), "
            f"95% interval {ends}",
            f"p = {show(self.pvalue)} ({self.method}, {alternative}, "
            f"effect {show(margin)} under the null)",
            f"{self.num_pairs} pairs in {self.num_clusters} clusters: {b} higher, {c} lower, "
            f"{self.ties} tied; discordance {show(self.discordance)}, "
            f"rho {show(self.rho)}, rho_eff {show(self.rho_eff)}",
        ]
        if self.num_missing:
            lines.append(
                f"{self.num_missing} failed pairs: between {show_interval(self.missing_bounds)}"
            )
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def paired(
    factual: Any,
    twin: Any,
    *,
    cluster: Any = None,
    weights: Any = None,
    population: Number | None = None,
    test: str = "auto",
    alternative: str = "two-sided",
    margin: Number = 0.0,
) -> PairedResult:
    """Mean of factual - twin over pairs that share their luck, with its test and intervals.

    Estimate: sum(w d) / sum(w) over pairs, d = factual - twin, w = 1 without weights; with
    `population` N, sum(w d) / N. Standard error: linearised CR1 over clusters.

    Assumes that clusters are independent of each other and that no pair was chosen by its outcome,
    unless `weights` undo the choice. Coupling does not bias it, whatever its quality.

    Degenerate: one cluster has an estimate and no standard error. Binary outcomes that never
    differ have p = 1; other differences without variance have no p-value. All are flagged.

    Args:
        factual: Outcome of each episode as played; null (None or NaN) where it failed.
        twin: Outcome of its twin; or K columns, K twins of one factual, which are one cluster.
        cluster: Label of the independent unit of each factual: its task, say.
        weights: Weight of each factual, or of each pair: the inverse of the probability with
            which it was chosen.
        population: Number of pairs that could have been chosen.
        test: "auto": exact McNemar (Tango's score test for another margin than 0) when outcomes
            are binary, unweighted, with one twin and every cluster has one pair; else "t", or
            "signflip" when fewer than 10 clusters were given. Or "exact", "midp", "tango", "t",
            "signflip" (signs of cluster sums).
        alternative: "two-sided", "greater" (factual - twin > margin) or "less".
        margin: Effect under the null hypothesis, in the unit of the outcome.

    Returns:
        PairedResult, in the unit of the outcome.

    Raises:
        ValueError: Empty, infinite or unequal inputs, unknown names, or a test that does not fit.

    Source: Fagerland, Lydersen and Laake 2013 (exact, mid-p); Tango 1998 (score); Cameron and
    Miller 2015 (CR1).

    >>> result = paired([1] * 9 + [0] * 41, [0] * 9 + [1] + [0] * 40)
    >>> result.estimate, result.discordant, round(result.pvalue, 4)
    (0.16, (9, 1), 0.0215)
    >>> [round(bound, 4) for bound in result.confidence_interval()]
    [0.0445, 0.2929]
    """
    _check_options(test, alternative, margin)
    margin = float(margin)
    population = None if population is None else float(population)
    evidence = evidence_of(factual, twin, cluster, weights, population)
    sample, moments = evidence.sample, evidence.moments
    method = _test_name(test, sample, evidence.has_clusters, margin)
    pvalue = _pvalue(test, method, sample, alternative, margin)
    higher, lower, total = sample.counts
    mean, exponent = sample.mean, sample.differences.exponent
    stderr = None if mean is None or mean.stderr is None else scaled(mean.stderr, exponent)
    doubts = _doubts(sample, method, pvalue, evidence.has_clusters) + evidence.doubts
    return PairedResult(
        estimate=None if mean is None else scaled(mean.estimate, exponent),
        stderr=stderr,
        num_pairs=total,
        num_clusters=sample.differences.num_clusters,
        discordant=(higher, lower),
        ties=total - higher - lower,
        discordance=moments.discordance,
        rho=moments.rho,
        rho_eff=moments.rho_eff,
        pvalue=pvalue,
        method=method,
        num_missing=evidence.num_missing,
        missing_bounds=evidence.bounds,
        warnings=tuple(doubts),
        _hypothesis=(alternative, margin),
        _sample=sample,
    )


def _check_options(test: str, alternative: str, margin: Number) -> None:
    if test not in TESTS:
        raise unknown("test", test, TESTS)
    if alternative not in ALTERNATIVES:
        raise unknown("alternative", alternative, ALTERNATIVES)
    if not np.isfinite(margin):
        raise ValueError(f"`margin` must be finite, got {margin}.")


def _test_name(test: str, sample: Sample, has_clusters: bool, margin: float) -> str:
    if test == "auto":
        if sample.is_counted:
            return "exact" if margin == 0 else _tango_at(margin)
        few = has_clusters and 1 < sample.differences.num_clusters < FEW_CLUSTERS
        return "signflip" if few else "t"
    if sample.mean is not None:
        need_counts("test", test, sample)
    if test in ("exact", "midp") and margin != 0:
        raise ValueError(f"`test` {test!r} needs `margin` 0, got {margin}; use 'tango'.")
    return _tango_at(margin) if test == "tango" else test


def _tango_at(margin: float) -> str:
    if not -1 < margin < 1:
        raise ValueError(f"`margin` must be in (-1, 1) for binary outcomes, got {margin}.")
    return "tango"


def _pvalue(
    test: str, method: str, sample: Sample, alternative: str, margin: float
) -> float | None:
    """The p-value of `method`; null where it is undefined."""
    mean = sample.mean
    higher, lower, total = sample.counts
    if mean is None:
        return None
    if sample.is_binary and higher + lower == 0 and margin == 0:
        return 1.0
    if method in ("exact", "midp"):
        return mcnemar_pvalue(higher, lower, alternative, midp=method == "midp")
    if method == "tango":
        return tango_pvalue(higher, lower, total, margin, alternative)
    distance = scaled(margin, -sample.differences.exponent)
    if method == "signflip":
        if test == "auto" and mean.is_degenerate:
            return None
        return signflip_pvalue(mean.sums - distance * mean.sizes, alternative)
    if mean.stderr is None or mean.is_degenerate:
        return None
    statistic = (mean.estimate - distance) / mean.stderr
    return t_pvalue(statistic, sample.differences.num_clusters - 1, alternative)


def _doubts(sample: Sample, method: str, pvalue: float | None, has_clusters: bool) -> list[str]:
    """Warnings about the estimate and its test."""
    mean, num_clusters = sample.mean, sample.differences.num_clusters
    if mean is None:
        return ["no_pairs: every pair failed, so nothing is defined."]
    doubts = []
    if num_clusters == 1:
        unit = "pair" if sample.counts[2] == 1 else "cluster"
        doubts.append(f"one_cluster: one {unit} has no standard error (`stderr` is null).")
    if sample.is_binary and sample.counts[0] + sample.counts[1] == 0:
        doubts.append("no_discordance: degenerate data: no pair differs, so p = 1 at margin 0.")
    if mean.is_degenerate:
        doubts.append(
            "zero_variance: degenerate data: the difference does not vary between clusters, so "
            "`stderr` is 0 and t is undefined; this is no evidence of certainty."
        )
    if method == "signflip" and num_clusters < 6 and pvalue is not None:
        least = show(2.0 ** (1 - num_clusters))
        doubts.append(f"few_clusters: two-sided p cannot be below {least}, 2**(1 - clusters).")
    elif method == "t" and has_clusters and 1 < num_clusters < FEW_CLUSTERS:
        doubts.append(f"few_clusters: {num_clusters} clusters make a CR1 standard error too small.")
    return doubts
