"""Signals at any moment: killed or stopped, a run goes on to be the undisturbed one."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.test_train import assert_same, results
from trainer.config import changed
from trainer.loop.checkpoint import checkpoints, load_checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def disturbed(config, tokenizer, tmp_path_factory):
    """disturbed(method, moments) -> what `signalled` tells, and the folder of the runs."""

    def disturbed(method, moments):
        start = tmp_path_factory.mktemp("start")
        tokenizer.save_pretrained(start)
        own = dataclasses.asdict(changed(config, [f"credit.method={method}"]))
        (start / "config.json").write_text(json.dumps(own))
        out = tmp_path_factory.mktemp("runs")
        arguments = [str(start), str(out), json.dumps(moments)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.trainer.signalled", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        told = json.loads(done.stdout)["runs"]
        assert told[0]["codes"] == [0], told[0]
        return told[1:], out

    return disturbed


def random_moments(number):
    """Moments of a kill: most while a file is being written, some at any time."""
    rng = np.random.default_rng()
    places = ["seconds" if index % 3 == 2 else "files" for index in range(number)]
    return [["KILL", place, float(rng.uniform(0, 0.95))] for place in places]


def stops(told):
    """The lines that say that a run was stopped."""
    return [line for line in told["said"].splitlines() if "stopped" in line.lower()]


def assert_whole(told, out, moments):
    """The runs that were signalled are the undisturbed one."""
    expected = results(out / "whole")
    for index, (one, moment) in enumerate(zip(told, moments, strict=True)):
        assert one["codes"][-1] == 0, (moment, one)
        try:
            assert_same(results(out / str(index)), expected)
        except AssertionError as error:
            raise AssertionError(f"{moment}: {error}") from error


@pytest.fixture(scope="module")
def few(disturbed):
    moments = random_moments(3)
    moments += [["TERM", "files", 0.6], ["INT", "files", 0.4]]
    whole = len(moments)
    told, out = disturbed("twice", [*moments, ["TERM", "evaluation", 0], ["TERM", "warm-up", 0]])
    return told, out, moments, whole


def test_whatever_the_signal_the_run_goes_on_to_be_the_undisturbed_one(few):
    told, out, moments, whole = few
    assert_whole(told[:whole], out, moments)
    killed = [one["codes"] for one in told[:3]]
    assert killed[:2] == [[-9, 0], [-9, 0]] and killed[2][0] in (-9, 0)


def test_after_sigterm_the_step_is_saved_and_the_exit_code_is_0(few):
    told = few[0][3]
    assert told["codes"] == [0, 0]
    (line,) = stops(told)
    step = int(line.split()[5])
    assert line == f"twice: stopped by SIGTERM: step {step} is saved, go on with --resume."
    assert f"checkpoints/step-{step:08d}/manifest.json" in told["left"]
    logged = [name for name in told["left"] if name.startswith("metrics/")]
    assert max(logged) == f"metrics/step-{step:08d}.parquet"  # the step was finished
    assert not [name for name in told["left"] if name.endswith(".tmp")]


def test_before_a_step_sigterm_leaves_nothing_and_the_exit_code_is_0(few):
    for told in few[0][-2:]:
        assert told["codes"] == [0] and told["left"] == []
        (line,) = stops(told)
        assert line.startswith("twice: stopped by SIGTERM before a step was taken")


def test_ctrl_c_says_so_once_and_has_the_exit_code_of_shells(few):
    told = few[0][4]
    assert told["codes"] == [130, 0]
    (line,) = stops(told)
    step = int(line.split()[5])
    assert line == f"twice: stopped by Ctrl-C: step {step} is saved, go on with --resume."
    saved = [name for name in told["left"] if name.startswith("checkpoints/step-")]
    assert max(saved).startswith(f"checkpoints/step-{step:08d}/")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["twice", "ppo"])
def test_a_run_that_is_killed_at_any_moment_is_the_undisturbed_one(disturbed, method):
    moments = random_moments(15)
    told, out = disturbed(method, moments)
    assert sum(one["codes"][0] == -9 for one in told) >= 12  # the others had just finished
    assert_whole(told, out, moments)
    last = load_checkpoint(checkpoints(out / "whole" / "checkpoints")[-1])
    assert last.state["method"] if method == "twice" else last.needs  # and it was more than weights
