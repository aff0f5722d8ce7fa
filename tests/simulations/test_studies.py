import math

import numpy as np
import pytest

from simulations.studies import (
    STUDIES,
    complexity,
    keys,
    load_study,
    unbiased,
    variance,
)
from tests.simulations.boards import small_board
from tests.simulations.curves import small_curves
from twinstats.power import pairs_needed
from twinstats.sequential import PairedSequence


def quick_rows(name):
    if name == "leaderboard":  # its quick settings take minutes
        return small_board()
    if name == "learning":  # and so do these
        return small_curves()
    study = load_study(name)
    seeds = range(study.SEEDS["quick"])
    return [row for setting in study.QUICK for seed in seeds for row in study.run(setting, seed)]


@pytest.fixture(scope="module")
def quick():
    return {name: quick_rows(name) for name in STUDIES}


def documented(name):
    """Columns that a study's docstring names."""
    return load_study(name).__doc__


@pytest.mark.parametrize("name", list(STUDIES))
def test_quick_rows_have_the_documented_columns(quick, name):
    rows = quick[name]
    assert all(row.keys() == rows[0].keys() for row in rows)
    tables = {load_study(name).TABLE: rows}
    if name != "variance":
        tables |= load_study(name).summarise(rows)
    for table, own in tables.items():
        assert f"`{table}`" in documented(name) and own
        for column in own[0]:
            stem = column.removesuffix("_low").removesuffix("_high")
            assert stem in documented(name), (table, column)
            assert not any(
                isinstance(row[column], float) and math.isinf(row[column]) for row in own
            )


def test_the_variance_ratio_contains_its_exact_value():
    for setting in variance.DEMO:
        for row in variance.run(setting, 1) if setting.world.name.endswith("0.1") else []:
            assert row["ratio_low"] * 0.9 < row["predicted"] < row["ratio_high"] * 1.1, row


@pytest.mark.slow
def test_unbiased_finds_the_wrong_ways_and_clears_the_right_ones():
    (setting,) = unbiased.DEMO
    rows = unbiased.summarise(unbiased.run(setting, 5))["unbiased"]
    worst = {}
    for row in rows:
        key = row["method"], row["quantity"]
        z = abs(row["bias"]) / row["stderr"] if row["stderr"] else 0.0
        worst[key] = max(worst.get(key, 0.0), z)
        if row["claimed"]:
            assert z < 5, row
    for method in ("rloo", "wrong_by_outcome", "wrong_by_length", "wrong_same_noise"):
        assert worst[method, "advantage"] > 5, method


def test_stopping_pairs_equal_the_sequence_fed_pair_by_pair(monkeypatch):
    monkeypatch.setattr(complexity, "_CHUNK", 4)
    rng = np.random.default_rng(0)
    fast = complexity.stopping_pairs(rng, effect=0.3, discordance=0.5, num_runs=4000, cap=2000)
    slow = []
    for _ in range(300):
        sequence = PairedSequence()
        while not sequence.rejected:
            sequence.update(rng.choice([1, -1, 0], p=[0.4, 0.1, 0.5]))
        slow.append(sequence.num_pairs)
    spread = np.hypot(np.std(slow) / np.sqrt(300), fast.std() / np.sqrt(4000))
    assert abs(np.mean(slow) - fast.mean()) < 5 * spread


def test_stopping_counts_ties_and_censors_at_the_cap():
    rng = np.random.default_rng(0)
    sure = complexity.stopping_pairs(rng, effect=1.0, discordance=1.0, num_runs=5, cap=100)
    assert sure.tolist() == [8.0] * 5
    cut = complexity.stopping_pairs(rng, effect=0.001, discordance=0.5, num_runs=50, cap=50)
    assert np.isnan(cut).mean() > 0.8


def test_twins_are_linear_where_smooth_and_quadratic_where_they_cancel():
    rows = []
    for setting in complexity.DEMO:
        if setting.regime in ("smooth", "cancelling", "adverse"):
            rows += complexity.run(setting, 0)
    fits = {
        (r["regime"], r["coupling"], r["reading"]): r
        for r in complexity.summarise(rows)["complexity_fit"]
    }
    assert fits["smooth", "shared", "power"]["slope"] == pytest.approx(-1, abs=0.02)
    for key in (("smooth", "fresh"), ("cancelling", "shared"), ("adverse", "shared")):
        assert fits[*key, "power"]["slope"] == pytest.approx(-2, abs=0.04)
    stopped = fits["smooth", "shared", "stopping"]
    assert stopped["low"] < -1 < stopped["high"]
    assert "hit the cap" in fits["smooth", "fresh", "stopping"]["reason"]
    power = next(r for r in rows if r["reading"] == "power" and r["effect"] < 0.1)
    assert power["pairs"] == pairs_needed(power["effect"], discordance=power["discordance"])


def keys_found(rows, metric):
    return {
        (r["keying"], r["pairs"], r["longer"]): r
        for r in keys.summarise(rows)["keys"]
        if r["metric"] == metric
    }


def test_keys_by_turn_keep_their_luck_where_lengths_differ(quick):
    same = keys_found(quick["keys"], "later_equal")
    for far in (-3, 3):
        kept = min(same[keying, "different", far]["low"] for keying in ("slot", "maximal"))
        assert kept > 0.5
        for keying in ("position", "generator"):
            assert same[keying, "different", far]["high"] < 0.35
            assert same[keying, "different", 0]["value"] > 0.5
    fresh = keys_found(quick["keys"], "later_equal_fresh")
    assert all(row["value"] < 0.2 for row in fresh.values())
    gain, raw = (keys_found(quick["keys"], name) for name in ("gain_deduplicated", "gain"))
    assert gain["slot", "all", None]["value"] > gain["generator", "all", None]["value"]
    for key, row in gain.items():
        assert raw[key]["value"] >= row["value"]
        assert key[1] == "all" or raw[key]["value"] == row["value"]


def test_colliding_rows_make_intervals_too_short_until_clustered(quick):
    found = {r["keying"]: r for r in keys.summarise(quick["keys"])["keys_coverage"]}
    collide, slot = found["collide"], found["slot"]
    assert collide["deviation"] > 1.7 * collide["stderr"]
    assert collide["coverage_high"] < 0.95 < collide["coverage_clustered_high"]
    assert collide["stderr_clustered"] > 1.7 * collide["stderr"]
    assert slot["coverage_high"] > 0.95 and slot["deviation"] < 1.5 * slot["stderr"]


def test_keys_by_hand():
    """Two seeds of two pairs each: what a gain, rho_eff and their intervals are."""

    def cell(seed, factual, twin, control):
        pairs = keys._Pairs(
            factual=np.array(factual),
            twin=np.array(twin),
            control=np.array(control),
            is_equal=np.array([True, False]),
            longer=np.array([0, 2]),
            later=np.array([[3, 4], [1, 2]]),
            fresh=np.array([[0, 4], [1, 3]]),
        )
        known = {"setting": "s", "seed": seed, "vocabulary": 2, "keying": "slot"}
        return [known | row for row in keys._coupling(pairs)]

    rows = cell(0, [1.0, 0.0], [1.0, 1.0], [0.0, 2.0])
    rows += cell(1, [1.0, 1.0], [1.0, 3.0], [0.0, 2.0])
    pooled = ("slot", "all", None)
    gain = keys_found(rows, "gain")[pooled]
    assert gain["value"] == pytest.approx((1 + 4 + 1 + 1) / (1 + 4)) and gain["num_pairs"] == 4
    # without seed 0 it is 2 / 4, without seed 1 it is 5 / 1; t with one degree of freedom
    half = 12.7062 * np.log(10) / 2
    assert gain["low"] == pytest.approx(1.4 * np.exp(-half), rel=1e-4)
    assert gain["high"] == pytest.approx(1.4 * np.exp(half), rel=1e-4)
    assert keys_found(rows, "gain_deduplicated")[pooled]["value"] == pytest.approx((4 + 1) / 5)
    assert keys_found(rows, "later_equal")[pooled]["value"] == pytest.approx(8 / 12)
    assert keys_found(rows, "later_equal_fresh")[pooled]["value"] == pytest.approx(2 / 14)
    factual, twin = np.array([1.0, 0.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0, 3.0])
    covariance = np.cov(factual, twin)
    rho_eff = 2 * covariance[0, 1] / np.trace(covariance)
    assert keys_found(rows, "rho_eff")[pooled]["value"] == pytest.approx(rho_eff)
    nothing = keys_found(rows, "gain")["slot", "different", -3]
    assert nothing["value"] is None and nothing["reason"] == "no pair, or nothing that varies"
    assert keys_found(rows[:9], "gain")[pooled]["reason"] == "one seed has no interval"
