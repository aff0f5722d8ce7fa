import dataclasses

import numpy as np
import pytest
from scipy import stats

from simulations.measure import (
    credit_groups,
    play_groups,
    score,
    score_step,
    score_sum,
    trained_gradient,
)
from simulations.studies import _leaderboard_entrants as field
from simulations.studies import leaderboard
from simulations.studies._equivalence import simultaneous
from simulations.studies._leaderboard_bias import biases, place_sums
from simulations.studies.leaderboard import METRICS, QUICK, SEEDS, SETTINGS, run, summarise
from simulations.worlds import Bandit, Chain
from simulations.worlds.errand import Errand
from simulations.worlds.errand_model import ErrandSetting
from tests.simulations.boards import SMALL, small_board
from twinstats.board import curves, equal_error, split
from twinstats.credit import METHODS, make, names
from twinstats.credit.registry import Entry, Method, Need
from twinstats.episodes import Credit


@pytest.fixture(scope="module")
def rows():
    return small_board()


@pytest.fixture(scope="module")
def tables(rows):
    return summarise(rows)


def test_every_method_of_the_registry_and_every_variant_has_rows(tables):
    expected = {*names(), *field.VARIANTS}
    for name in ("leaderboard", "leaderboard_tokens"):
        assert {row["method"] for row in tables[name]} == expected
    assert {row["metric"] for row in tables["leaderboard"]} == set(METRICS)
    for row in tables["leaderboard"]:
        assert (row["value"] is None) == (row["reason"] is not None), row
        blank = row["metric"] in ("bias", "variance") and not row["estimates_advantage"]
        assert not (blank and row["value"] is not None)


def test_reconstructed_methods_and_their_variants_are_marked(tables):
    marked = {row["method"] for row in tables["leaderboard"] if row["reconstructed"]}
    known = {name for name, entry in METHODS.items() if entry.reconstructed}
    assert marked == known | {name for name in field.VARIANTS if name.startswith("twice")}


def test_a_toy_method_of_one_line_appears_by_itself(monkeypatch):
    def toy(group, *, zeros=1):
        return Credit(
            episodes=group.episodes, values=[np.zeros(e.num_turns) for e in group.episodes]
        )

    monkeypatch.setattr(field, "VARIANTS", {})
    toys = {"toy": Entry(function=toy), "toy_swept": Entry(function=toy, knob="zeros")}
    known = {name: METHODS[name] for name in ("twice", "vine")}
    monkeypatch.setattr(field, "METHODS", known | toys)
    rows = small_board()
    knobs = {m: {r["knob"] for r in rows if r["method"] == m} for m in ("toy", "toy_swept")}
    assert knobs == {"toy": {4, 8}, "toy_swept": {1, 9}}
    found = {
        (r["method"], r["budget"]): r["value"]
        for r in summarise(rows)["leaderboard"]
        if r["metric"] == "mse"
    }
    assert found["toy", 1.0] == found["toy", 2.0] == found["toy_swept", 1.0] == 1.0


def test_a_method_whose_need_the_world_lacks_says_so(rows, tables):
    (row,) = [r for r in rows if r["method"] == "spader" and r["seed"] == 0]
    assert row["knob"] is None and row["tokens"] is None
    assert "'entities'" in row["reason"]
    board = [r for r in tables["leaderboard"] if r["method"] == "spader"]
    assert board and all(r["reason"] == row["reason"] and r["value"] is None for r in board)


def test_a_coupling_that_the_world_lacks_is_a_refusal():
    entrant = field.VARIANTS["twice_maximal"]
    assert "`coupling` must be 'gumbel'" in entrant.refusal(Bandit(QUICK[0].world, seed=0))
    tokens = next(s for s in QUICK if leaderboard.WORLDS[type(s.world)][0] == "tokens")
    assert entrant.refusal(leaderboard.WORLDS[type(tokens.world)][1](tokens.world, seed=0)) is None


def test_worlds_offer_what_their_settings_promise():
    played = {leaderboard.WORLDS[type(setting.world)][0] for setting in QUICK}
    assert played == {"bandit", "chain", "errand", "tokens"} and SEEDS["quick"] == 5
    assert {leaderboard.WORLDS[type(s.world)][0] for s in SETTINGS} == played
    assert SEEDS["full"] >= 20
    everything = Errand(ErrandSetting(name="errand"), seed=0)
    refused = {n for n, e in field.entrants().items() if e.refusal(everything) is not None}
    assert refused <= {"twice_maximal"}


def test_knobs_name_options_of_their_methods():
    for name, entry in METHODS.items():
        if entry.knob is not None:
            make(name, **{entry.knob: 2})
    wanted = {"vine", "vine_coupled", "twice", "independent", "tree_grpo", "at2po", "arpo"}
    wanted |= {"treerl", "prover", "factor"}
    assert {name for name, entry in METHODS.items() if entry.knob} == wanted


def test_base_tokens_are_those_of_four_rollouts(rows):
    for row in rows:
        if row["reason"] is None and field.entrants()[row["method"]].knob is None:
            assert row["tokens"] / row["base_tokens"] == row["knob"] / 4
        elif row["reason"] is None:
            assert row["tokens"] - row["auxiliary_tokens"] == row["base_tokens"]


def test_no_budget_is_rloo_bit_for_bit(rows):
    def own(method, knob):
        return [r["credit_square"] for r in rows if r["method"] == method and r["knob"] == knob]

    assert own("twice_budget", 0) == own("independent_budget", 0) == own("rloo", 4)


def test_raw_and_deduplicated_branches_differ_by_equal_decisions_only(rows):
    spent = {
        method: sum(r["tokens"] for r in rows if r["method"] == method)
        for method in ("twice", "independent", "independent_raw")
    }
    assert spent["twice"] <= spent["independent"] < spent["independent_raw"]


def test_a_run_is_a_function_of_setting_and_seed(monkeypatch):
    few = ("rloo", "twice", "vine", "t2spo")
    kept = {name: entrant for name, entrant in field.entrants().items() if name in few}
    monkeypatch.setattr(leaderboard, "entrants", lambda: kept)
    first = run(SMALL, 3)
    backwards = dict(reversed(kept.items()))
    monkeypatch.setattr(leaderboard, "entrants", lambda: backwards)
    again = {(row["method"], row["knob"]): row for row in run(SMALL, 3)}
    assert all(again[row["method"], row["knob"]] == row for row in first)
    assert run(SMALL, 4) != first


def point(method, seed, tokens, credit, **other):
    truth = np.array([1.0, -1.0])
    return {
        "setting": "s",
        "world": "chain",
        "horizon": 2,
        "density": 1.0,
        "seed": seed,
        "method": method,
        "knob": tokens,
        "estimates_advantage": method != "grpo",
        "reconstructed": False,
        "claims_unbiased": False,
        "reason": None,
        "tokens": tokens,
        "auxiliary_tokens": tokens - 1.0,
        "base_tokens": 1.0,
        "num_turns": 2.0,
        "num_groups": 2.0,
        "error": float((credit - truth).sum()),
        "credit_square": float(credit @ credit),
        "credit_truth": float(credit @ truth),
        "truth_square": 2.0,
        "sign_accuracy": 1.0,
        "kendall": 1.0,
        "cosine": 0.5,
        "place_error": [0.0, 0.0],
        "place_square": [1.0, 1.0],
        "place_turns": [2.0, 2.0],
    } | other


def test_the_board_by_hand():
    """Two seeds, two points of tokens 1 and 4; budget 2 is half way in log tokens."""
    rows = []
    for method in ("rloo", "grpo"):
        for seed, size in ((0, 2.0), (1, 4.0)):
            rows.append(point(method, seed, 1.0, np.array([size, -size])))
            rows.append(point(method, seed, 4.0, np.array([size, 0.0])))
    found = {
        (r["method"], r["metric"]): r for r in summarise(rows)["leaderboard"] if r["budget"] == 2.0
    }
    value = {key: row["value"] for key, row in found.items()}
    # errors (1, -1), (1, 1) of seed 0 and (3, -3), (3, 1) of seed 1; the mean of A^2 is 1.
    # mse 1, 1 and 9, 5: half way in its logarithm
    assert value["rloo", "mse"] == pytest.approx(np.mean([1, np.sqrt(45)]))
    assert value["rloo", "bias"] == pytest.approx(np.mean([(0 + 1) / 2, (0 + 2) / 2]))
    # variance 1, 0 and 9, 1: not all positive in seed 0
    assert value["rloo", "variance"] == pytest.approx(np.mean([0.5, 5.0]))
    # the other seed's scales: 1/4 for seed 0 and 1/2 for seed 1, at both points
    scaled = np.mean([np.sqrt(0.25 * 0.625), 1.0])
    assert value["grpo", "mse"] == value["rloo", "mse_scaled"] == pytest.approx(scaled)
    assert value["grpo", "bias"] is None
    row, two = found["rloo", "mse"], np.array([1, np.sqrt(45)])
    half = stats.t.ppf(0.975, 1) * two.std(ddof=1) / np.sqrt(2)
    assert (row["low"], row["high"]) == pytest.approx((two.mean() - half, two.mean() + half))
    (early,) = [
        r
        for r in summarise(rows)["leaderboard"]
        if (r["method"], r["metric"], r["budget"]) == ("rloo", "mse", 5.0)
    ]
    assert early["reason"] == "its sweep ends at budget 4"


def squares(errors, tokens=(2.0, 4.0, 8.0)):
    """Credit with the given squared errors a seed and knob."""
    for seed, own in enumerate(errors):
        for place, error in zip(tokens, own, strict=True):
            yield seed, place, np.array([1.0, -1.0]) * (1 + np.sqrt(error))


def board_of(**methods):
    rows = [
        point(method, seed, tokens, credit, knob=knob)
        for method, errors in methods.items()
        for (seed, tokens, credit), knob in zip(
            squares(errors), [1, 3, 9] * len(errors), strict=True
        )
    ]
    return curves(rows)


def test_tokens_to_equal_error_by_hand():
    """Base 1; vine with 9 rollouts has error 1 at 7 auxiliary tokens."""
    board = board_of(
        vine=[[16.0, 4.0, 1.0]] * 3,
        twice=[[4.0, 0.25, 0.1]] * 3,
        vine_coupled=[[0.5, 0.4, 0.3]] * 3,
        independent=[[8.0, 6.0, 5.0]] * 3,
    )
    found = {row["method"]: row for row in equal_error(board) if row["metric"] == "mse"}
    assert found["vine"]["ratio"] == pytest.approx(1)
    assert (found["vine"]["target"], found["vine"]["reference_tokens"]) == pytest.approx((1, 7))
    # half way between 4 and 1/4 in the logarithm: sqrt(2 * 4) tokens, 1 of them the base
    assert found["twice"]["auxiliary_tokens"] == pytest.approx(np.sqrt(8) - 1)
    assert found["twice"]["low"] == pytest.approx(found["twice"]["ratio"])
    assert found["vine_coupled"]["is_bound"]
    assert found["vine_coupled"]["ratio"] == pytest.approx(1 / 7)
    lost = found["independent"]
    assert lost["ratio"] is None and lost["reason"] == "not reached: its floor is above the target"
    slope, floor = np.polyfit([1, 1 / 3, 1 / 7], [8.0, 6.0, 5.0], 1)
    assert lost["floor"] == pytest.approx(floor) and slope > 0


def test_seeds_that_do_not_reach_the_target_open_the_interval():
    board = board_of(
        vine=[[4.0, 2.0, 1.0]] * 3,
        twice=[[4.0, 2.0, 0.2], [4.0, 2.0, 0.2], [4.0, 3.0, 2.0]],
    )
    found = {row["method"]: row for row in equal_error(board) if row["metric"] == "mse"}
    assert found["twice"]["high"] is None and found["twice"]["low"] > 0
    assert found["twice"]["reason"].startswith("not reached in ")


def test_the_split_multiplies_to_the_whole():
    board = board_of(
        vine=[[16.0, 4.0, 2.0]] * 3,
        independent_raw=[[8.0, 4.0, 1.0]] * 3,
        independent=[[4.0, 2.0, 0.5]] * 3,
        twice=[[4.0, 0.5, 0.1]] * 3,
    )
    found = {(r["quantity"], r["budget"]): r for r in split(board, (2.0, 32.0))}
    early = found["mse", 2.0]
    assert (early["deduplication"], early["coupling"]) == pytest.approx((2, 1))
    assert found["mse", 32.0]["both"] is None
    assert found["mse", 32.0]["reason"] == "independent_raw: its sweep ends at budget 8"
    tokens = found["tokens", None]
    needed = 4 * np.sqrt(2) - 1, 4 - 1, 2 * 2 ** (1 / 3) - 1
    assert tokens["deduplication"] == pytest.approx(needed[0] / needed[1])
    assert tokens["coupling"] == pytest.approx(needed[1] / needed[2])
    assert tokens["both"] == pytest.approx(tokens["deduplication"] * tokens["coupling"])


def test_differences_are_paired_over_seeds_and_holm_corrected():
    errors = {
        "twice": [[1.0, 0.5, 0.2], [2.0, 0.5, 0.2], [3.0, 0.5, 0.2]],
        "vine": [[2.1, 1.0, 0.9], [3.0, 1.0, 0.8], [4.2, 1.0, 0.9]],
        "rloo": [[5.0, 5.0, 5.0], [5.1, 4.0, 5.5], [4.2, 3.0, 4.9]],
    }
    rows = [
        point(method, seed, tokens, credit, knob=tokens)
        for method, own in errors.items()
        for seed, tokens, credit in squares(own)
    ]
    found = summarise(rows)["leaderboard_differences"]
    by = {(r["method"], r["reference"], r["budget"]): r for r in found}
    row = by["vine", "twice", 2.0]
    gaps = np.log([2.1 / 1, 3 / 2, 4.2 / 3])
    assert row["ratio"] == pytest.approx(np.exp(gaps.mean()))
    half = stats.t.ppf(0.975, 2) * gaps.std(ddof=1) / np.sqrt(3)
    assert row["high"] == pytest.approx(np.exp(gaps.mean() + half))
    assert row["pvalue"] == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    assert by["twice", "vine", 2.0]["ratio"] == pytest.approx(np.exp(-gaps.mean()))
    assert by["rloo", "twice", 50.0]["reason"] == "its sweep ends at budget 8"
    tested = sorted((r for r in found if r["pvalue"] is not None), key=lambda r: r["pvalue"])
    worst = 0.0
    for index, row in enumerate(tested):
        worst = max(worst, min(1.0, (len(tested) - index) * row["pvalue"]))
        assert row["pvalue_holm"] == pytest.approx(worst)


def test_bias_bounds_by_hand():
    """Errors of two groups in a place: 3 and 5 over 4 turns; a second place is empty."""
    world = Bandit(QUICK[0].world, seed=0)
    scored = score_step(world, make("rloo"), num_tasks=3, rollouts=4, step=0)
    sums = place_sums(scored, 2)
    group_error = [scored.error[scored.group == g].sum() for g in range(3)]
    assert sums["place_error"][-1] == pytest.approx(np.sum(group_error))
    assert sums["place_square"][-1] == pytest.approx(np.sum(np.square(group_error)))
    assert sum(sums["place_turns"][:-1]) == sums["place_turns"][-1] == 12
    bias = simultaneous(8.0, 9.0 + 25.0, 2, 3)
    assert bias.mean == 4 and bias.stderr == pytest.approx(1)
    assert bias.half == pytest.approx(stats.t.ppf(1 - 0.025 / 3, 1))


def test_every_group_of_every_step_and_seed_is_a_unit_of_bias(monkeypatch):
    own = {"twice": field.entrants()["twice"]}
    monkeypatch.setattr("simulations.studies.leaderboard.entrants", lambda: own)
    setting = dataclasses.replace(SMALL, num_tasks=3, num_steps=2)
    found = biases([row for seed in range(2) for row in run(setting, seed)])
    assert {row["num_groups"] for row in found} == {3 * 2 * 2}


def test_only_methods_that_claim_it_are_claimed_and_wrong_scale_is_left_out(tables):
    bias = tables["leaderboard_bias"]
    claimed = {row["method"] for row in bias if row["claimed"]}
    assert {"twice", "independent", "vine", "vine_coupled", "twice_augmented"} <= claimed
    assert not claimed & {"rloo", "twice_budget", "twice_variate", "factor", "ppo"}
    assert not {row["method"] for row in bias} & {"grpo", "gigpo", "t2spo"}
    for row in bias:
        inside = max(abs(row["low"]), abs(row["high"])) < row["margin"]
        assert row["equivalent"] == inside


def test_trained_forks_and_shares_are_in_the_gradient():
    world = Chain(SMALL.world, seed=1)
    groups = play_groups(world, num_tasks=2, rollouts=4, step=0)
    plain = credit_groups(world, make("twice", twins=3), groups, step=0)
    scored = score(world, plain)
    np.testing.assert_allclose(
        trained_gradient(world, plain), score_sum(world, scored.place, scored.value), atol=1e-12
    )
    two = credit_groups(world, make("twice", twins=3, two_sided=True), groups, step=0)
    by_hand = np.zeros(world.policy_table().shape)
    for credit in two:
        for episode, values, share in zip(
            credit.episodes, credit.values, credit.share, strict=True
        ):
            for turn, state, action in world.places(episode).T:
                if not np.isnan(values[turn]):
                    weight = values[turn] * share[turn]
                    by_hand[turn, state] -= weight * world.policy_table()[turn, state]
                    by_hand[turn, state, action] += weight
    np.testing.assert_allclose(trained_gradient(world, two), by_hand, atol=1e-12)


def test_twins_shared_across_turns_by_hand_and_twice_without_sharing():
    world = Chain(SMALL.world, seed=1)
    groups = play_groups(world, num_tasks=2, rollouts=4, step=0)
    own = Entry(function=field.twice_shared)
    for share in (0.0, 0.5):
        shared = credit_groups(world, Method("s", own, {"share": share}), groups, step=0)
        plain = credit_groups(world, make("twice"), groups, step=0)
        for one, other in zip(shared, plain, strict=True):
            for episode, value, difference in zip(
                one.episodes, one.values, other.values, strict=True
            ):
                mean = episode.outcome - difference
                after = episode.outcome
                for turn in reversed(range(len(value))):
                    assert value[turn] == pytest.approx(after - mean[turn])
                    after = share * mean[turn] + (1 - share) * after
                if share == 0:
                    np.testing.assert_allclose(value, difference, atol=1e-12)


@pytest.mark.slow
def test_sharing_twins_keeps_credit_unbiased_where_luck_ends_episodes():
    dials = dataclasses.replace(SMALL.world, ends=0.5, density=1.0)
    world = Chain(dials, seed=5)
    total = []
    for step in range(30):
        method = field.OWN["twice_shared"]
        scored = score_step(
            world, Method("s", method, {"share": 0.7}), num_tasks=100, rollouts=4, step=step
        )
        cells = np.zeros((100, *world.policy_table().shape))
        np.add.at(cells, (scored.group, *scored.place), scored.error)
        total.append(cells)
    cells = np.concatenate(total)
    spread = cells.std(axis=0, ddof=1) / np.sqrt(len(cells))
    varies = spread > 1e-12  # where luck plays no part, only rounding is left
    assert varies.sum() > 40
    assert np.abs(cells.mean(axis=0)[varies] / spread[varies]).max() < 4.5
    assert np.abs(cells.mean(axis=0)[~varies]).max() < 1e-12


def test_a_need_is_asked_for_before_anything_is_played():
    entry = Entry(function=lambda group: None, needs=(Need("predicates"),))
    entrant = field.Entrant(method="wanting", knob=None)
    field.OWN["wanting"] = entry
    try:
        assert "predicates" in entrant.refusal(Chain(SMALL.world, seed=0))
    finally:
        del field.OWN["wanting"]
