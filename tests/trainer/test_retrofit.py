"""`twice retrofit`: a file of logged episodes becomes a run with credit, or is refused by line."""

import json
import re
from dataclasses import asdict

import numpy as np
import polars as pl
import pytest

from trainer.commands import shared, train
from trainer.config import changed
from trainer.logged.retrofit import logged_task
from trainer.loop.train import train_tasks
from trainer.policy import Policy, build_model
from trainer.setup import make_rollout
from twinstats import cli
from twinstats.episodes import Task
from twinstats.records import create_run, read, read_run, tables


def called(*arguments):
    """The exit code of `twice ...`."""
    with pytest.raises(SystemExit) as stop:
        cli.main([str(word) for word in arguments])
    return stop.value.code


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizer, config):
    """The folder of a run of one step, and the policy of its checkpoint."""
    policy = Policy(build_model(config.model, seed=0), tokenizer)
    out = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "warmed", lambda given: policy)
        patch.setattr(train, "recipe", lambda name: config)
        assert called("train", "demo", "--out", out, "--set", "length.steps=1") == 0
    return out, policy


@pytest.fixture
def policy(made):
    return made[1]


@pytest.fixture
def trained(made, monkeypatch, parity):
    """The folder of a run, whose policy needs no warm-up."""
    monkeypatch.setattr(shared, "warmed", lambda given: made[1])
    return made[0]


@pytest.fixture
def rows(trained, policy, config, dice):
    """Three tasks with two episodes each, sampled by torch from that policy, as lines of a log."""
    own = changed(config, ["rollout.groups=3"])
    played = make_rollout(policy, own, sampler=dice(1)).play(train_tasks(own, 9), 2, 0)
    return [
        {
            "task": one.task.id,
            "turns": [list(turn.action) for turn in one.turns],
            "observations": [turn.state for turn in one.turns],
        }
        for one in played
    ]


@pytest.fixture
def retrofit(trained, tmp_path, capsys):
    """Runs the command on rows or a text: -> (exit code, standard output, standard error)."""

    def run(rows, *options, out="out"):
        log = tmp_path / "log.jsonl"
        text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        log.write_text(text, encoding="utf-8")
        capsys.readouterr()
        code = called("retrofit", log, "--policy", trained, "--out", tmp_path / out, *options)
        return (code, *capsys.readouterr())

    return run


def setting(*assignments):
    return [word for one in assignments for word in ("--set", one)]


def test_a_log_becomes_a_run_with_credit_for_every_turn(retrofit, rows, tmp_path):
    code, told, error = retrofit(rows, *setting("credit.budget=none", "credit.twins=2"))
    assert (code, error) == (0, "")
    out, num_turns = tmp_path / "out", sum(len(row["turns"]) for row in rows)
    assert f"6 of 6 episodes adopted, {2 * num_turns} forks" in told
    assert tables(out) == [
        "allocations",
        "credit",
        "episodes",
        "metrics",
        "pairs",
        "texts",
        "turns",
    ]
    episodes = read(out, "episodes").collect()
    factuals = episodes.filter(pl.col("parent").is_null())
    assert factuals["task"].to_list() == [row["task"] for row in rows]
    assert factuals["step"].to_list() == [1, 1, 1, 1, 2, 2]  # two tasks a step
    assert factuals["row"].to_list() == [0, 1, 2, 3, 0, 1]
    assert factuals["sampled"].to_list() == [sum(map(len, row["turns"])) for row in rows]
    credit = read(out, "credit").collect()
    assert len(credit) == num_turns and credit["value"].is_not_null().all()
    assert set(credit["method"]) == {"twice"}
    assert read(out, "turns").collect()["logprob"].is_not_null().all()
    pairs = read(out, "pairs").collect()
    assert set(pairs["kind"]) == {"twin"} and len(pairs) == 2 * num_turns
    assert (pairs["factual_outcome"] != pairs["twin_outcome"]).any()


def test_the_run_says_what_it_is(retrofit, rows, tmp_path):
    assert retrofit(rows, *setting("seed=8"))[0] == 0
    run = read_run(tmp_path / "out")
    assert (run["command"], run["seed"]) == ("twice retrofit", 8)
    assert run["finished"] is not None
    assert run["configuration"]["credit"]["method"] == "twice"
    assert run["configuration"]["optimizer"]["learning_rate"] == 0  # it learns nothing


def test_null_twins_are_counted_and_agree(retrofit, rows, tmp_path):
    code, told, _ = retrofit(rows * 2, *setting("credit.budget=9", "credit.null=1"))
    assert code == 0 and "null twins 0 drew other tokens" in told
    got, turns = (int(n) for n in re.search(r"(\d+) of (\d+) turns got credit", told).groups())
    assert 0 < got <= turns
    metrics = read(tmp_path / "out", "metrics").collect()
    found = {
        name: metrics.filter(pl.col("name") == f"pairs/null_{name}")["value"].sum()
        for name in (
            "count",
            "token_disagreements_count",
            "outcome_disagreements_count",
        )
    }
    assert found.pop("count") > 10 and set(found.values()) == {0}


def test_the_same_log_gives_the_same_credit(retrofit, rows, tmp_path):
    for out in ("one", "two"):
        assert retrofit(rows, out=out)[0] == 0
    for table in ("credit", "pairs", "episodes", "turns", "texts"):
        one, two = (read(tmp_path / out, table).collect().drop("run") for out in ("one", "two"))
        assert one.equals(two)


def test_figures_and_the_report_read_it(retrofit, rows, tmp_path):
    assert retrofit(rows * 4, *setting("credit.budget=8", "credit.fresh=1"))[0] == 0
    assert called("report", tmp_path / "out", "--out", tmp_path / "page.html") == 0
    assert "control" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert called("figures", tmp_path / "out", "--out", tmp_path / "figures") == 0
    assert (tmp_path / "figures" / "variance.pdf").is_file()


@pytest.mark.parametrize("method", ["vine", "rloo"])
def test_any_method_can_credit(retrofit, rows, tmp_path, method):
    assert retrofit(rows, *setting(f"credit.method={method}"))[0] == 0
    assert set(read(tmp_path / "out", "credit").collect()["method"]) == {method}


def test_turns_may_be_texts_and_observations_may_be_missing(retrofit, rows, tmp_path, policy):
    text = "<answer>a</answer>"
    given = [rows[0] | {"turns": [text], "observations": [None]}]
    given.append({"task": rows[0]["task"], "turns": [policy.encode(text)]})
    assert retrofit(given, *setting("credit.budget=none"))[0] == 0
    texts = read(tmp_path / "out", "texts").collect()
    assert texts.filter(pl.col("role") == "action")["text"].to_list()[0] == text
    turns = read(tmp_path / "out", "turns").collect()
    assert turns["num_tokens"].n_unique() == 1 and turns["logprob"].n_unique() == 1


def test_an_episode_that_goes_otherwise_is_recorded_with_its_line(retrofit, rows, tmp_path):
    rows[1]["observations"][1] = "<information>other</information>"
    rows[3]["turns"].append(rows[3]["turns"][-1])
    rows[3]["observations"].append(None)
    code, told, error = retrofit(rows)
    assert code == 0 and "4 of 6 episodes adopted" in told
    first, second = error.splitlines()
    assert "log.jsonl:2: not adopted: before turn 1 the environment shows something" in first
    assert "log.jsonl:4: not adopted: the episode is over after" in second
    episodes = read(tmp_path / "out", "episodes").collect()
    factuals = episodes.filter(pl.col("parent").is_null())
    assert factuals["outcome"].is_null().to_list() == [False, True, False, True, False, False]
    assert factuals["reason"][1].startswith("before turn 1")
    credit = read(tmp_path / "out", "credit").collect().filter(pl.col("episode") == "1/1")
    assert credit["value"].is_null().all()


def test_a_log_of_which_nothing_can_be_adopted_writes_nothing(retrofit, rows, tmp_path):
    code, _, error = retrofit([row | {"turns": [[300]], "observations": None} for row in rows])
    assert code == 2 and error.count("\n") == 1
    assert "No episode can be adopted; " in error and "log.jsonl:1: turn 0 does not end" in error
    assert not (tmp_path / "out").exists()


def test_a_method_that_compares_needs_several_episodes_of_a_task(retrofit, rows, tmp_path):
    code, _, error = retrofit(rows[:3], *setting("credit.method=rloo"))
    assert code == 2 and "compares the episodes of a task, but 1 tasks have one" in error
    assert rows[2]["task"] in error and not (tmp_path / "out").exists()


GOOD = '{"task": "TASK", "turns": [[5, 6]]}'


def test_wrong_usage_is_refused_before_any_work(
    retrofit, trained, monkeypatch, config, tmp_path, capsys
):
    monkeypatch.setattr(shared, "warmed", lambda config: pytest.fail("a warm-up was started"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    good = GOOD.replace("TASK", train_tasks(config, 1)[0].id)
    for given, options, message in (
        ("\n", [], "must hold at least one episode"),
        (f"{good}\n\n" + '{"task": 3}', [], "log.jsonl:3: `task` must be the id of a task"),
        (good, setting("credit.method=twic"), "Unknown credit method 'twic'"),
        (good, setting("model.hidden=64"), "cannot change the model"),
        (good, ["--checkpoint", 7], "has no checkpoint of step 7"),
    ):
        code, _, error = retrofit(given, *options)
        assert code == 2 and message in error and error.count("\n") == 1
    code, _, error = retrofit(good, out="full")
    assert code == 2 and "already exists: name another folder." in error
    missing = ["retrofit", tmp_path / "none.jsonl", "--policy", trained, "--out", tmp_path / "out"]
    assert called(*missing) == 2 and "none.jsonl cannot be read" in capsys.readouterr().err
    create_run(
        tmp_path / "empty",
        command="twice train",
        configuration=asdict(config),
        seed=5,
        started="now",
    )
    missing[1], missing[3] = tmp_path / "log.jsonl", tmp_path / "empty"
    assert called(*missing) == 2 and "has no checkpoint yet" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_task_is_found_by_the_ids_of_its_questions(config):
    own = changed(config, ["task.parts=3"])
    for task in train_tasks(own, 1):
        found = logged_task(task.id, own)
        assert found == Task(task.id) and found.info == task.info
    shorter = train_tasks(changed(config, ["task.parts=2"]), 1)[0]
    assert np.shape(logged_task(shorter.id, own).info["questions"]) == (2,)


def test_a_log_that_the_policy_cannot_have_drawn_is_recorded_and_gets_no_credit(
    retrofit, rows, tmp_path
):
    """At such a temperature no logged token has a probability: every turn is refused."""
    code, told, error = retrofit(rows, *setting("rollout.temperature=1e-300"))
    assert code == 0 and "0 of 6 episodes adopted, 0 forks" in told
    assert error.count("which the policy cannot draw") == 5  # as many as are shown
    episodes = read(tmp_path / "out", "episodes").collect()
    assert episodes["outcome"].is_null().all() and episodes["reason"].is_not_null().all()
    assert set(episodes["sampled"]) == {0}
    assert read_run(tmp_path / "out")["finished"] is not None
