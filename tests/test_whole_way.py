"""The whole way once, small: what `twice demo` does, and the demo's agent replayed exactly."""

import json
import warnings

import pytest

from trainer.recipes import recipe
from trainer.setup import cache_folder, make_rollout
from trainer.supervised.warmup import warm_policy
from trainer.tasks.rows import task_rows
from twinstats import cli
from twinstats.episodes import KEEP, Fork, Task
from twinstats.rows import is_equal_decision, null_disagreements


@pytest.fixture(scope="module")
def agent():
    config = recipe("demo")
    return config, warm_policy(config, cache_folder())


def test_null_twins_end_as_their_factuals_did(agent):
    config, policy = agent
    rollout = make_rollout(policy, config)
    tasks = [Task(row.id, row.info) for row in task_rows("train", 4, key="null")[:12]]
    episodes = rollout.play(tasks, 8, 1)
    turns = [(e, t) for e in episodes for t in range(e.num_turns - 1)]
    nulls = rollout.fork([Fork(episode, turn, KEEP) for episode, turn in turns])
    count, by_token, by_outcome = null_disagreements(nulls)
    assert count >= 500
    assert (by_token, by_outcome) == (0, 0)
    for (episode, turn), null in zip(turns, nulls, strict=True):
        assert null.sampled == sum(t.num_tokens for t in episode.turns[turn + 1 :])


def test_a_twins_cost_is_what_it_sampled(agent):
    config, policy = agent
    rollout = make_rollout(policy, config)
    tasks = [Task(row.id, row.info) for row in task_rows("train", 4, key="cost")[:2]]
    episodes = rollout.play(tasks, 4, 1)
    forks = [Fork(e, t) for e in episodes for t in range(e.num_turns)]
    twins = rollout.fork(forks)
    assert {is_equal_decision(twin) for twin in twins} == {True, False}
    for fork, twin in zip(forks, twins, strict=True):
        own = twin.turns[fork.turn : fork.turn + 1 if is_equal_decision(twin) else None]
        assert twin.sampled == sum(turn.num_tokens for turn in own)
        assert twin.outcome == sum(turn.reward for turn in twin.turns)


def test_the_small_demo_measures_everything(tmp_path, capsys):
    out = tmp_path / "demo"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(SystemExit) as stop:
            cli.main(["demo", "--quick", "--out", str(out), "--debug"])
    assert stop.value.code == 0, capsys.readouterr().err
    summary = json.loads((out / "summary.json").read_text())
    assert {row["method"] for row in summary["training"]} == {"rloo", "independent", "twice"}
    assert summary["null_twins"]["token_disagreements"] == 0
    assert summary["null_twins"]["outcome_disagreements"] == 0
    whole = summary["coupling"][0]
    assert whole["place"] == "all" and whole["coupling_gain"]["value"] > 1
    assert {row["coupling"] for row in summary["exponents"]} == {"shared", "fresh"}
    for name in ("complexity", "variance", "leaderboard", "learning"):
        assert {path.suffix for path in (out / "figures").glob(f"{name}.*")} >= {".pdf", ".csv"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Twin inspector" in page
    printed = capsys.readouterr().out
    for path in summary["made"]:
        assert path.rsplit("/", 1)[-1] in printed.replace("\n", "")
    with pytest.raises(SystemExit) as again:
        cli.main(["demo", "--quick", "--out", str(out)])
    assert again.value.code == 2 and "already exists" in capsys.readouterr().err
