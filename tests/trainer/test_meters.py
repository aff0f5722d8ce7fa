"""What a step costs."""

import math
import subprocess
import sys
import time

import polars as pl

from tests.trainer.test_train import play
from trainer.loop.meters import Stopwatch, memory
from twinstats.records import read

__all__ = ["play"]  # a fixture

STAGES = ("play", "credit", "update", "sync", "log")
EVERY_STEP = {
    "train/outcome_share",
    "train/total_tokens",
    "loss/kl_nats",
    "loss/entropy_nats",
    "loss/clipped_share",
    "loss/gradient_norm",
    "loss/learning_rate",
    "credit/informative_groups_share",
    "engine/logprob_gap_nats",
    "time/sampled_tokens_per_second",
    "time/trained_tokens_per_second",
    *(f"time/{stage}_seconds" for stage in (*STAGES, "evaluation", "step")),
    "memory/peak_bytes",
}


def test_every_step_logs_what_is_watched(play, tmp_path):
    run = play(tmp_path / "run", "loss.max_kl=9", "length.steps=2")
    steps = read(run, "metrics").filter(pl.col("step") > 0).collect().partition_by("step")
    assert len(steps) == 2
    for step in steps:
        told = dict(zip(step["name"], step["value"], strict=True))
        assert told.keys() >= EVERY_STEP
        assert all(told[name] is not None for name in EVERY_STEP)
        total = sum(told[f"time/{stage}_seconds"] for stage in STAGES)
        assert math.isclose(told["time/step_seconds"], total) and told["time/play_seconds"] > 0


def test_stages_add_up_and_a_stage_without_work_took_none():
    watch = Stopwatch()
    for seconds in (0.02, 0.03):
        with watch.stage("play"):
            time.sleep(seconds)
    with watch.stage("evaluation"):
        time.sleep(0.01)
    found = watch.metrics(sampled=100, trained=10)
    assert 0.05 <= found["time/play_seconds"] < 0.5
    assert found["time/update_seconds"] == 0
    assert found["time/step_seconds"] == found["time/play_seconds"]  # evaluation is not the step's
    assert math.isclose(found["time/sampled_tokens_per_second"], 100 / found["time/play_seconds"])
    assert math.isnan(found["time/trained_tokens_per_second"])


def test_the_peak_is_what_the_operating_system_saw_in_bytes():
    code = (
        "from trainer.loop.meters import memory; import numpy as np; before = memory(); "
        "np.ones(25_000_000); after = memory(); "
        "print(after['memory/peak_bytes'] - before['memory/peak_bytes'])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert 150e6 < float(told.stdout) < 250e6  # 200 MB, and they were given back
    assert memory()["memory/peak_bytes"] > 1e8
