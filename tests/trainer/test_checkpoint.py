"""Checkpoints: whole or not there, and everything bit for bit."""

import dataclasses
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import SafetensorError

from trainer.learning.optimizer import optimizer_tensors, restore_optimizer
from trainer.loop import checkpoint as module
from trainer.loop.checkpoint import (
    Checkpoint,
    CorruptCheckpointError,
    checkpoints,
    load_checkpoint,
    named,
    newest,
    save_checkpoint,
    set_aside,
    whole_checkpoint,
)
from twinstats.errors import UsageError


def made(step, fill=1.0):
    return Checkpoint(
        step,
        {"a.weight": torch.full((3, 2), fill), "b": torch.arange(4.0)},
        {"0/step": torch.tensor(float(step)), "0/exp_avg": torch.full((3, 2), 1e-30)},
        {"total_tokens": 17, "method": {"price": 0.1, "tails": [[["", 0, ""], 3.5, 2]]}},
    )


def contents(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def steps(folder):
    return [int(path.name.removeprefix("step-")) for path in checkpoints(folder)]


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    saved = made(3)
    path = save_checkpoint(tmp_path / "new" / "checkpoints", saved, keep=2)
    loaded = load_checkpoint(path)
    assert (loaded.step, loaded.state) == (3, saved.state)
    for one, other in ((loaded.model, saved.model), (loaded.optimizer, saved.optimizer)):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert all(one[name].dtype == other[name].dtype for name in one)


def test_nothing_is_pickled(tmp_path):
    path = save_checkpoint(tmp_path, made(3), keep=1)
    names = {file.name for file in path.iterdir()}
    assert names == {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"}


def test_what_needs_learned_comes_back_and_is_not_lost_unseen(tmp_path):
    needs = {"value/weight": torch.arange(3.0), "value/optimizer/0/step": torch.tensor(2.0)}
    path = save_checkpoint(tmp_path, dataclasses.replace(made(3), needs=needs), keep=1)
    loaded = load_checkpoint(path).needs
    assert loaded.keys() == needs.keys()
    assert all(torch.equal(loaded[name], needs[name]) for name in needs)
    file = path / "needs.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(CorruptCheckpointError, match=r"needs\.safetensors is missing or damaged"):
        load_checkpoint(path)
    file.unlink()
    with pytest.raises(CorruptCheckpointError, match=r"needs\.safetensors is missing or damaged"):
        load_checkpoint(path)


def test_an_optimizer_that_took_no_step_is_saved_too(tmp_path):
    path = save_checkpoint(tmp_path, Checkpoint(0, {"a": torch.ones(2)}, {}, {}), keep=1)
    assert load_checkpoint(path).optimizer == {}


def test_the_last_ones_stay(tmp_path):
    for step in (1, 2, 10, 100):
        save_checkpoint(tmp_path, made(step), keep=2)
    assert steps(tmp_path) == [10, 100]
    assert newest(tmp_path).name == "step-00000100"
    assert newest(tmp_path, 10).name == "step-00000010"
    with pytest.raises(ValueError, match="`keep` must be at least 1, got 0"):
        save_checkpoint(tmp_path, made(101), keep=0)


def test_a_step_that_is_not_there_is_refused_and_none_at_all_is_null(tmp_path):
    assert newest(tmp_path / "nowhere") is None
    save_checkpoint(tmp_path, made(4), keep=2)
    with pytest.raises(UsageError, match="no checkpoint of step 7; it has: 4"):
        newest(tmp_path, 7)


FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "flipped"])
def test_a_damaged_file_is_named(tmp_path, name, damage):
    path = save_checkpoint(tmp_path, made(4), keep=2)
    file = path / name
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    else:
        file.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    named = "" if name == "manifest.json" and damage == "flipped" else name  # or what it lists
    with pytest.raises(CorruptCheckpointError, match=f"step-00000004.*{named}"):
        load_checkpoint(path)


@pytest.mark.parametrize("text", ["{}", "[]", "[1]", "7", "null"])
def test_a_manifest_that_vouches_for_nothing_is_refused(tmp_path, text):
    path = save_checkpoint(tmp_path, made(4), keep=2)
    (path / "manifest.json").write_text(text)
    with pytest.raises(CorruptCheckpointError, match="step-00000004"):
        load_checkpoint(path)


def test_state_from_another_checkpoint_is_refused(tmp_path):
    save_checkpoint(tmp_path, made(4), keep=2)
    path = save_checkpoint(tmp_path, made(5), keep=2)
    shutil.copy(newest(tmp_path, 4) / "state.json", path / "state.json")
    with pytest.raises(CorruptCheckpointError, match="state.json"):
        load_checkpoint(path)


@pytest.mark.parametrize("call", ["model", "optimizer", "state.json", "manifest.json", "sync"])
def test_a_full_disk_leaves_every_earlier_checkpoint_as_it_was(tmp_path, monkeypatch, call):
    for step in (1, 2):
        save_checkpoint(tmp_path, made(step), keep=2)
    before = contents(tmp_path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    broken = SafetensorError(f"I/O error: {full}")  # what a full disk is to the library
    plain_save, plain_json = module.save_file, module.write_json

    def save_file(tensors, path):
        if path.name == f"{call}.safetensors":
            path.write_bytes(b"0123456789")
            raise full if call == "model" else broken
        plain_save(tensors, path)

    def write_json(path, value):
        if path.name == call:
            path.with_suffix(".tmp").write_text("{")
            raise full
        plain_json(path, value)

    def sync(path):
        raise full

    monkeypatch.setattr(module, "save_file", save_file)
    monkeypatch.setattr(module, "write_json", write_json)
    if call == "sync":
        monkeypatch.setattr(module, "sync", sync)
    with pytest.raises(
        OSError, match=r"step-00000003 was not written \([\d,]+ bytes are free\).*No space"
    ):
        save_checkpoint(tmp_path, made(3), keep=1)
    monkeypatch.undo()
    assert contents(tmp_path) == before
    assert load_checkpoint(newest(tmp_path)).step == 2
    save_checkpoint(tmp_path, made(3), keep=2)
    assert steps(tmp_path) == [2, 3]


def test_a_disk_with_too_little_room_leaves_every_earlier_checkpoint_as_it_was(tmp_path):
    save_checkpoint(tmp_path, made(1), keep=2)
    before = contents(tmp_path)
    big = dataclasses.replace(made(2), model={"w": torch.ones(100_000)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))  # the kernel's own refusal
        with pytest.raises(OSError, match="step-00000002 was not written"):
            save_checkpoint(tmp_path, big, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(tmp_path) == before
    save_checkpoint(tmp_path, big, keep=1)
    assert steps(tmp_path) == [2]


def test_the_best_stays_besides_the_last_ones_until_another_is(tmp_path):
    for step, best in ((1, 1), (2, 1), (3, 1), (4, 4), (5, 4)):
        save_checkpoint(tmp_path, made(step), keep=1, best=best)
        assert steps(tmp_path) == sorted({step, best})
    with pytest.raises(UsageError, match="has no best checkpoint: nothing was evaluated"):
        named(tmp_path, "best")
    assert named(tmp_path, "4").name == "step-00000004"
    assert named(tmp_path, None).name == "step-00000005"
    assert named(tmp_path / "nowhere", "best") is None
    for word in ("last", "-1", "1.5", ""):
        with pytest.raises(UsageError, match="`--checkpoint` takes a step or best, got"):
            named(tmp_path, word)


def test_the_best_is_not_read_from_a_damaged_state(tmp_path):
    path = save_checkpoint(tmp_path, made(4), keep=2)
    (path / "state.json").write_text('{"step": 4, "state": {"best": {"step": 1}}}')
    with pytest.raises(CorruptCheckpointError, match="state.json is missing or damaged"):
        named(tmp_path, "best")


def test_the_newest_whole_checkpoint_is_found_behind_damaged_ones(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, made(step), keep=3)
    for step in (2, 3):
        (newest(tmp_path, step) / "optimizer.safetensors").unlink()
    before = contents(tmp_path)
    with pytest.raises(CorruptCheckpointError, match="step-00000003.*`--fallback` goes on"):
        whole_checkpoint(tmp_path)
    found = whole_checkpoint(tmp_path, fallback=True)
    assert (found.path.name, found.checkpoint.step) == ("step-00000001", 1)
    assert [path.name for path in found.damaged] == ["step-00000003", "step-00000002"]
    (newest(tmp_path, 1) / "manifest.json").unlink()
    with pytest.raises(CorruptCheckpointError, match="All 3 checkpoints in .* are damaged"):
        whole_checkpoint(tmp_path, fallback=True)
    assert contents(tmp_path).keys() == before.keys() - {"step-00000001/manifest.json"}


def test_a_checkpoint_can_be_set_aside_again_and_again(tmp_path):
    names = []
    for _ in range(3):
        names.append(set_aside(save_checkpoint(tmp_path, made(7), keep=1)).name)
        assert newest(tmp_path) is None
    assert names == [f"damaged-step-00000007{end}" for end in ("", "-2", "-3")]


def test_what_a_killed_save_left_is_ignored_and_cleared(tmp_path):
    save_checkpoint(tmp_path, made(2), keep=2)
    left = tmp_path / ".step-00000003.4711"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    assert steps(tmp_path) == [2]
    assert load_checkpoint(newest(tmp_path)).step == 2
    save_checkpoint(tmp_path, made(3), keep=2)
    assert not left.exists() and steps(tmp_path) == [2, 3]


KILLED = """
import sys
from pathlib import Path
import torch
from trainer.loop import checkpoint
from trainer.loop.checkpoint import Checkpoint, save_checkpoint
folder = Path(sys.argv[1])
big = {"w": torch.ones(4_000_000)}
save_checkpoint(folder, Checkpoint(1, big, {}, {}), keep=1)
print("saved", flush=True)
for step in range(2, 10_000):
    save_checkpoint(folder, Checkpoint(step, big, {}, {}), keep=1)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        command = [sys.executable, "-c", KILLED, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "saved\n"
            time.sleep(0.03 + 0.05 * attempt)
            process.send_signal(signal.SIGKILL)
        assert load_checkpoint(newest(folder)).model["w"].sum() == 4_000_000


# The optimizer


def trained(model, optimizer, count, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        loss = (model(torch.randn(4, 3, generator=generator)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_restored_optimizer_goes_on_bit_for_bit(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    trained(model, optimizer, 3, 1)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    saved = Checkpoint(3, weights, optimizer_tensors(optimizer), {})
    path = save_checkpoint(tmp_path, saved, keep=1)
    trained(model, optimizer, 3, 2)

    loaded = load_checkpoint(path)
    other = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    with torch.no_grad():
        for name, value in other.named_parameters():
            value.copy_(loaded.model[name])
    again = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.1)
    restore_optimizer(again, loaded.optimizer)
    assert optimizer_tensors(again).keys() == loaded.optimizer.keys()
    trained(other, again, 3, 2)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    ours, theirs = optimizer_tensors(again), optimizer_tensors(optimizer)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_what_was_saved_does_not_move_with_the_optimizer(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, optimizer, 1, 1)
    taken = optimizer_tensors(optimizer)
    before = {name: tensor.clone() for name, tensor in taken.items()}
    trained(model, optimizer, 1, 2)
    assert all(torch.equal(taken[name], before[name]) for name in before)
    assert {name.split("/")[1] for name in taken} == {"step", "exp_avg", "exp_avg_sq"}


def test_the_manifest_is_strict_json(tmp_path):
    path = save_checkpoint(tmp_path, made(4), keep=2)
    manifest = json.loads((path / "manifest.json").read_text())
    assert set(manifest) == set(FILES) - {"manifest.json"}
    assert all(len(digest) == 64 for digest in manifest.values())


def test_a_folder_that_is_no_checkpoint_is_none_of_them_and_stays(tmp_path):
    (tmp_path / "step-notes").mkdir()
    (tmp_path / "step-notes" / "mine").write_text("keep")
    for step in (1, 2):
        save_checkpoint(tmp_path, made(step), keep=1)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000002"]
    assert (tmp_path / "step-notes" / "mine").read_text() == "keep"
    with pytest.raises(UsageError, match="no checkpoint of step 7; it has: 2"):
        newest(tmp_path, 7)


@pytest.mark.parametrize(
    ("name", "content"),
    [("state.json", b"{}"), ("state.json", b"[]"), ("state.json", b"{"), ("state.json", b"\xff")]
    + [("state.json", b"[" * 100_000), ("model.safetensors", b"\x80\x04pickle")],
)
def test_files_that_the_manifest_vouches_for_but_that_hold_nothing_are_refused(
    tmp_path, name, content
):
    path = save_checkpoint(tmp_path, made(4), keep=2)
    (path / name).write_bytes(content)
    (path / "manifest.json").write_text(json.dumps(module._digests(path)))
    with pytest.raises(CorruptCheckpointError, match="step-00000004 holds no checkpoint"):
        load_checkpoint(path)


def test_a_manifest_too_deep_to_read_is_refused(tmp_path):
    path = save_checkpoint(tmp_path, made(4), keep=2)
    (path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(CorruptCheckpointError, match="has no readable manifest.json"):
        load_checkpoint(path)
