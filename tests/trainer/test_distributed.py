"""Several processes compute what one computes: shares of a batch, their sums, whole runs."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import torch

from trainer.config import Config, LossConfig, changed
from trainer.distributed.processes import Processes, check_processes
from trainer.learning.loss import Batch, Logprobs, policy_loss
from trainer.learning.shares import assembled, dealt, packed, share, unpacked
from trainer.loop.checkpoint import load_checkpoint, newest
from twinstats.errors import UsageError
from twinstats.records import read

ROOT = Path(__file__).parents[2]
EVERYTHING = [
    "loss.minibatches=2",
    "loss.epochs=2",
    "loss.ratio=turn",
    "loss.kl_coefficient=0.1",
    "loss.entropy_coefficient=0.1",
    "loss.importance_cap=1.5",
]
LORA = ["lora.rank=4", "loss.kl_coefficient=0.1"]
FAST = ["optimizer.learning_rate=1e-3", "optimizer.max_gradient_norm=1", "loss.micro_rows=2"]


def case(name, sharding, rows, steps, *settings):
    """A case of `distributed_program`; a gradient that is not clipped shows its scale."""
    own = [f"learner.sharding={sharding}", "optimizer.max_gradient_norm=1000", *settings]
    return {f"{name} {sharding}": {"rows": rows, "steps": steps, "settings": own}}


CASES = (
    case("uneven", "ddp", 7, 1, "loss.micro_rows=2")
    | case("uneven", "fsdp2", 7, 1, "loss.micro_rows=2")
    | case("no rows", "ddp", 1, 1)
    | case("no rows", "fsdp2", 1, 1, "learner.chunk_tokens=3")
    | case("long", "ddp", 9, 20, *FAST)
    | case("long", "fsdp2", 9, 20, *FAST)
    | case("everything", "ddp", 9, 2, *EVERYTHING)
    | case("everything", "fsdp2", 9, 2, *EVERYTHING)
    | case("lora", "ddp", 5, 2, *LORA)
    | case("lora", "fsdp2", 5, 2, *LORA)
    | case("checkpointing", "fsdp2", 5, 1, "learner.gradient_checkpointing=true")
)


def torchrun(count, *command, **environment):
    """A program in several processes, its error stream as text."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [*(sys.executable, "-m", "torch.distributed.run", "--standalone"), "--nproc-per-node"]
        + [str(count), *command],
        env=os.environ | own | environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def finished(process, seconds=300):
    """What a process told on its error stream until its end."""
    try:
        return process.communicate(timeout=seconds)[1]
    finally:
        process.terminate()  # torchrun ends what it started
        process.wait()


def differences(folder, cases, count):
    """What `distributed_program` finds of each case, by its name."""
    given, found = folder / "cases.json", folder / "found.json"
    given.write_text(json.dumps(list(cases.values())))
    program = str(Path(__file__).with_name("distributed_program.py"))
    process = torchrun(count, program, str(given), str(found))
    told = finished(process)
    assert process.returncode == 0, told
    return dict(zip(cases, json.loads(found.read_text()), strict=True))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return differences(tmp_path_factory.mktemp("two"), CASES, 2)


# Two processes and one


@pytest.mark.parametrize("name", CASES)
def test_gradients_from_equal_weights_are_those_of_one_process(two, name):
    assert two[name]["gradient"] < 1e-5


@pytest.mark.parametrize("sharding", ["ddp", "fsdp2"])
def test_over_twenty_steps_losses_are_those_of_one_process(two, sharding):
    assert two[f"long {sharding}"]["metrics"]["loss/policy_nats"] < 1e-4
    assert two[f"long {sharding}"]["weights"] < 1e-3


@pytest.mark.parametrize("name", CASES)
def test_metrics_are_sums_over_the_processes(two, name):
    assert len(two[name]["metrics"]) >= 11
    assert max(two[name]["metrics"].values()) < 1e-4


@pytest.mark.parametrize("name", CASES)
def test_the_optimizer_is_saved_whole_and_taken_up_by_all(two, name):
    assert two[name]["state"] < 1e-4
    assert two[name]["resumed"] < 1e-3


@pytest.mark.slow
def test_three_processes_compute_what_one_computes(tmp_path):
    for name, found in differences(tmp_path, CASES, 3).items():
        assert found["gradient"] < 1e-5, name
        assert max(found["metrics"].values()) < 1e-4, name


# Shares


def batch_of(lengths):
    """Rows of given lengths whose tokens but the first are trained, two turns a row."""
    rng = torch.Generator().manual_seed(len(lengths))
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    trained = mask.clone()
    trained[:, 0] = False
    later = torch.arange(max(lengths))[None] > torch.tensor(lengths)[:, None] // 2
    turn = torch.where(trained, 2 * torch.arange(len(lengths))[:, None] + later, -1)
    return Batch(
        ids_RL=torch.randint(1, 9, mask.shape, generator=rng) * mask,
        mask_RL=mask,
        trained_RL=trained,
        advantage_RL=torch.randn(mask.shape, generator=rng) * trained,
        turn_RL=turn,
        lengths=torch.bincount(turn[trained], minlength=2 * len(lengths)),
        num_tokens=int(trained.sum()),
        num_turns=2 * len(lengths),
        num_episodes=float(len(lengths)),
    )


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_row_is_dealt_once_and_shares_are_even(count):
    lengths = torch.randint(1, 100, (19,), generator=torch.Generator().manual_seed(count))
    rows = dealt(lengths, count)
    assert sorted(torch.cat(rows).tolist()) == list(range(19))
    for one, two in itertools.combinations(rows, 2):
        assert abs(len(one) - len(two)) <= 1
        assert abs(int(lengths[one].sum() - lengths[two].sum())) <= int(lengths.max())


@pytest.mark.parametrize("aggregation", ["token", "turn", "turn_mean", "constant"])
@pytest.mark.parametrize("ratio", ["token", "turn"])
def test_losses_of_shares_add_up_to_the_whole(aggregation, ratio):
    batch, config = batch_of([9, 4, 7, 5, 6]), LossConfig(aggregation=aggregation, ratio=ratio)
    rng = torch.Generator().manual_seed(0)
    table = {name: torch.randn(batch.ids_RL.shape, generator=rng) / 9 for name in ("now", "before")}

    def loss(part, given):
        return policy_loss(
            Logprobs(current=given["now"], behaviour=given["before"]), part, config
        ).total

    whole = loss(batch, table)
    parts = [loss(*share(batch, table, rows, 2)) for rows in dealt(batch.mask_RL.sum(1), 3)]
    assert abs(float(whole)) > 1e-3
    assert float(sum(parts)) == pytest.approx(float(whole), rel=1e-5)


def test_a_share_without_rows_has_rows_of_which_nothing_is_trained():
    batch = batch_of([9, 4])
    part, given = share(batch, {"engine": torch.ones(2, 9)}, torch.tensor([], dtype=torch.long), 2)
    assert part.mask_RL.tolist() == [[True], [True]]
    assert not part.trained_RL.any() and given["engine"].shape == (2, 1)
    assert (part.num_tokens, part.num_episodes) == (batch.num_tokens, batch.num_episodes)


def test_a_message_brings_a_batch_over_as_it_was():
    batch = batch_of([9, 4])
    given = {"engine": torch.full((2, 9), torch.nan), "reference": None}
    message = packed("update", batch, given, {"rate": 1e-3})
    found, logprobs = unpacked(message, torch.device("cpu"))
    for name in Batch.__slots__:
        assert torch.equal(*map(torch.as_tensor, (getattr(found, name), getattr(batch, name))))
    assert logprobs["engine"].isnan().all() and logprobs["reference"] is None


def test_values_of_shares_are_put_back_into_their_rows():
    batch = batch_of([9, 4, 7, 5, 6])
    rows = dealt(batch.mask_RL.sum(1), 2)
    table = {"engine": torch.where(batch.mask_RL, batch.ids_RL, 0).float()}
    parts = [share(batch, table, own, 3)[1]["engine"] for own in rows]
    assert torch.equal(assembled(parts, rows, batch.advantage_RL), table["engine"])


def test_vllm_inside_one_of_several_processes_is_refused():
    config = changed(Config(recipe="demo"), ["engine.name=vllm"])
    check_processes(config, Processes())
    with pytest.raises(UsageError, match=r"`engine.servers` must be set for 2 processes"):
        check_processes(config, Processes(size=2))


# Whole runs

SETTINGS = [
    *("model.layers=2", "model.hidden=32", "model.intermediate=64", "model.vocabulary=600"),
    *("model.max_length=256", "warmup.steps=5", "warmup.episodes=60", "task.parts=1"),
    *("warmup.minimum_exact_match=0", "rollout.groups=2", "rollout.group_size=4"),
    *("rollout.max_turn_tokens=5", "length.steps=12", "evaluation.questions=4"),
    *("checkpoint.every=2", "optimizer.learning_rate=3e-4", "credit.method=independent"),
    *("loss.kl_coefficient=0.01", "log.tensorboard=false", "reward=parity:parity"),
]
PARITY = """
def parity(prompts, completions, **columns):
    return [float(sum(completions[0].encode()) % 2)]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where runs are made: with a reward that gibberish earns half the time, and a cache."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "parity.py").write_text(PARITY)
    return folder


@pytest.fixture(scope="module")
def begin(place):
    """begin(count, name, *settings, words) -> a process that trains, or several of them."""
    twice = Path(sys.executable).with_name("twice")

    def begin(count, name, *settings, words=()):
        own = [word for one in (*SETTINGS, *settings) for word in ("--set", one)]
        command = [str(twice), "train", "demo", "--out", str(place / name), *words, *own]
        paths = os.pathsep.join([str(ROOT), str(place)])
        return torchrun(count, *command, PYTHONPATH=paths, TWINSTATS_CACHE=str(place / "cache"))

    (place / "cache").mkdir()
    return begin


@pytest.fixture(scope="module")
def one(place, begin):
    process = begin(1, "one")
    told = finished(process)
    assert process.returncode == 0, told
    return place / "one"


def wait_for_checkpoint(process, run):
    """Returns once a run has saved a step."""
    until = time.monotonic() + 200
    while not list(run.glob("checkpoints/step-0000000[2-9]")):
        if process.poll() is not None or time.monotonic() > until:
            pytest.fail(finished(process, seconds=0.1))
        time.sleep(0.05)


def assert_alike(found, expected):
    """The same episodes, metrics but for times to rounding, and a checkpoint of the same files."""
    left, right = (read(run, "metrics").collect() for run in (found, expected))
    both = left.join(right, on=["step", "name"], how="full", suffix="_other")
    both = both.filter(~pl.col("name").str.contains("^time/|^memory/|per_second"))
    assert len(both) > 300
    assert both["value"].is_null().equals(both["value_other"].is_null())
    gap = (pl.col("value") - pl.col("value_other")).abs()
    worst = both.filter(gap > 1e-4 * pl.col("value_other").abs() + 1e-5)
    assert worst.is_empty(), worst
    for table in ("episodes", "turns", "pairs"):
        ours, theirs = (read(run, table).collect() for run in (found, expected))
        assert ours.height == theirs.height > 0
    mine, theirs = (newest(run / "checkpoints") for run in (found, expected))
    assert sorted(os.listdir(mine)) == sorted(os.listdir(theirs))
    mine, theirs = load_checkpoint(mine), load_checkpoint(theirs)
    assert mine.step == theirs.step == 12
    for own, other in ((mine.model, theirs.model), (mine.optimizer, theirs.optimizer)):
        assert own.keys() == other.keys()
        assert all(own[name].shape == other[name].shape for name in own)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["ddp", "fsdp2"])
def test_a_run_of_two_processes_is_that_of_one(place, begin, one, sharding):
    process = begin(2, sharding, f"learner.sharding={sharding}")
    told = finished(process)
    assert process.returncode == 0, told
    assert_alike(place / sharding, one)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_stopped_run_goes_on_with_another_number_of_processes(place, begin, one, before, after):
    name, sharding = f"from-{before}", "learner.sharding=fsdp2"
    process = begin(before, name, sharding)
    wait_for_checkpoint(process, place / name)
    process.send_signal(signal.SIGTERM)
    told = finished(process)
    assert told.count("twice: stopped by SIGTERM: step") == 1, told
    process = begin(after, name, sharding, words=["--resume"])
    told = finished(process)
    assert process.returncode == 0, told
    assert_alike(place / name, one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "loss.entropy_coefficient=1e38",
            "Step 1 was saved, and training stops: a gradient is not finite",
        ),
        ("loss.max_kl=1e-9", "was saved, and training stops"),
        ("credit.method=nothing", "Unknown credit method 'nothing'"),
    ],
)
def test_an_error_ends_all_processes_with_one_sentence(place, begin, setting, sentence):
    process = begin(2, setting.partition(".")[2], setting)
    told = finished(process)
    assert process.returncode != 0
    said = [line for line in told.splitlines() if line.startswith("twice: ")]
    assert len(said) == 1 and sentence in said[0], told


@pytest.mark.slow
def test_a_killed_process_ends_all_within_a_minute(place, begin):
    process = begin(2, "killed", "length.steps=1000")
    wait_for_checkpoint(process, place / "killed")
    _, last = sorted(children(process.pid))
    os.kill(last, signal.SIGKILL)
    begun = time.monotonic()
    told = finished(process)
    assert process.returncode != 0 and time.monotonic() - begun < 60
    assert told.count("twice: RuntimeError: Process 0 lost another of the 2") == 1, told


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
