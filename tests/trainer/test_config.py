"""The configuration tree: changes to it, and its way to JSON and back."""

import json
from dataclasses import asdict

import pytest

from trainer.config import changed, from_dict, parse, paths
from trainer.recipes import recipe
from twinstats.errors import UsageError

DEMO = recipe("demo")


def test_a_value_is_parsed_by_the_type_of_its_field():
    config = changed(
        DEMO,
        [
            "seed=7",
            "optimizer.learning_rate=1e-5",
            "credit.method=vine",
            "loss.aggregation=token",
            "credit.budget=none",
            "length.total_tokens=5000",
        ],
    )
    assert (config.seed, config.optimizer.learning_rate) == (7, 1e-5)
    assert (config.credit.method, config.loss.aggregation) == ("vine", "token")
    assert (config.credit.budget, config.length.total_tokens) == (None, 5000)
    assert isinstance(changed(DEMO, ["credit.budget=2"]).credit.budget, float)
    assert changed(DEMO, ["length.total_tokens=NULL"]).length.total_tokens is None


def test_a_change_leaves_everything_else_and_the_original_alone():
    before = asdict(DEMO)
    after = asdict(changed(DEMO, ["rollout.groups=9"]))
    assert asdict(DEMO) == before
    before["rollout"]["groups"] = 9
    assert after == before


def test_the_last_of_two_changes_holds():
    assert changed(DEMO, ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("credit.metod", "credit.method"),
        ("optimiser.learning_rate", "optimizer.learning_rate"),
        ("learning_rate", "warmup.learning_rate"),
        ("rollout.group-size", "rollout.group_size"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(path, near):
    with pytest.raises(UsageError, match=f"Unknown configuration key {path!r}.*mean {near!r}"):
        changed(DEMO, [f"{path}=1"])


@pytest.mark.parametrize("path", ["recipe", "credit", "", "seed.x", "__class__"])
def test_what_is_no_leaf_cannot_be_set(path):
    with pytest.raises(UsageError, match="Unknown configuration key"):
        changed(DEMO, [f"{path}=1"])


def test_a_word_without_equals_is_refused():
    with pytest.raises(UsageError, match="takes path=value, got 'seed'"):
        changed(DEMO, ["seed"])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("seed=1.0", "`seed` must be int, got '1.0'"),
        ("rollout.groups=two", "`rollout.groups` must be int"),
        ("optimizer.learning_rate=", "`optimizer.learning_rate` must be float"),
        ("credit.budget=lots", "`credit.budget` must be float"),
        ("loss.ratio=trun", "Unknown value of loss.ratio 'trun'. Did you mean 'turn'"),
        ("seed=none", "`seed` must be int"),
        ("optimizer.learning_rate=nan", "`optimizer.learning_rate` must be finite"),
        ("credit.budget=inf", "`credit.budget` must be finite"),
        ("loss.importance_cap=0", "`loss.importance_cap` must be above 0"),
        ("loss.max_kl=-1", "`loss.max_kl` must be above 0"),
        ("rollout.temperature=0", "`rollout.temperature` must be above 0"),
        ("rollout.max_batch=0", "`rollout.max_batch` must be at least 1"),
        ("rollout.group_size=70000", "`rollout.group_size` must be at most 65535, got 70000"),
        ("credit.budget=1e300", "`credit.budget` must be at most 65535"),
        ("checkpoint.every=0", "`checkpoint.every` must be at least 1"),
        ("checkpoint.keep=0", "`checkpoint.keep` must be at least 1"),
        ("length.steps=-1", "`length.steps` must be at least 0"),
        ("length.total_tokens=0", "`length.total_tokens` must be at least 1"),
        ("credit.options=3", "`credit.options` takes credit.options.NAME=VALUE, or none, got '3'"),
        ("needs.judge=localhost:80", "`needs.judge` must be policy or an http address"),
        ("needs.judge_seconds=0", "`needs.judge_seconds` must be above 0"),
    ],
)
def test_a_value_that_its_field_does_not_allow_is_refused(assignment, message):
    with pytest.raises(UsageError, match=message):
        changed(DEMO, [assignment])


def test_flags_are_words_and_not_truth_values():
    assert [parse(bool, word, "f") for word in ("False", "0", "no")] == [False] * 3
    assert [parse(bool, word, "f") for word in ("TRUE", "1", "yes")] == [True] * 3
    with pytest.raises(UsageError, match="`f` must be true or false, got 'maybe'"):
        parse(bool, "maybe", "f")


def test_every_leaf_has_a_path():
    names = paths(DEMO)
    assert len(names) == len(set(names)) == len(_leaves(asdict(DEMO)))
    assert {"seed", "model.hidden", "credit.budget", "log.text_rows"} <= set(names)


def _leaves(tree):
    return [
        leaf
        for value in tree.values()
        for leaf in (_leaves(value) if isinstance(value, dict) and value else [value])
    ]


def test_options_are_kept_as_texts_by_name_and_taken_back_together():
    config = changed(DEMO, ["credit.options.weight=2", "credit.options.mode=x"])
    assert config.credit.options == {"weight": "2", "mode": "x"}
    assert changed(config, ["credit.options.mode=y"]).credit.options["mode"] == "y"
    assert changed(config, ["credit.options=none"]) == DEMO
    for path in ("credit.options.a.b", "credit.optoins.a", "needs.options.a"):
        with pytest.raises(UsageError, match="Unknown configuration key"):
            changed(DEMO, [f"{path}=1"])


@pytest.mark.parametrize("options", [3, ["weight"], {"weight": 2}])
def test_options_of_another_shape_are_refused(options):
    with pytest.raises(UsageError, match="`credit.options` must hold texts by name"):
        from_dict({"recipe": "demo", "credit": {"options": options}})


def test_a_configuration_survives_json():
    config = changed(
        DEMO, ["credit.budget=none", "seed=3", "loss.clip_low=0.1", "credit.options.weight=2"]
    )
    assert from_dict(asdict(config)) == config
    assert from_dict(json.loads(json.dumps(asdict(config)))) == config


def test_the_configuration_of_something_else_is_refused():
    with pytest.raises(UsageError, match="names no recipe"):
        from_dict({"quick": True})
    with pytest.raises(UsageError, match="another version, with fields that.*: length.stepz"):
        from_dict({"recipe": "demo", "length": {"stepz": 3}})


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="Unknown recipe 'dmo'. Did you mean 'demo'"):
        recipe("dmo")


@pytest.mark.parametrize(
    "assignment",
    [
        "model.layers=0",
        "model.hidden=-1",
        "warmup.observation_share=2",
        "loss.clip_low=-1",
        "optimizer.learning_rate=-1",
        "optimizer.max_gradient_norm=0",
        "warmup.steps=-1",
    ],
)
def test_a_number_with_which_no_run_is_possible_is_refused(assignment):
    with pytest.raises(UsageError, match=f"`{assignment.partition('=')[0]}` must be"):
        changed(DEMO, [assignment])


def test_a_configuration_of_another_shape_is_refused():
    with pytest.raises(UsageError, match="must hold fields of ModelConfig, got 3"):
        from_dict({"recipe": "demo", "model": 3})


@pytest.mark.parametrize(
    ("group", "field", "value", "message"),
    [
        ("rollout", "groups", "two", "`rollout.groups` must be int, got 'two'"),
        ("rollout", "groups", 2.5, "`rollout.groups` must be int, got 2.5"),
        ("rollout", "groups", None, "`rollout.groups` must be int, got None"),
        ("rollout", "groups", -1, "`rollout.groups` must be at least 1, got -1"),
        ("engine", "drafts", 1, "`engine.drafts` must be bool, got 1"),
        ("credit", "budget", "1", "`credit.budget` must be float or null, got '1'"),
        ("loss", "ratio", ["token"], "`loss.ratio` must be 'token' or 'turn', got \\['token'\\]"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(group, field, value, message):
    with pytest.raises(UsageError, match=f"RUN: {message}"):
        from_dict({"recipe": "demo", group: {field: value}}, where="RUN")
    whole = from_dict({"recipe": "demo", "credit": {"budget": 2}, "lora": {"rank": 0}})
    assert whole.credit.budget == 2
