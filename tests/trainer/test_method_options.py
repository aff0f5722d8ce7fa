"""Options of credit methods by text, and that every method trains."""

import dataclasses
import inspect
from typing import Literal

import numpy as np
import polars as pl
import pytest
import torch

from trainer import credit_options
from trainer.config import changed
from trainer.credit_options import FIELDS, read, try_out
from trainer.loop.checkpoint import load_checkpoint, newest
from trainer.loop.train import train
from trainer.policy import Policy, build_model
from trainer.setup import check, make_method
from twinstats import credit
from twinstats.credit import METHODS, names
from twinstats.credit.registry import Entry
from twinstats.errors import UsageError
from twinstats.records import read as read_table


def made(config, *settings):
    """The method that a configuration with these settings makes."""
    return make_method(changed(config, settings))


@pytest.mark.parametrize(
    ("method", "text", "value"),
    [
        ("gigpo", "similarity=0.9", 0.9),
        ("gigpo", "similarity=none", None),
        ("gigpo", "mode=mean_std_norm", "mean_std_norm"),
        ("gigpo", "cross_steps=no", False),
        ("hgpo", "history=3", 3),
        ("budget_gate", "top=2", 2),
        ("phgpo", "bounds=0.25, 8", (0.25, 8.0)),
        ("t2spo", "scope=turn", "turn"),
        ("twice", "two_sided=true", True),
    ],
)
def test_an_option_is_read_by_the_type_of_its_parameter(config, method, text, value):
    name = text.partition("=")[0]
    found = made(config, f"credit.method={method}", f"credit.options.{text}").options[name]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("method", names())
def test_every_option_that_a_text_can_say_is_one(method):
    parameters = inspect.signature(METHODS[method].function).parameters
    objects = {"group", "memory", "regressor", *FIELDS}
    defaults = {n: p.default for n, p in parameters.items() if n not in objects}
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in defaults.items()
    }
    assert read(method, texts) == defaults
    try_out(method, read(method, texts))


@pytest.mark.parametrize("method", names())
def test_the_made_up_group_is_one_that_every_method_takes(method):
    assert credit_options._refusal(method, {}) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["gigpo", "similarty=1"], "Unknown option of method 'gigpo' 'similarty'.*'similarity'"),
        (["rloo", "weight=1"], "Unknown option of method 'rloo' 'weight'"),
        (["t2spo", "regressor=x"], "Unknown option of method 't2spo' 'regressor'"),
        (["t2spo", "memory=x"], "Unknown option of method 't2spo' 'memory'"),
        (["twice", "twins=3"], "`credit.options.twins` is set by `credit.twins` and nowhere else"),
        (["twice", "budget=3"], "`credit.options.budget` is set by `credit.budget`"),
        (["vine", "rollouts=3"], "`credit.options.rollouts` is set by `credit.rollouts`"),
        (["rloo", "rollouts=3"], "Unknown option of method 'rloo'"),
        (["hgpo", "history=1.5"], "`credit.options.history` must be int, got '1.5'"),
        (["gigpo", "discount=nan"], "`credit.options.discount` must be finite"),
        (["gigpo", "cross_steps=maybe"], "`credit.options.cross_steps` must be true or false"),
        (["gigpo", "mode=men_norm"], "Unknown value of credit.options.mode.*mean 'mean_norm'"),
        (["phgpo", "bounds=1"], "`credit.options.bounds` must be 2 values with commas, got '1'"),
        (["phgpo", "bounds=1,x"], "`credit.options.bounds` must be float, got 'x'"),
    ],
)
def test_what_is_no_option_is_refused(config, settings, message):
    method, option = settings
    with pytest.raises(UsageError, match=message):
        check(changed(config, [f"credit.method={method}", f"credit.options.{option}"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["prover", "rollouts=1"], "'prover' refuses its options: `rollouts` must be at least 2"),
        (["dars", "options.discount=2"], "'dars' refuses its options: `discount` must be in"),
        (["phgpo", "options.bounds=3,1"], "'phgpo' refuses its options: `initial` must be within"),
        (["t2spo", "options.context=0"], "'t2spo' refuses its options"),
        (["graphgpo", "options.omega=1"], "`omega` must be below 1, got 1.0"),
        (["mt_grpo", "options.ddof=2"], "'mt_grpo' refuses its options: `ddof` must be"),
        (["arpo", "options.base=2"], "'arpo' refuses its options: `base`"),
        (["twice", "options.draws=-1"], "'twice' refuses its options: `draws`"),
        (["twice", "options.draws=1000000000000"], "`draws` must be at most 65535, what noise"),
        (["at2po", "options.rounds=70000"], "`rounds` must be at most 65535"),
    ],
)
def test_what_a_method_refuses_is_refused_before_anything_is_played(config, settings, message):
    method, option = settings
    with pytest.raises(UsageError, match=message):
        check(changed(config, [f"credit.method={method}", f"credit.{option}"]))


@pytest.mark.parametrize("wants", ["board", "info"])
def test_a_method_that_wants_another_group_anyway_is_left_alone(config, monkeypatch, wants):
    def picky(group, *, level: float = 1.0, kind: Literal["a", "b"] | None = None):
        if wants == "board":
            raise ValueError("no board")
        return group.task.info["board"]

    monkeypatch.setitem(credit.METHODS, "picky", Entry(function=picky))
    own = ["credit.method=picky", "credit.options.level=2", "credit.options.kind=b"]
    assert made(config, *own).options == {"level": 2.0, "kind": "b"}


def test_trying_a_method_leaves_its_memory_as_it_is(config):
    fresh = credit.make("phgpo")
    tried = made(config, "credit.method=phgpo", "credit.options.eta=0.2")
    assert tried.state() == fresh.state() == {"tau": []}


# Every method, from the command line's words to new weights

SMALL = {
    "tree_grpo": ["expansions=1"],
    "at2po": ["beam=1", "rounds=1"],
    "arpo": ["leaves=3"],
    "treerl": ["points=1", "branches=1"],
    "rtmc": ["expansions=1"],
    "twice": ["two_sided=true"],
}


def settings_of(method):
    own = [f"credit.options.{option}" for option in SMALL.get(method, [])]
    general = [
        "length.steps=2",
        "evaluation.questions=1",
        "credit.rollouts=2",
        "credit.budget=none",
        "rollout.group_size=3",
    ]
    return [f"credit.method={method}", "needs.judge_nats=0", *general, *own]


@pytest.mark.parametrize("method", names())
def test_every_method_trains(tmp_path, config, tokenizer, parity, method):
    own = changed(dataclasses.replace(config), settings_of(method))
    policy = Policy(build_model(own.model, seed=0), tokenizer)
    run = train(own, policy, tmp_path / "run", started=lambda: "now")
    values = read_table(run, "credit").select("step", "value").collect()
    assert set(values.drop_nulls()["step"]) == {1, 2}
    assert np.isfinite(values["value"].drop_nulls().to_numpy()).all()
    assert values["value"].drop_nulls().n_unique() > 1
    before = dict(build_model(own.model, seed=0).named_parameters())
    after = load_checkpoint(newest(run / "checkpoints")).model
    assert any(not torch.equal(before[name], value) for name, value in after.items())
    metrics = read_table(run, "metrics").filter(pl.col("name") == "loss/policy_nats").collect()
    assert metrics.filter(pl.col("step") > 0)["value"].null_count() == 0
