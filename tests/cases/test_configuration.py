"""Configuration and checkpoints: the rows C01 to C08 of the case list."""

import json
import os
from dataclasses import asdict

import pytest
import torch

from trainer.config import changed, from_dict, parse
from trainer.loop import checkpoint as module
from trainer.loop.checkpoint import (
    Checkpoint,
    CorruptCheckpointError,
    load_checkpoint,
    newest,
    save_checkpoint,
)
from trainer.recipes import recipe
from twinstats.errors import UsageError
from twinstats.records import create_run, read_run, reopen_run

DEMO = recipe("demo")


def test_c01_an_exponent_without_a_point_is_a_number():
    rate = changed(DEMO, ["optimizer.learning_rate=1e-5"]).optimizer.learning_rate
    assert rate == 1e-05 and isinstance(rate, float)


def test_c02_a_name_that_looks_like_a_number_stays_text():
    for name in ("123E456", "1E5", "007", "true", "none"):
        assert changed(DEMO, [f"credit.method={name}"]).credit.method == name


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("warmup.lerning_rate", "warmup.learning_rate"),
        ("learning_rate", "warmup.learning_rate"),
        ("rollout.group-size", "rollout.group_size"),
    ],
)
def test_c03_a_key_that_is_misspelt_or_misplaced_is_refused_with_the_nearest(key, near):
    with pytest.raises(UsageError, match=f"{key!r}. Did you mean {near!r}"):
        changed(DEMO, [f"{key}=1"])


def test_c04_a_flag_is_read_and_not_tested_for_being_empty():
    assert [parse(bool, word, "flag") for word in ("False", "0", "no")] == [False, False, False]
    with pytest.raises(UsageError, match="`flag`"):
        parse(bool, "maybe", "flag")


def test_c05_a_run_is_not_resumed_with_other_settings(tmp_path):
    before = changed(DEMO, ["rollout.groups=1", "rollout.group_size=4"])
    run = tmp_path / "run"
    create_run(run, command="x", configuration=asdict(before), seed=0, started="now")
    text = (run / "run.json").read_bytes()
    now = changed(before, ["rollout.groups=4", "rollout.group_size=2"])
    named = r"rollout\.group_size \(4 -> 2\), rollout\.groups \(1 -> 4\)"
    with pytest.raises(UsageError, match=named):
        reopen_run(run, asdict(now))
    assert (run / "run.json").read_bytes() == text
    assert reopen_run(run, asdict(before)).path == run


def saved(folder, step):
    tensors = {"w": torch.full((100,), float(step))}
    return save_checkpoint(folder, Checkpoint(step, tensors, {}, {}), keep=1)


def test_c06_a_save_that_fails_half_way_leaves_the_last_one(tmp_path, monkeypatch):
    good = saved(tmp_path, 1)
    before = {file.name: file.read_bytes() for file in good.iterdir()}

    def full(tensors, path):
        path.write_bytes(b"0123456789")
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(module, "save_file", full)
        with pytest.raises(OSError, match=r"step-00000002.*bytes are free.*No space left"):
            saved(tmp_path, 2)
    assert {file.name: file.read_bytes() for file in good.iterdir()} == before
    half = tmp_path / ".step-00000002.99"  # what SIGKILL leaves
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"0123456789")
    assert newest(tmp_path) == good
    assert load_checkpoint(good).model["w"][0] == 1


def test_c07_a_damaged_checkpoint_is_not_a_missing_one(tmp_path):
    assert newest(tmp_path) is None
    path = saved(tmp_path, 1)
    file = path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    with pytest.raises(CorruptCheckpointError, match=r"model\.safetensors"):
        load_checkpoint(path)
    file.unlink()
    with pytest.raises(CorruptCheckpointError, match=r"model\.safetensors"):
        load_checkpoint(path)
    file.write_bytes(whole)
    assert load_checkpoint(path).step == 1


def test_c08_a_value_has_the_type_of_its_field():
    with pytest.raises(UsageError, match="`flag` must be true or false, got '2'"):
        parse(bool, "2", "flag")
    groups = changed(DEMO, ["rollout.groups=7"]).rollout.groups
    assert groups == 7 and isinstance(groups, int)
    for text in ("1.0", "1.5", "1e3"):
        with pytest.raises(UsageError, match="`rollout.groups` must be int"):
            changed(DEMO, [f"rollout.groups={text}"])
    assert changed(DEMO, ["task.name=123"]).task.name == "123"


def test_c08_the_whole_configuration_is_written_with_its_types(tmp_path):
    config = changed(DEMO, ["credit.budget=2", "seed=3", "length.total_tokens=none"])
    create_run(tmp_path / "run", command="x", configuration=asdict(config), seed=3, started="now")
    told = read_run(tmp_path / "run")["configuration"]
    assert from_dict(told) == config
    assert json.dumps(told["credit"]["budget"]) == "2.0"
    assert told["seed"] == 3 and told["length"]["total_tokens"] is None
    assert told["credit"]["method"] == "rloo"
