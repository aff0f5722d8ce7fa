"""The training loop: the same seed gives the same run, also when it was killed and resumed."""

import dataclasses
import sys
import time
import types

import numpy as np
import polars as pl
import pytest
import torch

from trainer.config import changed
from trainer.learning.learner import Learner
from trainer.loop import train as module
from trainer.loop.checkpoint import Checkpoint, load_checkpoint, newest
from trainer.loop.trackers import _digest
from trainer.loop.train import train, train_tasks
from trainer.loop.training import load_weights
from trainer.policy import Policy, build_model
from trainer.tasks import questions
from trainer.tasks.questions import data_fingerprint
from trainer.tasks.reward import load_reward
from twinstats.errors import UsageError
from twinstats.records import Run, parts, read, read_run

METHODS = ("rloo", "independent", "twice")
TABLES = (
    *("metrics", "episodes", "turns", "pairs", "allocations", "credit", "texts"),
    *("evaluations", "answers", "scores"),
)


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def play(config, tokenizer, parity):
    """Trains a fresh random policy: play(out, settings, resume, on_step) -> the run's folder."""

    def started():
        return "2025-01-01T00:00:00+00:00"

    def play(out, *settings, resume=False, fallback=False, on_step=None, **fields):
        own = changed(dataclasses.replace(config, **fields), settings)
        policy = Policy(build_model(own.model, seed=0), tokenizer)
        how = {"resume": resume, "fallback": fallback, "on_step": on_step}
        return train(own, policy, out, started=started, **how)

    return play


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """One finished run a method, made once: undisturbed(play, method) -> tables and weights."""
    found = {}

    def undisturbed(play, method):
        if method not in found:
            out = tmp_path_factory.mktemp("runs") / method
            found[method] = results(play(out, f"credit.method={method}"))
        return found[method]

    return undisturbed


def results(run):
    """All tables but for times, and the final weights."""
    return tables(run), load_checkpoint(newest(run / "checkpoints")).model


def tables(run):
    found = {}
    for table in TABLES:
        if (run / table).is_dir():
            frame = read(run, table).drop("run").collect()
            if table == "metrics":
                frame = frame.filter(~pl.col("name").str.contains("^(time|memory)/"))
            found[table] = frame
    return found


def assert_same(found, expected):
    assert found[0].keys() == expected[0].keys()
    for table, frame in expected[0].items():
        assert found[0][table].equals(frame), table
    assert found[1].keys() == expected[1].keys()
    assert all(torch.equal(found[1][name], value) for name, value in expected[1].items())


def metric(run, name):
    frame = read(run, "metrics").filter(pl.col("name") == name).sort("step").collect()
    return frame["value"].to_list()


# The same seed


@pytest.mark.parametrize("method", METHODS)
def test_one_seed_gives_one_run(play, undisturbed, tmp_path, method):
    torch.manual_seed(int(time.time()))  # the global generators have no say
    np.random.seed(None)  # noqa: NPY002
    again = results(play(tmp_path / "again", f"credit.method={method}"))
    assert_same(again, undisturbed(play, method))


def test_another_seed_gives_another_run(play, undisturbed, tmp_path):
    other = results(play(tmp_path / "other", "seed=6"))
    expected = undisturbed(play, "rloo")
    assert not other[0]["texts"].equals(expected[0]["texts"])


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_one_that_learns_and_forks(undisturbed, play, policy, method):
    """Or all the comparisons here would be of nothing."""
    found, weights = undisturbed(play, method)
    start = dict(policy.model.named_parameters())
    assert all(not torch.equal(weights[name], start[name]) for name in weights)
    norms = found["metrics"].filter(pl.col("name") == "loss/gradient_norm")["value"]
    assert len(norms) == 4 and (norms > 0).sum() >= 2
    if method == "rloo":
        assert "pairs" not in found
        return
    pairs = found["pairs"]
    assert len(pairs) > 8 and len(found["allocations"]) > 20
    assert (pairs["factual_outcome"] != pairs["twin_outcome"]).any()
    prices = found["allocations"].filter(pl.col("step") > 1)["price"]
    assert (prices > 0).all()  # the budget has learned from the step before


# Killed and resumed


def resumed(play, out, method, kill):
    with pytest.raises(Killed):
        play(out, f"credit.method={method}", on_step=kill)
    return results(play(out, f"credit.method={method}", resume=True))


@pytest.mark.parametrize(
    ("method", "step"),
    [("rloo", 3), ("independent", 3), ("twice", 1), ("twice", 2), ("twice", 3), ("twice", 4)],
)
def test_a_run_that_is_killed_after_a_step_and_resumed_is_the_undisturbed_one(
    play, undisturbed, tmp_path, method, step
):
    def kill(done, metrics):
        if done == step:
            raise Killed

    found = resumed(play, tmp_path / "run", method, kill)
    assert_same(found, undisturbed(play, method))


@pytest.mark.parametrize("writes", [2, 6, 15, 20])
def test_a_run_that_is_killed_while_it_logs_is_the_undisturbed_one(
    play, undisturbed, tmp_path, monkeypatch, writes
):
    plain, count = Run.write, []

    def write(self, table, step, rows):
        count.append(table)
        if len(count) == writes:
            raise Killed
        plain(self, table, step, rows)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Run, "write", write)
        play(tmp_path / "run", "credit.method=twice")
    found = results(play(tmp_path / "run", "credit.method=twice", resume=True))
    assert_same(found, undisturbed(play, "twice"))


def test_two_kills_are_survived_like_one(play, undisturbed, tmp_path):
    def kill(done, metrics):
        raise Killed

    out = tmp_path / "run"
    for resume in (False, True, True):
        with pytest.raises(Killed):
            play(out, "credit.method=twice", resume=resume, on_step=kill)
    found = results(play(out, "credit.method=twice", resume=True))
    assert_same(found, undisturbed(play, "twice"))


def test_a_finished_run_resumes_to_itself(play, undisturbed, tmp_path):
    out = play(tmp_path / "run", "credit.method=twice")
    seen = []
    play(out, "credit.method=twice", resume=True, on_step=lambda *_: seen.append(1))
    assert not seen
    assert_same(results(out), undisturbed(play, "twice"))


# A longer run


def of_steps(found):
    """Tables and weights without the evaluations, which a longer run has one more of."""
    kept, weights = dict(found[0]), found[1]
    for table in ("evaluations", "answers", "scores"):
        kept.pop(table, None)
    kept["metrics"] = kept["metrics"].filter(~pl.col("name").str.starts_with("eval/"))
    return kept, weights


@pytest.mark.parametrize("limit", ["steps", "total_tokens"])
@pytest.mark.parametrize("method", METHODS)
def test_a_longer_run_is_the_undisturbed_one_but_for_an_evaluation_more(
    play, undisturbed, tmp_path, method, limit
):
    own, longer = f"credit.method={method}", "length.steps=4"
    short = "length.steps=2"
    if limit == "total_tokens":
        totals = undisturbed(play, method)[0]["metrics"]
        totals = totals.filter(pl.col("name") == "train/total_tokens").sort("step")["value"]
        short, longer = (f"length.total_tokens={int(totals[step])}" for step in (1, 3))
    out = play(tmp_path / "run", own, short)
    assert len(metric(out, "train/total_tokens")) == 2 and read_run(out)["finished"]
    play(out, own, longer, resume=True)
    assert_same(of_steps(results(out)), of_steps(undisturbed(play, method)))
    scores = read(out, "metrics").filter(pl.col("name") == "eval/exact_match_share").collect()
    assert sorted(scores["step"]) == [0, 2, 4]


def test_a_longer_run_tells_its_length_and_that_it_is_not_finished(play, tmp_path, config):
    out = play(tmp_path / "run", "length.steps=1")
    before, seen = read_run(out), []
    play(out, "length.steps=2", resume=True, on_step=lambda *_: seen.append(read_run(out)))
    assert seen[0]["configuration"]["length"] == {"steps": 2, "total_tokens": None}
    assert seen[0]["finished"] is None and read_run(out)["finished"]
    play(out, "length.steps=3", resume=True)
    told = read_run(out)
    assert told["configuration"]["length"]["steps"] == 3
    assert _digest(told) == _digest(before)  # to services it is the same run


def test_a_run_is_never_shorter_than_what_it_has_done(play, tmp_path):
    out = play(tmp_path / "run", "length.steps=2")
    before, done = read_run(out), int(metric(out, "train/total_tokens")[-1])
    for settings, message in (
        (["length.steps=1"], "`length.steps` must be above the 2 that .* has done, got 1"),
        (
            ["length.steps=9", f"length.total_tokens={done}"],
            f"`length.total_tokens` must be above the {done} that .* has done, got {done}",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            play(out, *settings, resume=True)
    assert read_run(out) == before


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_rate_that_depends_on_the_length_keeps_it(play, tmp_path, schedule):
    own = f"optimizer.schedule={schedule}"
    out = play(tmp_path / "run", own, "length.steps=1")
    with pytest.raises(UsageError, match=rf"length.steps \(1 -> 2\): with `{own}` the rate"):
        play(out, own, "length.steps=2", resume=True)
    play(out, own, "length.steps=1", resume=True)


def test_the_replay_flag_is_taken_up(play, tmp_path, monkeypatch):
    def kill(done, metrics):
        if done == 3:
            raise Killed

    made = []
    plain = module.make_rollout

    def make_rollout(*arguments):
        made.append(plain(*arguments))
        made[-1].exact_replay = len(made) > 1  # a null twin of the first run disagreed
        return made[-1]

    monkeypatch.setattr(module, "make_rollout", make_rollout)
    with pytest.raises(Killed):
        play(tmp_path / "run", on_step=kill)
    play(tmp_path / "run", resume=True)
    assert not made[1].exact_replay


# What is refused


def test_a_changed_configuration_is_refused_and_named(play, tmp_path):
    out = play(tmp_path / "run", "length.steps=1")
    for setting in ("rollout.groups=1", "seed=9", "credit.budget=none"):
        path = setting.partition("=")[0]
        settings = ["length.steps=1", setting]
        with pytest.raises(UsageError, match=f"another configuration: {path} "):
            play(out, *settings, resume=True)


def test_changed_data_are_refused(play, tmp_path, monkeypatch):
    out = play(tmp_path / "run", "length.steps=1")
    documents = questions.documents()
    other = (dataclasses.replace(documents[0], text="changed"), *documents[1:])
    before = data_fingerprint()
    monkeypatch.setattr(questions, "documents", lambda: other)
    assert data_fingerprint() != before
    with pytest.raises(UsageError, match="step-00000001 was made with other questions"):
        play(out, "length.steps=1", resume=True)


def test_an_existing_folder_is_refused_and_left_as_it_was(play, tmp_path):
    out = play(tmp_path / "run", "length.steps=1")
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    with pytest.raises(UsageError, match="already exists.*--resume"):
        play(out, "length.steps=1")
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


def test_what_does_not_exist_cannot_be_resumed(play, tmp_path):
    with pytest.raises(UsageError, match="is no run"):
        play(tmp_path / "run", resume=True)


def test_a_method_that_cannot_run_is_refused_before_anything_is_written(play, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(UsageError, match="Unknown credit method 'twce'.*'twice'"):
        play(out, "credit.method=twce")
    with pytest.raises(UsageError, match="`rollout.group_size` must be at least 2, got 1"):
        play(out, "rollout.group_size=1")
    assert not out.exists()


def test_a_policy_that_answers_too_little_is_refused(play, tmp_path):
    with pytest.raises(UsageError, match="below `warmup.minimum_exact_match` 0.99: more `warmup"):
        play(tmp_path / "run", "warmup.minimum_exact_match=0.99")


@pytest.fixture
def penalty(monkeypatch):
    """A reward of the user's that is never positive, by its path."""
    module = types.ModuleType("own_penalty")
    module.length = lambda prompts, completions, **columns: -float(len(completions[0]))
    monkeypatch.setitem(sys.modules, "own_penalty", module)
    yield "own_penalty:length"
    load_reward.cache_clear()


def test_exact_match_is_what_is_refused_whatever_a_reward_of_ones_own_pays(play, tmp_path, penalty):
    with pytest.raises(UsageError, match="answers 0.000 of the test questions.*below"):
        play(tmp_path / "run", f"reward={penalty}", "warmup.minimum_exact_match=0.01")
    run = play(tmp_path / "run", f"reward={penalty}", "length.steps=1")
    assert metric(run, "eval/exact_match_share") == [0.0, 0.0]
    paid = metric(run, "eval/outcome_share")
    assert max(paid) < 0
    best = 0 if paid[0] >= paid[1] else 1
    assert load_checkpoint(newest(run / "checkpoints")).state["best"] == {
        "step": best,
        "score": paid[best],
    }


def test_where_a_task_tells_no_exact_match_no_policy_is_refused(
    play, tmp_path, penalty, monkeypatch
):
    monkeypatch.delattr("trainer.tasks.facts.Facts.outcomes")
    settings = (f"reward={penalty}", "warmup.minimum_exact_match=0.99", "length.steps=1")
    run = play(tmp_path / "run", *settings)
    assert max(metric(run, "eval/outcome_share")) < 0
    assert metric(run, "eval/exact_match_share") == []


def test_a_damaged_checkpoint_is_not_taken_for_none(play, tmp_path):
    out = play(tmp_path / "run", "length.steps=1")
    (newest(out / "checkpoints") / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is missing or damaged"):
        play(out, "length.steps=1", resume=True)
    assert metric(out, "train/total_tokens")  # nothing was thrown away


# What is logged


def test_tokens_are_counted_once(play, tmp_path):
    run = play(tmp_path / "run", "credit.method=twice", "credit.budget=2")
    episodes = read(run, "episodes").collect()
    for step, sampled, auxiliary in zip(
        (1, 2, 3, 4),
        metric(run, "train/sampled_tokens"),
        metric(run, "train/auxiliary_tokens"),
        strict=True,
    ):
        own = episodes.filter(pl.col("step") == step)
        assert sampled == own.filter(pl.col("parent").is_null())["sampled"].sum()
        assert auxiliary == own.filter(pl.col("parent").is_not_null())["sampled"].sum()
    total = np.cumsum(metric(run, "train/sampled_tokens")) + np.cumsum(
        metric(run, "train/auxiliary_tokens")
    )
    assert metric(run, "train/total_tokens") == total.tolist()
    assert sum(metric(run, "train/auxiliary_tokens")) > 0


def test_null_twins_of_a_run_agree(play, tmp_path):
    run = play(tmp_path / "run", "credit.method=twice", "credit.budget=4", "credit.null=1")
    assert sum(filter(None, metric(run, "pairs/null_count"))) > 0
    assert not any(metric(run, "pairs/null_token_disagreements_count"))
    assert not any(metric(run, "pairs/null_outcome_disagreements_count"))
    assert max(metric(run, "engine/logprob_gap_nats")) < 1e-4


def test_training_ends_when_the_tokens_are_used_up(play, tmp_path):
    run = play(tmp_path / "run", "length.total_tokens=150", "length.steps=50")
    totals = metric(run, "train/total_tokens")
    assert totals[-1] >= 150 and all(total < 150 for total in totals[:-1])
    assert newest(run / "checkpoints").name == f"step-{len(totals):08d}"
    assert len(metric(run, "eval/exact_match_share")) == 2


def test_a_policy_that_strays_too_far_is_saved_and_stopped(play, tmp_path):
    settings = ("loss.max_kl=1e-9", "loss.kl=k3", "checkpoint.every=4")
    with pytest.raises(RuntimeError, match="Step 2 was saved.*above `loss.max_kl` 1e-09"):
        play(tmp_path / "run", *settings)
    assert load_checkpoint(newest(tmp_path / "run" / "checkpoints")).step == 2
    assert (
        metric(tmp_path / "run", "loss/kl_nats")[0]
        < 1e-9
        < metric(tmp_path / "run", "loss/kl_nats")[1]
    )


def test_a_gradient_that_is_not_finite_is_saved_and_stops_and_a_resume_passes_over_it(
    play, tmp_path, monkeypatch
):
    run, plain, norms = tmp_path / "run", Learner._clipped, iter([1.0, np.nan])
    monkeypatch.setattr(Learner, "_clipped", lambda own: next(norms, None) or plain(own))
    with pytest.raises(RuntimeError, match="Step 2 was saved.*a gradient is not finite.*rate"):
        play(run, "checkpoint.every=4")
    kept = load_checkpoint(newest(run / "checkpoints"))
    assert kept.step == 2 and len(parts(run, "episodes")) == 2
    assert metric(run, "loss/refused_updates_count") == [0, 1]
    play(run, "checkpoint.every=4", resume=True)
    assert metric(run, "loss/refused_updates_count") == [0, 1, 0, 0]


def test_evaluations_come_when_they_are_asked_for(play, tmp_path):
    run = play(tmp_path / "run", "evaluation.every=2")
    frame = read(run, "metrics").filter(pl.col("name") == "eval/exact_match_share").collect()
    assert sorted(frame["step"]) == [0, 2, 4]
    assert set(read(run, "evaluations").collect()["purpose"]) == {"evaluation"}


def test_one_evaluation_episode_has_no_standard_error(play, tmp_path):
    run = play(tmp_path / "run", "evaluation.questions=1", "length.steps=1")
    assert metric(run, "eval/stderr_share") == [None, None]


def test_the_run_tells_its_configuration_and_its_end(play, tmp_path, config):
    run = play(tmp_path / "run", "length.steps=1")
    told = read_run(run)
    assert told["configuration"]["length"]["steps"] == 1
    assert (told["seed"], told["command"]) == (5, "twice train demo")
    assert told["finished"] == "2025-01-01T00:00:00+00:00"


def test_tasks_depend_on_seed_and_step_alone(config):
    def ids(own, step):
        return [task.id for task in train_tasks(own, step)]

    steps = [ids(config, step) for step in range(1, 6)]
    assert steps == [ids(config, step) for step in range(1, 6)]
    assert len({tuple(step) for step in steps}) == 5
    assert all(len(set(step)) == config.rollout.groups for step in steps)
    assert ids(dataclasses.replace(config, seed=6), 1) != steps[0]


def test_weights_of_another_shape_are_refused_and_not_spread_over_the_models(policy):
    own = {name: value.clone() for name, value in policy.model.named_parameters()}
    name = "model.norm.weight"
    for shape in ((1,), (3,)):
        given = Checkpoint(1, own | {name: torch.full(shape, 7.0)}, {}, {})
        with pytest.raises(UsageError, match="weights are not those of this model"):
            load_weights(policy, given)
    assert torch.equal(dict(policy.model.named_parameters())[name], own[name])
