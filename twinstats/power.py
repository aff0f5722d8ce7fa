"""How many pairs an effect needs, what power a number of pairs has, what effect it can find.

n counts pairs everywhere. Binary outcomes are given by `discordance` = P(the two outcomes differ),
others by standard deviations. Leaves out unpaired designs.
"""

import math

from twinstats._binary_power import first_true
from twinstats._numbers import Number
from twinstats._power_design import Design, checked_design, checked_pairs, checked_power

_ROUNDING = 1e-12
_MOST_SD = 1e6


def round_up(value: float) -> int:
    """The smallest integer not below `value`, forgiving rounding of 1e-9.

    >>> round_up(0.07 * 100), round_up(1.1 * 10), round_up(31.3955)
    (7, 11, 32)
    """
    return math.ceil(value - 1e-9 * max(1.0, abs(value) * 1e-3))


def pairs_needed(
    effect: Number,
    *,
    discordance: Number | None = None,
    sd: Number | None = None,
    rho: Number | None = None,
    alpha: Number = 0.05,
    power: Number = 0.8,
    test: str = "exact",
    alternative: str = "two-sided",
    cluster_size: Number = 1,
    icc: Number = 0.0,
) -> int:
    """The smallest number of pairs whose power reaches `power`.

    The variance of a difference is discordance - effect^2 for binary outcomes; for others sd^2,
    or 2 sd^2 (1 - rho) with `rho`. Tests: "exact" and "midp" are the sign test on discordant pairs
    (McNemar), "connor" its normal form (z_a sqrt(discordance) + z_b sqrt(discordance - effect^2))^2
    / effect^2, "wald" (z_a + z_b)^2 variance / effect^2, "t" the noncentral t. Without discordance
    "exact" is "t", which is exact for normal differences.

    Power of the sign tests goes up and down with n: the answer is the smallest n that reaches
    `power`, and a few larger ones may miss it by little. They are summed exactly while up to
    1,000,000 discordant pairs are expected; beyond, Connor's form with a continuity correction of
    one pair (none for mid-p) takes over, so effects of 1e-6 are no trouble.

    Clusters multiply the number by 1 + (cluster_size - 1) icc; "t" loses degrees of freedom too.

    Assumption: clusters are independent and of one size; for "t", differences are normal.
    Degenerate: discordance = |effect|, where every difference points one way, is allowed; Connor's
    and Wald's forms then have no variance at effect 1.

    >>> pairs_needed(0.2, discordance=0.3)
    61
    >>> pairs_needed(0.5, sd=1.0, test="wald")
    32

    Args:
        effect: Mean of factual minus twin, not 0.
        discordance: P(the two binary outcomes differ), in [|effect|, 1].
        sd: Standard deviation of the differences; with `rho`, of one outcome.
        rho: Correlation of the two outcomes, in [-1, 1).
        alpha: Level of the test.
        power: Power to reach.
        test: "exact", "midp", "connor", "wald" or "t".
        alternative: "two-sided", "greater" (effect positive) or "less".
        cluster_size: Pairs in a cluster.
        icc: Correlation of differences within a cluster.

    Returns:
        Number of pairs.

    Raises:
        ValueError: No number of pairs does it (effect 0, or in the other direction), or input out
            of its range; the message has the feasible range.

    Source: Connor 1987, Biometrics 43:207 (normal form).
    """
    design = checked_design(discordance, sd, rho, alpha, test, alternative, cluster_size, icc)
    wanted = checked_power(power)
    size = design.oriented(effect)
    if not size > 0:
        raise ValueError(
            f"`effect` must be {design.wanted_sign} for alternative {alternative!r}, or no n "
            f"exists: no number of pairs reaches the power, got {effect}."
        )
    if design.sign_test is not None:
        return round_up(design.sign_test.smallest(size, wanted) * design.inflation)
    return first_true(1, lambda n: design.power(n, size) >= wanted - _ROUNDING)


def paired_power(
    effect: Number,
    num_pairs: Number,
    *,
    discordance: Number | None = None,
    sd: Number | None = None,
    rho: Number | None = None,
    alpha: Number = 0.05,
    test: str = "exact",
    alternative: str = "two-sided",
    cluster_size: Number = 1,
    icc: Number = 0.0,
) -> float:
    """The probability to reject with `num_pairs` pairs, both tails of a two-sided test counted.

    Formulas, approximations, assumptions and options as in `pairs_needed`. At effect 0 it is the
    size of the test; in the direction against a one-sided alternative it is below that.

    >>> round(paired_power(0.2, 40, discordance=0.3), 6)
    0.567379

    Args:
        effect: Mean of factual minus twin.
        num_pairs: Number of pairs, all clusters together.
        discordance: P(the two binary outcomes differ), in [|effect|, 1].
        sd: Standard deviation of the differences; with `rho`, of one outcome.
        rho: Correlation of the two outcomes, in [-1, 1).
        alpha: Level of the test.
        test: "exact", "midp", "connor", "wald" or "t".
        alternative: "two-sided", "greater" or "less".
        cluster_size: Pairs in a cluster.
        icc: Correlation of differences within a cluster.

    Returns:
        Power in [0, 1].

    Raises:
        ValueError: Input out of its range; the message has the feasible range.

    Source: Connor 1987, Biometrics 43:207 (normal form).
    """
    design = checked_design(discordance, sd, rho, alpha, test, alternative, cluster_size, icc)
    return min(1.0, design.power(checked_pairs(num_pairs), design.oriented(effect)))


def detectable_effect(
    num_pairs: Number,
    *,
    discordance: Number | None = None,
    sd: Number | None = None,
    rho: Number | None = None,
    alpha: Number = 0.05,
    power: Number = 0.8,
    test: str = "exact",
    alternative: str = "two-sided",
    cluster_size: Number = 1,
    icc: Number = 0.0,
) -> float:
    """The smallest effect that `num_pairs` pairs find with the power asked for.

    The root of paired_power(effect) = power, with the assumptions of `pairs_needed`. Discordance
    is held fixed while the effect varies. Negative for alternative "less", else
    positive; 0 where the level alone reaches the power.

    >>> round(detectable_effect(61, discordance=0.3), 4)
    0.199

    Args:
        num_pairs: Number of pairs, all clusters together.
        discordance: P(the two binary outcomes differ), in (0, 1].
        sd: Standard deviation of the differences; with `rho`, of one outcome.
        rho: Correlation of the two outcomes, in [-1, 1).
        alpha: Level of the test.
        power: Power to reach.
        test: "exact", "midp", "connor", "wald" or "t".
        alternative: "two-sided", "greater" or "less".
        cluster_size: Pairs in a cluster.
        icc: Correlation of differences within a cluster.

    Returns:
        Effect in the unit of the outcome.

    Raises:
        ValueError: Even the largest possible effect has less power, or input out of its range.

    Source: Connor 1987, Biometrics 43:207 (normal form).
    """
    design = checked_design(discordance, sd, rho, alpha, test, alternative, cluster_size, icc)
    wanted = checked_power(power)
    n = checked_pairs(num_pairs)
    if design.power(n, 0.0) >= wanted:
        return 0.0
    largest = _reaching(design, n, wanted) if discordance is None else float(discordance)
    if design.power(n, largest) < wanted:
        raise ValueError(
            f"`num_pairs` must be larger: with {n} even an effect of {largest:g} has power "
            f"{design.power(n, largest):.4g}, below {wanted}."
        )
    from scipy.optimize import brentq  # 0.1 s, only needed here

    found = brentq(
        lambda size: design.power(n, size) - wanted, 0.0, largest, xtol=1e-300, rtol=1e-14
    )
    return math.copysign(float(found), -1.0 if alternative == "less" else 1.0)


def _reaching(design: Design, num_pairs: int, power: Number) -> float:
    """An effect beyond the one looked for; without limit where none reaches the power."""
    assert design.sd is not None
    effect = design.sd
    while design.power(num_pairs, effect) < power and effect < _MOST_SD * design.sd:
        effect *= 4
    return effect
