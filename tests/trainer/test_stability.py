"""Stability of a run: the best checkpoint, damaged ones, ruined weights, full disks, machines."""

import contextlib
import errno
import os
import signal
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.test_train import Killed, assert_same, play, results, undisturbed
from trainer.config import MACHINE, changed, paths
from trainer.evaluation.evaluate import evaluate as plain_evaluate
from trainer.evaluation.scores import EXACT_MATCH
from trainer.loop import train as module
from trainer.loop.checkpoint import CorruptCheckpointError, checkpoints, named, newest
from trainer.loop.sigterm import Sigterm
from trainer.oracle.config import OracleConfig
from trainer.oracle.study import oracle
from trainer.policy.ruined import refuse_ruined
from twinstats import records
from twinstats.errors import Stopped, UsageError

__all__ = ["play", "undisturbed"]  # fixtures

# The best, and what is damaged or ruined


def scored(monkeypatch, scores):
    """Evaluations get these scores, one after the other."""
    given = iter(scores)

    def evaluate(rollout, config):
        found = plain_evaluate(rollout, config)
        values = found.metrics | {EXACT_MATCH: next(given)}
        return SimpleNamespace(metrics=values, tables=found.tables)

    monkeypatch.setattr(module, "evaluate", evaluate)


def steps_in(out):
    return [int(path.name[5:]) for path in checkpoints(out / "checkpoints")]


def test_the_best_checkpoint_stays_and_is_found_also_after_a_resume(play, tmp_path, monkeypatch):
    settings = ("evaluation.every=1", "checkpoint.every=100", "checkpoint.keep=1")
    out, folder = tmp_path / "run", tmp_path / "run" / "checkpoints"

    def kill(done, metrics):
        if done == 3:
            raise Killed

    scored(monkeypatch, [0.1, 0.7, 0.3, 0.2])
    with pytest.raises(Killed):
        play(out, *settings, on_step=kill)
    assert steps_in(out) == [1, 2] and named(folder, "best").name == "step-00000001"
    scored(monkeypatch, [0.7, 0.9])  # as good as the best is not better
    play(out, *settings, resume=True)
    assert steps_in(out) == [4] and named(folder, "best").name == "step-00000004"
    play(out, *settings, resume=True)
    assert named(folder, "best").name == named(folder, None).name == "step-00000004"


def test_the_start_is_the_best_of_a_run_that_only_gets_worse(play, tmp_path, monkeypatch):
    scored(monkeypatch, [0.9, 0.1])
    out = play(tmp_path / "run", "length.steps=2", "checkpoint.keep=1")
    assert steps_in(out) == [0, 2] and named(out / "checkpoints", "best").name == "step-00000000"


def test_a_damaged_newest_checkpoint_is_passed_over_with_fallback_alone(
    play, undisturbed, tmp_path
):
    out = play(tmp_path / "run", "credit.method=twice")
    file = newest(out / "checkpoints") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptCheckpointError, match=r"step-00000004.*damaged\. `--fallback`"):
        play(out, "credit.method=twice", resume=True)
    with pytest.warns(RuntimeWarning, match="step-00000004 is damaged and was renamed damaged-"):
        play(out, "credit.method=twice", resume=True, fallback=True)
    assert_same(results(out), undisturbed(play, "twice"))
    assert (out / "checkpoints" / "damaged-step-00000004" / "manifest.json").is_file()


def test_ruined_weights_are_not_saved(play, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(RuntimeError, match="step 1, which is not saved, are ruined"):
        play(out, "optimizer.learning_rate=1e30", "checkpoint.every=1")
    assert steps_in(out) == [0]


def test_weights_that_are_not_numbers_are_refused(policy):
    refuse_ruined(policy, "here")
    with torch.no_grad():
        next(iter(policy.model.parameters())).view(-1)[0] = torch.nan
    with pytest.raises(RuntimeError, match="The weights of here are ruined"):
        refuse_ruined(policy, "here")


def test_a_disk_that_fills_up_while_a_step_is_logged_loses_nothing(
    play, undisturbed, tmp_path, monkeypatch
):
    plain, out = records.sync, tmp_path / "run"

    def sync(path):
        if "episodes" in str(path) and "step-00000003" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(path)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(records, "sync", sync)
        play(out, "credit.method=twice")
    assert_same(results(play(out, "credit.method=twice", resume=True)), undisturbed(play, "twice"))


def test_a_sigterm_whose_exception_was_lost_stops_before_a_step_all_the_same():
    before = signal.getsignal(signal.SIGTERM)
    with Sigterm() as sigterm:
        with contextlib.suppress(Stopped):  # as somebody else's code may do
            os.kill(os.getpid(), signal.SIGTERM)
        assert sigterm.came
        with pytest.raises(Stopped, match="before a step was taken"):
            sigterm.hold()
        os.kill(os.getpid(), signal.SIGTERM)  # only noted by now
    assert signal.getsignal(signal.SIGTERM) is before


# What may change, and what leaves no folder


def test_how_a_machine_works_may_change_and_does_not_change_the_run(play, undisturbed, tmp_path):
    def kill(done, metrics):
        if done == 2:
            raise Killed

    out, settings = tmp_path / "run", ["credit.method=twice"]
    with pytest.raises(Killed):
        play(out, *settings, on_step=kill)
    other = ["engine.cache_mib=0", "engine.drafts=no", "engine.timeout_seconds=1"]
    found, weights = results(play(out, *settings, *other, resume=True))
    expected, own = undisturbed(play, "twice")
    for table in ("episodes", "credit", "texts"):
        assert found[table].equals(expected[table]), table
    assert all(torch.equal(weights[name], value) for name, value in own.items())


def test_what_may_change_are_fields(config):
    assert set(MACHINE) <= set(paths(config)) and len(set(MACHINE)) == len(MACHINE)


def test_what_fails_before_the_first_step_leaves_no_folder(play, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with pytest.raises(UsageError, match="below `warmup.minimum_exact_match`"):
        play(out, "warmup.minimum_exact_match=0.99")
    dead = ("engine.name=vllm", "engine.servers=127.0.0.1:1", "engine.timeout_seconds=2")
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="No vLLM server works"):
        play(out, *dead)
    plain = module.make_rollout

    def make_rollout(policy, config):
        with torch.no_grad():
            next(iter(policy.model.parameters())).fill_(torch.nan)
        return plain(policy, config)

    monkeypatch.setattr(module, "make_rollout", make_rollout)
    with pytest.raises(RuntimeError, match="test episodes failed, the first one because: "):
        play(out)
    assert not out.exists()


def test_a_study_that_cannot_be_played_leaves_no_folder(policy, config, tmp_path):
    out = tmp_path / "study"
    dead = ["engine.name=vllm", "engine.servers=127.0.0.1:1", "engine.timeout_seconds=2"]
    study = OracleConfig(episodes=2, rollouts=2, groups=1, group_size=2, largest_knob=1)
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="No vLLM server works"):
        oracle(changed(config, dead), policy, out, study=study, source={}, started=lambda: "now")
    assert not out.exists()
