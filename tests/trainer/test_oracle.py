"""The oracle study: its reference, its views by outcome, its rows, and runs that go on."""

import dataclasses
import json

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from trainer.commands import oracle as commands
from trainer.config import changed
from trainer.oracle.batches import num_finished
from trainer.oracle.config import OracleConfig, batch_tasks, settings_of
from trainer.oracle.methods import ENTRANTS, knobs
from trainer.oracle.reference import FIRST_ALTERNATIVE, reference, references
from trainer.oracle.rows import NUMBERS, coupling_forks, fork_row, point_numbers
from trainer.oracle.study import oracle, outcome_rows
from trainer.oracle.worlds import REWARD, Recorded, Rescored, outcome_of
from trainer.policy import Policy, build_model
from trainer.rollout import Rollout
from trainer.setup import make_rollout
from trainer.tasks.facts import Facts
from trainer.tasks.rows import task_rows
from twinstats import cli
from twinstats.credit import METHODS, assign, make
from twinstats.episodes import FRESH, KEEP, RESAMPLE, SHARED, Fork, Task, group_by_task
from twinstats.errors import UsageError
from twinstats.records import create_run, read, read_run, tables

from .conftest import coin, scripted

SMALL = OracleConfig(episodes=4, rollouts=4, groups=1, group_size=2, largest_knob=2)


class Guess(Facts):
    """The task `facts` where gibberish may be right: `exact_match` by parity, `f1` always."""

    outcomes = ("exact_match", "f1")

    def step(self, text, noise):
        step = super().step(text, noise)
        if "exact_match" not in step.info:
            return step
        is_right = float(sum(text.encode()) % 2)
        info = step.info | {"exact_match": is_right, "f1": 1.0}
        return step._replace(reward=is_right / self.num_parts, info=info)


@pytest.fixture
def guess(monkeypatch):
    monkeypatch.setattr("trainer.setup.make_environment", lambda name: Guess())


def played_into(out, policy, config, *settings, study=SMALL, **options):
    """Runs a study: -> (run folder, its rows of outcomes)."""
    source, own = {"recipe": "demo"}, changed(config, settings)
    return out, oracle(
        own, policy, out, study=study, source=source, started=lambda: "now", **options
    )


@pytest.fixture
def play(tmp_path, policy, config, guess):
    return lambda name, *settings, **options: played_into(
        tmp_path / name, policy, config, *settings, **options
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tokenizer, config):
    """A finished study, to be read only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.setup.make_environment", lambda name: Guess())
        policy = Policy(build_model(config.model, seed=0), tokenizer)
        return played_into(tmp_path_factory.mktemp("whole") / "run", policy, config)


# The reference


def test_the_reference_is_that_of_hand_computed_means():
    one = reference(np.array([[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, np.nan, 0.0]]), 1.0)
    np.testing.assert_allclose(one.value, [1 / 2, 2 / 3])
    np.testing.assert_allclose(one.advantage, [2 / 3 - 1 / 2, 1 - 2 / 3])
    np.testing.assert_array_equal(one.num_rollouts, [4, 3])
    squares = np.array([(1 / 3) / 4, (1 / 3) / 3])  # both samples have variance 1/3
    np.testing.assert_allclose(one.value_stderr, np.sqrt(squares))
    np.testing.assert_allclose(one.stderr, np.sqrt([squares.sum(), squares[1]]))


def test_a_state_with_one_scored_rollout_has_no_reference_nor_has_the_turn_before():
    one = reference(np.array([[0.0, 1.0], [np.nan, 1.0], [1.0, 0.0]]), 0.0)
    np.testing.assert_array_equal(np.isnan(one.value), [False, True, False])
    np.testing.assert_array_equal(np.isnan(one.advantage), [True, True, False])
    np.testing.assert_array_equal(np.isnan(one.stderr), [True, True, False])


def episodes_of(rollout, count=3, turns=3):
    tasks = [Task(str(n), {"turns": turns, "right": "a."}) for n in range(count)]
    return rollout.play(tasks, 2, 0)


def test_the_reference_converges_to_the_exact_advantage_of_a_known_policy():
    rollout, _, _ = scripted(coin)  # every turn says "a." with probability 1/2, on its own
    episodes = episodes_of(rollout)
    found = references(rollout, episodes, [REWARD], rollouts=100)[REWARD]
    said = np.array([[turn.action == (ord("a"), ord(".")) for turn in e.turns] for e in episodes])
    exact = (said - 0.5) / 3
    gaps = np.concatenate([one.advantage for one in found]) - exact.ravel()
    stderr = np.concatenate([one.stderr for one in found])
    assert np.abs(gaps / stderr).max() < 4.5
    assert 0.5 < np.mean((gaps / stderr) ** 2) < 1.8  # the errors are as large as is said
    assert stderr.max() < 0.05


def test_no_method_asks_for_a_fork_of_the_reference():
    rollout, _, _ = scripted(coin)
    asked = []
    play = rollout.fork
    rollout.fork = lambda forks: (asked.append(list(forks)), play(forks))[1]
    groups = group_by_task(episodes_of(rollout), seed=3, step=0)
    for entrant in ENTRANTS.values():
        if "coupling" not in entrant.options:  # which a script has no logits for
            assign(rollout, groups, entrant.build(2))
    used = {fork.alternative for forks in asked for fork in forks}
    asked.clear()
    references(rollout, groups[0].episodes, [REWARD], rollouts=8)
    own = {fork.alternative for forks in asked for fork in forks}
    assert own == set(range(FIRST_ALTERNATIVE, FIRST_ALTERNATIVE + 8)) and not own & used


# Views


def test_what_was_played_is_not_played_again_and_is_what_the_world_played():
    rollout, engine, _ = scripted(coin)
    world, episodes = Recorded(rollout), episodes_of(rollout)
    few = [Fork(one, 0, RESAMPLE, FRESH, alternative=k) for one in episodes for k in (0, 1)]
    first, sampled = world.fork(few), len(engine.keys)
    again = world.fork([*few, *few, Fork(episodes[0], 1)])
    assert len(engine.keys) == sampled + 1  # the new one alone
    assert again[: len(few)] == first and again[len(few) : 2 * len(few)] == first
    alone = rollout.fork(few)
    assert [one.turns[-1].action for one in alone] == [one.turns[-1].action for one in first]


def test_forks_that_differ_in_coupling_or_in_equal_tails_are_played_each():
    rollout, _, _ = scripted(coin)
    (episode, _) = episodes_of(rollout, count=1)
    asked = []
    play, rollout.fork = rollout.fork, lambda forks: (asked.extend(forks), play(forks))[1]
    world = Recorded(rollout)
    for skips in (None, False, True, None):
        world.fork([Fork(episode, 0, RESAMPLE, FRESH, skip_equal=skips)])
    assert [fork.skip_equal for fork in asked] == [None, True]  # fresh luck plays unless told
    rollout.fork = lambda forks: (asked.extend(forks), [episode] * len(forks))[1]
    world.fork([Fork(episode, 1), Fork(episode, 1, coupling="maximal"), Fork(episode, 1)])
    assert [fork.coupling for fork in asked[2:]] == ["gumbel", "maximal"]


def test_a_smaller_knob_costs_and_says_what_it_does_alone():
    """Twins whose decisions are equal share a tail, which is paid once: by the first of them."""
    for name in ("twice", "twice_two_sided", "twice_draws", "vine_coupled", "treerl", "at2po"):
        entrant = ENTRANTS[name]
        rollout, _, _ = scripted(coin)
        groups = group_by_task(episodes_of(rollout, count=1), seed=3, step=0)
        view = Rescored(Recorded(rollout), REWARD)
        copies = [[view.view(e) for e in group.episodes] for group in groups]
        mine = group_by_task([e for own in copies for e in own], seed=3, step=0)
        for knob in knobs(4):
            together = assign(view, mine, entrant.build(knob))
            alone = assign(rollout, groups, entrant.build(knob))
            for one, other in zip(together, alone, strict=True):
                for a, b in zip(one.values, other.values, strict=True):
                    np.testing.assert_array_equal(a, b)
                costs = [[f.sampled for f in credit.info["forks"]] for credit in (one, other)]
                assert costs[0] == costs[1]


def facts_rollout(policy, config):
    rollout = make_rollout(policy, config)
    tasks = [Task(row.id, row.info) for row in task_rows("test", 1, key="0")[:2]]
    return rollout, rollout.play(tasks, 2, 0)


def test_a_view_has_its_own_outcome_and_so_have_its_forks(policy, config, guess):
    rollout, episodes = facts_rollout(policy, config)
    world = Recorded(rollout)
    for name, expected in (("exact_match", None), ("f1", 1.0)):
        view = Rescored(world, name)
        copies = [view.view(episode) for episode in episodes]
        twins = view.fork([Fork(copy, 0, RESAMPLE, SHARED, alternative=3) for copy in copies])
        for copy, twin, episode in zip(copies, twins, episodes, strict=True):
            assert copy.outcome == (episode.outcome if expected is None else expected)
            assert copy.outcome == pytest.approx(sum(turn.reward for turn in copy.turns))
            assert twin.fork.episode is copy
        if expected is not None:
            assert {twin.outcome for twin in twins} == {expected}
    (deeper,) = view.fork([Fork(twins[0], twins[0].num_turns - 1, RESAMPLE, FRESH)])
    assert deeper.fork.episode is twins[0] and deeper.outcome == 1.0


def test_an_outcome_counts_parts_that_were_not_reached_as_zero(policy, config, guess):
    rollout, episodes = facts_rollout(policy, config)
    (longer,) = rollout.play([Task("x", episodes[0].task.info | {"parts": 2})], 1, 1)
    assert outcome_of(longer, "f1") == 0.5
    assert outcome_of(longer, REWARD) == longer.outcome


def test_a_failed_episode_has_no_outcome_in_any_view():
    rollout, _, _ = scripted(coin, drift=lambda turn, shown: f"{shown}{next(ticks)}")
    ticks = iter(range(1000))
    (episode,) = rollout.play([Task("x", {"turns": 3, "right": "a."})], 1, 0)
    (failed,) = rollout.fork([Fork(episode, 2)])
    assert failed.outcome is None
    assert outcome_of(failed, REWARD) is None and outcome_of(failed, "f1") is None


# Rows


def test_point_numbers_are_those_computed_by_hand():
    rollout, _, _ = scripted(coin)
    episodes = episodes_of(rollout, count=1, turns=2)
    groups = group_by_task(episodes, seed=3, step=0)
    known = {
        episode: reference(np.array([[0.0, 1.0], [1.0, 1.0]]), episode.outcome)
        for episode in episodes
    }
    (credit,) = assign(rollout, groups, make("vine", rollouts=1))
    credit.values[0][1] = np.nan
    row = point_numbers([credit], known)
    truth = np.array([0.5, *known[episodes[1]].advantage])
    value = np.array([credit.values[0][0], *credit.values[1]])
    assert row["num_turns"] == 3 and row["num_groups"] == 1
    assert row["error"] == pytest.approx((value - truth).sum())
    assert row["error_square"] == pytest.approx(((value - truth) ** 2).sum())
    assert row["error_square"] == pytest.approx(
        row["credit_square"] - 2 * row["credit_truth"] + row["truth_square"]
    )
    assert row["truth_noise"] == pytest.approx(2 * 0.25)  # (1/2) / 2 at the first turns alone
    assert row["base_tokens"] == sum(episode.sampled for episode in episodes)
    assert row["auxiliary_tokens"] == sum(fork.sampled for fork in credit.info["forks"]) > 0
    assert row["tokens"] == row["base_tokens"] + row["auxiliary_tokens"]


@pytest.mark.parametrize("lacking", ["reference", "reference and this method's credit"])
def test_a_batch_without_a_reference_or_without_credit_has_a_reason_and_no_numbers(lacking):
    rollout, _, _ = scripted(coin)
    episodes = episodes_of(rollout, count=1, turns=2)
    scored = np.full((2, 3), np.nan) if lacking == "reference" else np.array([[0.0, 1.0]] * 2)
    known = {episode: reference(scored, episode.outcome) for episode in episodes}
    (credit,) = assign(rollout, group_by_task(episodes, seed=3, step=0), make("vine", rollouts=1))
    if lacking != "reference":
        credit.values[:] = [np.full(2, np.nan)] * 2
    row = point_numbers([credit], known)
    assert row.pop("reason") == f"no turn of the batch has a {lacking}"
    assert row == dict.fromkeys(NUMBERS)


def test_a_study_goes_on_past_a_batch_without_a_reference(play, monkeypatch):
    def blind(world, episodes, outcomes, *, rollouts):
        first = episodes[0].step == 0
        count = 1 if first else rollouts  # one rollout has no standard error
        return references(world, episodes, outcomes, rollouts=count)

    few = {name: ENTRANTS[name] for name in ("vine", "twice")}
    monkeypatch.setattr("trainer.oracle.study.ENTRANTS", few)
    monkeypatch.setattr("trainer.oracle.study.references", blind)
    out, _ = play("blind", study=dataclasses.replace(SMALL, largest_knob=1))
    points = read(out, "oracle_points").collect()
    first = points.filter(pl.col("seed") == 0)
    assert set(first["reason"]) == {"no turn of the batch has a reference"}
    rest = points.filter(pl.col("seed") > 0)
    assert rest["reason"].is_null().all() and (rest["num_turns"] > 0).all() and len(rest)


def test_the_corrected_error_is_that_against_the_exact_advantage():
    """Averaged over references, error_square - truth_noise is the error against the truth."""
    rng = np.random.default_rng(0)
    exact, credit = rng.normal(size=(2, 40))
    gaps = []
    for _ in range(400):
        noise = rng.uniform(0.1, 1, size=40)
        truth = exact + noise * rng.normal(size=40)
        gaps.append(((credit - truth) ** 2).sum() - (noise**2).sum())
    error = ((credit - exact) ** 2).sum()
    assert abs(np.mean(gaps) - error) < 4 * np.std(gaps) / 20


def test_a_fork_row_tells_how_long_two_tails_stay_together():
    words = {(0, 0): "a.", (0, 1): "bb.", (0, 2): "ccc."}

    def choose(session, key, index):
        fork = session._fork
        if fork is None:
            return words[0, index]
        if fork.luck is FRESH:
            return ("x.", "bb.", "ccd.")[index]
        return ("x.", "bb.", "ccc.")[index]

    rollout, _, _ = scripted(choose)
    (episode,) = rollout.play([Task("x", {"turns": 3, "right": "a."})], 1, 0)
    forks = [
        Fork(episode, 0, RESAMPLE, SHARED),
        Fork(episode, 0, RESAMPLE, FRESH),
        Fork(episode, 2, RESAMPLE, FRESH),
        Fork(episode, 0, KEEP, SHARED),
    ]
    played = rollout.fork(forks)
    twin, control, last, null = map(fork_row, played)
    shorter = dataclasses.replace(played[0], turns=played[0].turns[:2])
    assert fork_row(shorter)["first_differing"] == len("bb.")  # where it ends
    assert twin["kind"] == "twin" and twin["luck"] == "shared" and not twin["equal"]
    assert (twin["first_differing"], twin["agree_turns"]) == (None, 1.0)
    assert control["kind"] == "control" and control["luck"] == "fresh"
    assert (control["first_differing"], control["agree_turns"]) == (5, 0.5)
    assert (last["first_differing"], last["agree_turns"], last["tail_tokens"]) == (None, None, 0)
    assert null["kind"] == "null" and null["equal"] and null["tokens"] == 5
    assert (twin["tail_tokens"], twin["tokens"], twin["slot"]) == (7, 9, 0)
    assert (twin["factual"], twin["fork"]) == (pytest.approx(1 / 3), 0.0)


def test_coupling_forks_are_twins_with_their_controls_and_nulls_where_there_is_a_tail():
    rollout, _, _ = scripted(coin)
    (episode, _) = episodes_of(rollout, count=1)
    forks = coupling_forks(episode, 2, "gumbel")
    drawn = [fork for fork in forks if fork.action is RESAMPLE]
    for luck in (SHARED, FRESH):
        places = [(fork.turn, fork.alternative) for fork in drawn if fork.luck is luck]
        assert places == [(t, k) for t in range(3) for k in (0, 1)]
    assert [fork.turn for fork in forks if fork.action is KEEP] == [0, 1]
    maximal = coupling_forks(episode, 2, "maximal")
    assert len(maximal) == 6 and {fork.coupling for fork in maximal} == {"maximal"}


# Whole studies


def test_a_study_writes_every_table_with_every_method_knob_and_outcome(whole):
    out, rows = whole
    assert tables(out) == [
        "metrics",
        "oracle_forks",
        "oracle_outcomes",
        "oracle_points",
        "oracle_turns",
    ]
    points = read(out, "oracle_points").collect()
    assert set(points["method"]) == set(ENTRANTS)
    assert set(points["outcome"]) == {"exact_match", "f1"} and set(points["seed"]) == {0, 1}
    assert points.filter(pl.col("reason").is_null())["knob"].unique().sort().to_list() == [1, 2]
    for name, entrant in ENTRANTS.items():
        own = points.filter(pl.col("method") == name)
        entry = METHODS[entrant.method]
        assert set(own["estimates_advantage"]) == {entry.estimates_advantage}
        assert set(own["reconstructed"]) == {entry.reconstructed}
    exact = points.filter((pl.col("outcome") == "exact_match") & (pl.col("method") == "vine"))
    assert (exact["error_square"] > 0).all() and (exact["truth_noise"] > 0).all()
    rising = exact.filter(pl.col("seed") == 0).sort("knob")["auxiliary_tokens"].to_list()
    assert rising[1] > 1.5 * rising[0] > 0
    turns = read(out, "oracle_turns").collect()
    assert set(turns["num_rollouts"]) == {4} and turns["reference"].is_not_null().all()
    assert turns["value"].is_between(0, 1).all()
    forks = read(out, "oracle_forks").collect()
    assert {"twin", "control", "null"} <= set(forks["kind"])
    nulls = forks.filter(pl.col("kind") == "null")
    assert nulls["first_differing"].is_null().all() and (nulls["factual"] == nulls["fork"]).all()
    assert {row["outcome"]: row["identified"] for row in rows} == {"exact_match": True, "f1": False}


def test_an_outcome_without_variance_is_reported_as_not_identified(whole):
    told = {row["outcome"]: row for row in whole[1]}
    assert told["f1"]["mean"] == 1.0 and told["f1"]["variance"] == 0
    assert "no two rollouts" in told["f1"]["reason"]
    assert told["exact_match"]["reason"] is None and told["exact_match"]["variance"] > 0
    assert told["exact_match"]["num_episodes"] == 4


def frames(out):
    return {
        table: read(out, table).collect().drop("run") for table in tables(out) if table != "metrics"
    }


def test_a_study_has_the_same_numbers_however_the_engine_batches(play):
    """Up to rounding, as entropies are float32: at2po weighs by them."""
    few = OracleConfig(episodes=2, rollouts=2, groups=1, group_size=2, largest_knob=1)
    slow = ("rollout.max_batch=3", "engine.drafts=false", "engine.cache_mib=0")
    one, other = play("one", *slow, study=few)[0], play("other", study=few)[0]
    for table, frame in frames(one).items():
        assert_frame_equal(frame, frames(other)[table], rel_tol=1e-5, abs_tol=1e-6)


class KilledError(Exception):
    pass


def test_a_killed_study_goes_on_with_its_first_unfinished_batch(whole, play, tmp_path):

    def killed(done, total, setting):
        if done == 1:
            raise KilledError

    with pytest.raises(KilledError):
        play("killed", on_batch=killed)
    played = []
    with pytest.raises(KilledError):  # the first batch is not played again
        play("killed", resume=True, on_batch=killed)
    out = tmp_path / "killed"
    (out / "oracle_turns" / "step-00000001.parquet").write_bytes(b"half")
    play("killed", resume=True, on_batch=lambda done, total, setting: played.append(done))
    assert played == [1]
    for table, frame in frames(whole[0]).items():
        assert_frame_equal(frame, frames(out)[table])
    assert read_run(out)["finished"] == "now"


def test_a_study_is_not_resumed_with_another_configuration(whole, policy, config):
    other = dataclasses.replace(SMALL, rollouts=5)
    with pytest.raises(UsageError, match=r"oracle.rollouts \(4 -> 5\)"):
        played_into(whole[0], policy, config, study=other, resume=True)
    with pytest.raises(UsageError, match="already exists"):
        played_into(whole[0], policy, config)


def test_a_method_whose_forks_are_refused_has_a_row_with_the_reason(play, monkeypatch):
    fork = Rollout.fork

    def refuse(self, forks):
        if any(one.coupling == "maximal" for one in forks):
            raise UsageError("no such coupling here")
        return fork(self, forks)

    monkeypatch.setattr(Rollout, "fork", refuse)
    out, _ = play("refused", study=dataclasses.replace(SMALL, episodes=2, largest_knob=1))
    points = read(out, "oracle_points").collect()
    refused = points.filter(pl.col("reason").is_not_null())
    assert set(refused["method"]) == {"twice_maximal"} and len(refused) == 2
    assert set(refused["reason"]) == {"no such coupling here"}
    assert refused["tokens"].is_null().all() and refused["knob"].is_null().all()
    assert "maximal" not in set(read(out, "oracle_forks").collect()["kind"])


def test_the_free_text_task_has_a_study_of_three_outcomes(policy, config, tmp_path):
    few = OracleConfig(episodes=2, rollouts=2, groups=1, group_size=2, largest_knob=1)
    settings = ("task.name=text", "rollout.max_turn_tokens=3", "model.max_length=500")
    out, rows = played_into(tmp_path / "run", policy, config, *settings, study=few)
    points = read(out, "oracle_points").collect()
    assert set(points["outcome"]) == {"exact_match", "f1", "last_line"}
    assert set(points["world"]) == {"text"} and set(points["horizon"]) == {3}
    assert {row["outcome"]: row["identified"] for row in rows}["exact_match"] is False


def test_settings_are_one_part_and_all_parts(config):
    (one,) = settings_of(config)
    assert (one.name, one.horizon) == ("facts, 1 part", 3)
    few, many = settings_of(changed(config, ["task.parts=4"]))
    assert (few, many.name, many.horizon) == (one, "facts, 4 parts", 12)
    assert (few.config.task.parts, many.config.task.parts) == (1, 4)


def test_batches_hold_different_test_tasks_that_depend_on_the_seed_alone(config):
    (setting,) = settings_of(config)
    study = OracleConfig(episodes=20, groups=2, group_size=4)
    batches = batch_tasks(setting, study)
    assert [len(batch) for batch in batches] == [2, 2, 2]
    ids = [task.id for batch in batches for task in batch]
    assert len(set(ids)) == 6 and {t.info["split"] for b in batches for t in b} == {"test"}
    longer = batch_tasks(setting, OracleConfig(episodes=40, groups=2, group_size=4))
    assert [task.id for batch in longer for task in batch][:6] == ids
    with pytest.raises(UsageError, match=r"at most \d+ tasks"):
        batch_tasks(setting, OracleConfig(episodes=9999))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rollouts", 1, "at least 2, got 1"),
        ("rollouts", 40000, "at most 32766"),
        ("group_size", 1, "at least 2"),
        ("episodes", 0, "at least 1"),
        ("largest_knob", 19, "at most 18"),
    ],
)
def test_what_cannot_be_measured_is_refused(field, value, message):
    with pytest.raises(UsageError, match=f"`oracle.{field}` must be {message}"):
        OracleConfig(**{field: value})


def test_unfinished_batches_are_found_by_their_points(tmp_path):
    run = create_run(tmp_path / "r", command="x", configuration={}, seed=0, started="now")
    assert num_finished(run, 3, table="oracle_points") == 0
    for step in (0, 2):
        run.write("oracle_points", step, [{"a": 1}])
    assert num_finished(run, 3, table="oracle_points") == 1
    run.write("oracle_points", 1, [{"a": 1}])
    assert num_finished(run, 3, table="oracle_points") == 3


def test_an_episode_without_reference_variance_leaves_outcomes_unidentified(tmp_path):
    run = create_run(tmp_path / "r", command="x", configuration={}, seed=0, started="now")
    row = {"setting": "s", "outcome": "o", "episode": "0/0", "factual": 0.5, "num_rollouts": 4}
    run.write("oracle_turns", 0, [row | {"value_stderr": None}])
    assert outcome_rows(run)[0]["identified"] is False
    run.write("oracle_turns", 1, [row | {"value_stderr": 0.1}])
    (told,) = outcome_rows(run)
    assert told["identified"] and told["variance"] == pytest.approx(0.04)


# The command


@pytest.fixture
def called(monkeypatch, capsys, policy, config, guess):
    monkeypatch.setattr(commands, "warmed", lambda given: policy)
    monkeypatch.setattr(commands, "recipe", lambda name: config)

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            cli.main(["oracle", *map(str, arguments)])
        return (stop.value.code, *capsys.readouterr())

    return run


SIZES = [
    word
    for one in ("episodes=2", "rollouts=2", "groups=1", "group_size=2", "largest_knob=1")
    for word in ("--set", f"oracle.{one}")
]


def test_the_command_plays_a_recipe_and_a_run(called, tmp_path, capsys):
    code, told, error = called("demo", "--out", tmp_path / "o", *SIZES)
    assert (code, error) == (0, "")
    assert "facts, 1 part, f1: mean 1.000 of 2 episodes; not identified: no two" in told
    kept = read_run(tmp_path / "o")["configuration"]
    assert kept["oracle"]["rollouts"] == 2 and kept["policy"] == {"recipe": "demo"}
    with pytest.raises(SystemExit):
        small = ["--set", "length.steps=1", "--set", "evaluation.questions=4"]
        cli.main(["train", "demo", "--out", str(tmp_path / "t"), *small])
    capsys.readouterr()
    code, _, error = called(tmp_path / "t", "--out", tmp_path / "p", *SIZES)
    assert (code, error) == (0, "")
    told = json.loads((tmp_path / "p" / "run.json").read_text())["configuration"]["policy"]
    assert told == {"run": "t", "checkpoint": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dmo"], "Unknown recipe 'dmo'"),
        (["demo", "--set", "oracle.rolouts=3"], "Did you mean 'oracle.rollouts'"),
        (["demo", "--set", "oracle.rollouts=1"], "`oracle.rollouts` must be at least 2"),
        (["demo", "--set", "oracle.episodes=99999"], "must need at most"),
        (["demo", "--checkpoint", "3"], "`--checkpoint` is for a run folder"),
        (["demo", "--resume"], "is no run"),
    ],
)
def test_wrong_usage_is_one_sentence(called, tmp_path, arguments, message, monkeypatch):
    if arguments[0] == "dmo":
        from trainer import recipes

        monkeypatch.setattr(commands, "recipe", recipes.recipe)
    code, _, error = called(*arguments, "--out", tmp_path / "o")
    assert code == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "o").exists()
