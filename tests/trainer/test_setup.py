"""How a run is put together, and what `twice train` answers to wrong usage."""

import json
import sys
import time
from dataclasses import asdict

import pytest
import torch
import typer

from trainer.commands import shared
from trainer.commands import train as commands
from trainer.config import changed
from trainer.learning.optimizer import make_optimizer
from trainer.loop.checkpoint import Checkpoint, save_checkpoint
from trainer.loop.training import reopened
from trainer.policy import Policy, build_tokenizer
from trainer.recipes import recipe
from trainer.rollout import Rollout
from trainer.setup import cache_folder, check, make_method, make_rollout
from trainer.supervised.warmup import fingerprint
from twinstats import cli
from twinstats.credit import names
from twinstats.errors import UsageError
from twinstats.records import create_run


@pytest.mark.parametrize("method", names())
def test_every_method_is_made_from_the_configuration(config, method):
    assert make_method(changed(config, [f"credit.method={method}"])).name == method


def test_a_method_gets_the_options_it_has(config):
    vine = make_method(changed(config, ["credit.method=vine", "credit.rollouts=5"]))
    assert vine.options == {"rollouts": 5}
    twice = make_method(changed(config, ["credit.method=twice", "credit.fresh=0.4"]))
    assert (twice.options["twins"], twice.options["budget"].fresh) == (1, 0.4)
    plain = make_method(changed(config, ["credit.method=twice", "credit.budget=none"]))
    assert plain.options["budget"] is None
    assert make_method(config).options == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["credit.method=rlo"], "Unknown credit method 'rlo'. Did you mean 'rloo'"),
        (["rollout.group_size=1"], "'rloo' compares.*`rollout.group_size` must be at least 2"),
        (["credit.method=twice", "rollout.group_size=1"], "`rollout.group_size` must be at least"),
        (["credit.method=twice", "credit.budget=-1"], "`credit.budget`.*at least 0"),
        (["credit.method=twice", "credit.null=1.5"], "`credit.budget`: `null` must be in"),
        (["task.name=fact"], "Unknown task 'fact'. Did you mean 'facts'"),
        (
            ["rollout.max_turn_tokens=256"],
            "must be below `model.max_length`, which is 256, got 256",
        ),
        (["engine.batch_invariant=true"], "`engine.batch_invariant` is vLLM's"),
        (["model.heads=3"], "`model.heads` must be a multiple of `model.kv_heads`, got 3 and 2"),
        (["model.heads=12", "model.hidden=36"], "must be even and above 0, got 36 / 12"),
        (["model.heads=64"], "must be even and above 0, got 32 / 64"),
        (["evaluation.samples=1000000000"], "`evaluation.samples` must be at most 65535"),
        (["credit.options.weight=1"], "Unknown option of method 'rloo' 'weight'. There is none.$"),
    ],
)
def test_what_cannot_run_is_refused(config, settings, message):
    with pytest.raises(UsageError, match=message):
        check(changed(config, settings))


def test_a_group_of_one_is_enough_where_members_are_not_compared(config):
    for settings in (["credit.method=vine"], ["credit.method=twice", "credit.budget=none"]):
        assert check(changed(config, [*settings, "rollout.group_size=1"])) is None


def test_a_rollout_stops_at_the_tasks_tags_and_within_the_context(policy, config):
    rollout = make_rollout(policy, changed(config, ["task.parts=3", "model.max_length=100"]))
    assert isinstance(rollout, Rollout)
    ends = [policy.encode(tag)[0] for tag in ("</search>", "</answer>")]
    assert rollout.engine._ending.stop == frozenset(ends)
    assert rollout._setting.limits.max_turns == 9
    assert rollout._setting.limits.max_context + config.rollout.max_turn_tokens == 100


def test_a_tokenizer_without_the_tasks_tags_is_refused(policy, config):
    other = build_tokenizer(["a b"], vocabulary=300, special=["<search>"])
    with pytest.raises(UsageError, match="must hold </search>, </answer> as tokens"):
        make_rollout(Policy(policy.model, other), config)


def test_the_optimizer_holds_every_parameter_once(policy, config):
    (group,) = make_optimizer(policy, config).param_groups
    assert len(group["params"]) == len(list(policy.model.parameters()))
    assert (group["lr"], group["weight_decay"]) == (1e-3, 0.0)


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("TWINSTATS_CACHE", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache" and cache_folder().is_dir()


def test_a_warm_up_is_named_by_all_that_made_it_and_by_nothing_else(config):
    before = fingerprint(config)
    for setting in ("warmup.steps=3", "model.hidden=64", "warmup.seed=1"):
        assert fingerprint(changed(config, [setting])) != before
    other = ("seed=9", "credit.method=vine", "rollout.groups=9", "warmup.minimum_exact_match=0.5")
    for setting in other:
        assert fingerprint(changed(config, [setting])) == before


@pytest.mark.parametrize("name", ["budget", "twins", "rollouts"])
def test_however_many_forks_are_asked_for_they_are_refused_or_tried_fast(config, name):
    method = "vine" if name == "rollouts" else "twice"
    own = [f"credit.method={method}"] + ["credit.budget=none"] * (name == "twins")
    begun = time.monotonic()
    check(changed(config, [*own, f"credit.{name}=65535"]))
    assert time.monotonic() - begun < 2  # seconds; thousands of forks take longer
    with pytest.raises(UsageError, match=f"`credit.{name}` must be at most 65535, got"):
        changed(config, [*own, f"credit.{name}=65536"])


@pytest.mark.parametrize("judge", ["http://", "https:///v1", "http://[", "localhost:1"])
def test_a_judge_without_a_host_is_refused(config, judge):
    with pytest.raises(UsageError, match="`needs.judge` must be policy or an http address"):
        changed(config, [f"needs.judge={judge}"])


# The command line


def called(*arguments):
    """The exit code of `twice ...`."""
    with pytest.raises(SystemExit) as stop:
        cli.main([str(word) for word in arguments])
    return stop.value.code


@pytest.fixture
def twice(monkeypatch, capsys):
    """Runs a command as `twice` does, without any warm-up: -> (exit code, standard error)."""

    def warmed(config):
        raise AssertionError("a warm-up was started")

    monkeypatch.setattr(commands, "warmed", warmed)
    return lambda *arguments: (called(*arguments), capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dmo"], "Unknown recipe 'dmo'. Did you mean 'demo'?"),
        (["demo", "--set", "credit.metod=vine"], "Did you mean 'credit.method'?"),
        (["demo", "--set", "credit.method=vin"], "Unknown credit method 'vin'"),
        (["demo", "--set", "seed=1.5"], "`seed` must be int, got '1.5'"),
        (["demo", "--set", "seed"], "takes path=value"),
        (["demo", "--set", "rollout.group_size=1"], "must be at least 2, got 1"),
        (["demo", "--set", "task.name=shop"], "Unknown task 'shop'"),
        (["demo", "--set", "task.parts=100000"], "`task.parts`: "),
        (
            ["demo", "--set", "evaluation.questions=1017"],
            "must be at most 1016, the test questions",
        ),
        (["demo", "--resume"], "is no run"),
        (["demo", "--fallback"], "`--fallback` is for --resume"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2_before_any_work(
    twice, tmp_path, arguments, message
):
    code, error = twice("train", *arguments, "--out", tmp_path / "run")
    assert code == 2
    assert error.startswith("twice: ") and message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_missing_folder_or_a_wrong_option_is_wrong_usage(twice, tmp_path):
    for arguments in (["demo"], ["demo", "--out", tmp_path, "--sett", "seed=1"], ["--out", "x"]):
        code, error = twice("train", *arguments)
        assert code == 2 and error.startswith("twice: ") and error.count("\n") == 1


def test_a_tracker_that_is_not_installed_is_refused_before_the_warm_up(
    twice, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    own = ("--out", tmp_path / "run", "--set", "log.tracker=wandb")
    code, error = twice("train", "demo", *own)
    assert code == 2 and "needs the package wandb" in error
    assert not (tmp_path / "run").exists()


def test_folders_are_refused_before_the_warm_up(twice, tmp_path, config):
    run = tmp_path / "run"
    command = "twice train demo"
    create_run(run, command=command, configuration=asdict(config), seed=5, started="now")
    before = (run / "run.json").read_bytes()
    code, error = twice("train", "demo", "--out", run)
    assert code == 2 and "already exists" in error
    code, error = twice("train", "demo", "--resume", "--out", run)
    assert code == 2 and "another configuration" in error and "seed (5 -> 0)" in error
    (tmp_path / "file").write_text("")
    code, error = twice("train", "demo", "--out", tmp_path / "file")
    assert code == 2 and "already exists" in error
    code, error = twice("train", "demo", "--out", tmp_path / "file" / "run")
    assert code == 2 and f"cannot be made: {tmp_path / 'file'} is no folder to write in" in error
    assert (run / "run.json").read_bytes() == before


def test_an_evaluations_folder_is_no_training_to_go_on_with(twice, tmp_path):
    """Its configuration is that of the run it evaluated."""
    run = create_run(
        tmp_path / "run",
        command="twice evaluate",
        configuration=asdict(recipe("demo")),
        seed=0,
        started="now",
    )
    code, error = twice("train", "demo", "--resume", "--out", run.path)
    assert code == 2 and "was made by 'twice evaluate': only training runs" in error
    assert [one.name for one in run.path.iterdir()] == ["run.json"]


def test_evaluate_refuses_what_is_no_training_run(twice, tmp_path, config):
    code, error = twice("evaluate", tmp_path)
    assert code == 2 and "is no run" in error
    tuned = {"command": "twice sft", "configuration": asdict(config) | {"sft": {"epochs": 1}}}
    create_run(tmp_path / "tuned", **tuned, seed=5, started="now")
    code, error = twice("evaluate", tmp_path / "tuned")
    assert code == 2 and "was made by 'twice sft': only training runs have checkpoints" in error
    for name, tree in (("other", {"quick": True}), ("empty", asdict(config))):
        create_run(
            tmp_path / name, command="twice train", configuration=tree, seed=5, started="now"
        )
    code, error = twice("evaluate", tmp_path / "other")
    assert code == 2 and "no recipe" in error
    code, error = twice("evaluate", tmp_path / "empty")
    assert code == 2 and "has no checkpoint yet" in error
    for wrong, named in (("task.parts=100000", "`task.parts`: "), ("seed=x", "`seed` must be int")):
        code, error = twice("evaluate", tmp_path / "empty", "--set", wrong)
        assert code == 2 and named in error


def test_a_run_of_another_version_is_refused_by_its_field_or_has_defaults(twice, tmp_path, config):
    run, tree = tmp_path / "run", asdict(config)
    tree["learner"] = {"wings": 2}
    command = "twice train demo"
    create_run(run, command=command, configuration=tree, seed=5, started="now")
    log = tmp_path / "episodes.jsonl"
    log.write_text("")
    for arguments in (
        ["evaluate", run],
        ["oracle", run, "--out", tmp_path / "out"],
        ["retrofit", log, "--policy", run, "--out", tmp_path / "out"],
        ["train", "demo", "--resume", "--out", run],
    ):
        code, error = twice(*arguments)
        assert code == 2 and f"{run} was written by another version" in error, arguments
        assert "does not have: learner.wings." in error
    del tree["learner"]
    create_run(tmp_path / "older", command=command, configuration=tree, seed=5, started="now")
    assert shared.trained_config(tmp_path / "older", []) == config
    assert reopened(tmp_path / "older", config).path == tmp_path / "older"


def test_ctrl_c_is_said_once_and_ends_what_was_invoked_too(monkeypatch, capsys):
    def interrupted(name):
        app = typer.Typer()

        @app.command()
        def command() -> None:
            raise KeyboardInterrupt

        return typer.main.get_command(app)

    monkeypatch.setattr(cli, "_command", interrupted)
    assert called("train") == 130
    assert capsys.readouterr().err == "twice: Stopped.\n"
    with pytest.raises(KeyboardInterrupt):
        cli.invoke("train", [])


def test_weights_that_are_not_numbers_are_no_evaluation(
    monkeypatch, capsys, tmp_path, policy, config, parity
):
    monkeypatch.setattr(shared, "warmed", lambda given: policy)
    fields = {"configuration": asdict(config), "seed": 5, "started": "now"}
    create_run(tmp_path / "run", command="twice train demo", **fields)
    ruined = {name: one.detach() * torch.nan for name, one in policy.model.named_parameters()}
    folder = tmp_path / "run" / "checkpoints"
    best = {"best": {"step": 3, "score": 0.5}}
    save_checkpoint(folder, Checkpoint(3, ruined, {}, best), keep=1)
    assert called("evaluate", tmp_path / "run", "--checkpoint", "best") == 1
    assert "step-00000003 are ruined" in capsys.readouterr().err
    assert called("evaluate", tmp_path / "run", "--checkpoint", "worst") == 2
    assert "`--checkpoint` takes a step or best, got 'worst'" in capsys.readouterr().err


def test_train_and_evaluate_work_together(monkeypatch, capsys, tmp_path, policy, config, parity):
    for module in (commands, shared):
        monkeypatch.setattr(module, "warmed", lambda given: policy)
    monkeypatch.setattr(commands, "recipe", lambda name: config)
    out = tmp_path / "run"
    settings = ["--set", "length.steps=1", "--set", "credit.method=twice"]
    assert called("train", "demo", "--out", out, *settings) == 0, capsys.readouterr().err
    told = json.loads((out / "run.json").read_text())["configuration"]
    assert (told["length"]["steps"], told["credit"]["method"]) == (1, "twice")
    capsys.readouterr()
    assert called("train", "demo", "--out", out, "--resume", *settings) == 0
    told = capsys.readouterr().err
    assert f"{out} is at its end (`length.steps` 1, `length.total_tokens` none): nothing" in told
    assert "another length" not in told
    assert called("evaluate", out, "--checkpoint", 1) == 0
    assert capsys.readouterr().out.startswith("run, step 1")
    assert called("evaluate", out, "--checkpoint", "best") == 0
    assert capsys.readouterr().out.startswith("run, step ")
    assert called("evaluate", out, "--checkpoint", 7) == 2
    assert "it has: 0, 1" in capsys.readouterr().err
    settings[1] = "length.steps=2"
    assert called("train", "demo", "--out", out, "--resume", *settings) == 0
    told = capsys.readouterr().err
    assert f"{out} goes on with another length: length.steps (1 -> 2)." in told
    assert "nothing was left" not in told
