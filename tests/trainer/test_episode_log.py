"""Files of logged episodes: what a line may hold, and what is said of one that is none."""

import functools
import json
from pathlib import Path

import pytest

from trainer.logged.episode_log import LoggedEpisode, read_episodes
from trainer.logged.retrofit import logged_task
from trainer.loop.train import train_tasks
from twinstats.episodes import Task
from twinstats.errors import UsageError

TASK = Task("t")


@pytest.fixture
def task(config):
    return train_tasks(config, 1)[0]


@pytest.fixture
def read_back(tmp_path, config):
    """The episodes of a file with this text."""

    def read(text):
        path = tmp_path / "log.jsonl"
        path.write_text(text, encoding="utf-8")
        return read_episodes(path, functools.partial(logged_task, config=config), 600)

    return read


def test_lines_come_back_as_episodes(read_back, task, tmp_path):
    lines = [
        {"task": task.id, "turns": [[5, 6], "<answer>\u2028</answer>"]},
        {"task": task.id, "turns": [[599]], "observations": ["<question>"]},
        {"task": task.id, "turns": ["a", "b"], "observations": [None, "x"]},
    ]
    text = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    first, second, third = read_back(text)
    assert first.turns == ((5, 6), "<answer>\u2028</answer>") and first.observations == ()
    assert second.turns == ((599,),) and second.observations == ("<question>",)
    assert third.observations == (None, "x")
    assert {one.task for one in (first, second, third)} == {task}
    assert first.task.info == task.info
    assert [Path(one.place).name for one in (first, second, third)] == [
        "log.jsonl:1",
        "log.jsonl:3",
        "log.jsonl:5",
    ]


GOOD = '{"task": "TASK", "turns": [[5, 6]]}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "must be a JSON object, got list"),
        ("{", "must be a JSON object, but"),
        ("[" * 100_000, "must be a JSON object, but"),
        ('{"turns": [[5]]}', "`task` must be the id of a task, as text, got None"),
        ('{"task": 3, "turns": [[5]]}', "`task` must be the id of a task, as text, got 3"),
        ('{"task": "XX/y/z", "turns": [[5]]}', "`question_id` must be the id of a question"),
        ('{"task": "TASK+TASK", "turns": [[5]]}', "at most 1 questions, which is `task.parts`"),
        ('{"task": "TASK"}', "`turns` must be a list of texts or of lists of token ids"),
        ('{"task": "TASK", "turns": [5]}', "`turns` must be a list of texts or of lists"),
        ('{"task": "TASK", "turns": []}', "`turns` must hold at least one turn"),
        ('{"task": "TASK", "turns": [[]]}', "`turns` must hold at least one turn"),
        ('{"task": "TASK", "turns": [[1.5]]}', "`turns` must hold texts or lists of token ids"),
        ('{"task": "TASK", "turns": [[-1]]}', "`turns` must hold texts or lists of token ids"),
        ('{"task": "TASK", "turns": [[600]]}', "`turns` must hold token ids below 600, got 600"),
        (
            '{"task": "TASK", "turns": [[5]], "observations": "x"}',
            "`observations` must be a list of texts or nulls",
        ),
        (
            '{"task": "TASK", "turns": [[5]], "observations": ["x", "y"]}',
            r"`observations` must have one entry a turn (1), got 2",
        ),
        ('{"task": "TASK", "turns": ["\\ud800"]}', "`turns[0]` must be Unicode text"),
        (
            '{"task": "TASK", "turns": ["a", "b"], "observations": [null, "\\udfff"]}',
            "`observations[1]` must be Unicode text",
        ),
        ('{"task": "TASK", "turns": [[5]], "turns": [[6]]}', "the key 'turns' is in it twice"),
        ('{"task": "TASK", "turns": [[5], [6, true]]}', "got True in turn 1"),
        ('{"task": "TASK", "turns": [[5, NaN]]}', "got nan in turn 0"),
        ('{"task": "TASK", "turn": [[5]]}', "Unknown key of an episode 'turn'. Did you mean"),
    ],
)
def test_a_line_that_is_no_episode_is_named(read_back, task, line, message):
    with pytest.raises(UsageError) as found:
        read_back(f"{GOOD}\n\n{line}\n{GOOD}".replace("TASK", task.id))
    assert "log.jsonl:3: " in str(found.value) and message in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "row",
    [
        {"task": "x" * 10**6, "turns": [[5]]},
        {"task": "TASK", "turns": [[1.5] * 10**5]},
        {"task": "TASK", "turns": [[5, "9" * 10**5]]},
        {"k" * 10**6: 1},
    ],
    ids=["task", "turn", "token", "key"],
)
def test_a_huge_line_that_is_no_episode_is_named_in_a_short_sentence(read_back, task, row):
    with pytest.raises(UsageError, match="log.jsonl:1: ") as found:
        read_back(json.dumps(row).replace("TASK", task.id))
    assert len(str(found.value)) < 1000


def test_a_file_without_episodes_is_refused(read_back, tmp_path):
    with pytest.raises(UsageError, match="log.jsonl must hold at least one episode"):
        read_back(" \n\n")
    with pytest.raises(UsageError, match="none.jsonl cannot be read"):
        read_episodes(tmp_path / "none.jsonl", Task, 600)
    (tmp_path / "log.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="log.jsonl cannot be read"):
        read_episodes(tmp_path / "log.jsonl", Task, 600)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"turns": ()}, "`turns` must hold at least one turn"),
        ({"turns": ((5,), ())}, "none that is empty"),
        ({"turns": ((5,), "")}, "none that is empty"),
        ({"turns": ((1, -2),)}, "lists of token ids, got"),
        ({"turns": ((1, 2**32),)}, "lists of token ids, got"),
        ({"turns": ((True,),)}, "lists of token ids, got"),
        ({"turns": ((5,), (5,)), "observations": ("?",)}, r"one entry a turn \(2\), got 1"),
    ],
)
def test_an_episode_that_is_none_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LoggedEpisode(task=TASK, **options)
