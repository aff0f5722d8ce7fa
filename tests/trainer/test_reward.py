"""Rewards and prompts of the user's own: what a function is given and may return, who sees it."""

import json
import math
import re
import sys

import polars as pl
import pytest

from tests.trainer import tiny_qwen
from tests.trainer.conftest import Echo, Letters, Script, coin
from trainer.chat_template import ChatTemplate
from trainer.config import Config, TaskConfig, changed
from trainer.rollout import Rollout
from trainer.rollout.play import Limits
from trainer.setup import check
from trainer.tasks import Step, ToolError
from trainer.tasks.chat import Chat
from trainer.tasks.reward import Rewarded, load_reward
from trainer.tasks.search_qa import SearchQa
from twinstats.episodes import KEEP, RESAMPLE, Fork, Task
from twinstats.errors import UsageError

SOURCE = '''
"""Rewards, as a user would write them for TRL."""


def length(prompts, completions, level, **columns):
    return [len(completion) / one for completion, one in zip(completions, level)]


async def later(prompts, completions, **columns):
    return [1.0]


def narrow(texts):
    return [1.0]


number = 3
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's, `own_rewards`."""
    (tmp_path / "own_rewards.py").write_text(SOURCE)
    (tmp_path / "broken_rewards.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "exiting_rewards.py").write_text("raise SystemExit(4)\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_rewards"
    sys.modules.pop("own_rewards", None)
    load_reward.cache_clear()


class Once:
    """An environment of two turns that shows `[n]` after each."""

    stop, max_turns = ("|",), 2

    def reset(self, row, noise):
        self.turn = 0
        return "?"

    def step(self, text, noise):
        self.turn += 1
        return Step(f"[{self.turn}]", 0.25, self.turn == 2, {"won": True, "truncated": False})

    def slot(self, history):
        return len(history)


def paid(function, row, turns=("a|", "b|"), environment=None):
    own = Rewarded(environment or Once(), function)
    own.reset(row, None)
    return [own.step(turn, None).reward for turn in turns]


def test_a_function_of_trls_form_scores_the_whole_episode_on_its_last_turn(module):
    function = load_reward(f"{module}:length")
    assert paid(function, {"prompt": "p", "columns": {"level": 2}}) == [0.0, len("a|[1]b|[2]") / 2]


def test_the_function_sees_prompt_completion_and_columns_as_lists_of_one():
    seen = {}

    def note(prompts, completions, **columns):
        seen.update(prompts=prompts, completions=completions, **columns)
        return [1]

    messages = [{"role": "user", "content": "hi"}]
    assert paid(note, {"prompt": messages, "columns": {"a": [1, 2]}}) == [0.0, 1.0]
    assert seen["prompts"] == [messages] and seen["a"] == [[1, 2]]
    assert seen["completions"] == [
        [
            {"role": "assistant", "content": "a"},
            {"role": "tool", "content": "[1]"},
            {"role": "assistant", "content": "b"},
            {"role": "tool", "content": "[2]"},
        ]
    ]
    seen.clear()
    paid(note, {"golds": ["x"]})  # a task without prompts: the first text, and what its row tells
    assert seen == {"prompts": ["?"], "completions": ["a|[1]b|[2]"], "golds": [["x"]]}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, "the reward returned None"),
        ([None], "the reward returned None"),
        ([math.nan], "must return a finite number, got nan"),
        (math.inf, "must return a finite number, got inf"),
        ("1", "must return a finite number, got '1'"),
        ([1.0, 2.0], "one number an episode, got 2"),
        ([], "one number an episode, got 0"),
    ],
)
def test_what_is_no_number_fails_the_episode_with_a_reason(told, said):
    with pytest.raises(ToolError, match=said):
        paid(lambda **given: told, {})


def test_a_reward_that_raises_fails_the_episode_with_a_reason():
    with pytest.raises(ToolError, match="the reward raised ZeroDivisionError: division by zero"):
        paid(lambda **given: 1 / 0, {})


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nothing", "must be package.module:function, got 'nothing'"),
        ("own_rewards:", "must be package.module:function"),
        ("no_such_module:f", "no_such_module:f cannot be loaded: No module named"),
        ("own_rewards:none", "own_rewards:none cannot be loaded: .*no attribute 'none'"),
        ("broken_rewards:f", "broken_rewards:f cannot be loaded: No module named 'nothing_of"),
        ("exiting_rewards:f", r"exiting_rewards:f cannot be loaded: SystemExit\(4\)"),
        ("own_rewards:number", "must be a function, and not an async one"),
        ("own_rewards:later", "must be a function, and not an async one"),
        ("own_rewards:narrow", r"must take `prompts`, `completions` and \*\*columns"),
    ],
)
def test_a_path_that_leads_to_no_reward_is_refused_in_one_sentence(module, path, said):
    with pytest.raises(UsageError, match=said):
        load_reward(path)


def test_a_reward_is_looked_for_before_anything_is_paid():
    with pytest.raises(UsageError, match="`reward`: no_such_module:f cannot be loaded"):
        check(changed(Config(recipe="demo"), ["reward=no_such_module:f"]))


# In a rollout


def rollout_of(reward, *, max_context=1000, turns=3):
    calls = []
    return Rollout(
        Letters(),
        Script(coin),
        lambda: Rewarded(Echo(calls, is_random=True), reward),
        seed=3,
        temperature=1.0,
        limits=Limits(max_context=max_context, max_turns=9),
    ), [Task("t", {"turns": turns, "right": "a."})]


def count_a(prompts, completions, **columns):
    """How often the agent said `a.`; what it is shown repeats it after `<`."""
    return [len(re.findall(r"(?<!<)a\.", completions[0]))]


def test_factuals_and_forks_are_scored_alike():
    rollout, tasks = rollout_of(count_a)
    factuals = rollout.play(tasks, 12, 1)
    forks = [
        Fork(e, turn, action) for e in factuals for turn in (0, 1) for action in (KEEP, RESAMPLE)
    ]
    played = rollout.fork(forks)
    for episode in (*factuals, *played):
        texts = ["".join(map(chr, turn.action)) for turn in episode.turns]
        assert episode.outcome == "".join(texts).count("a")
        assert [turn.reward for turn in episode.turns[:-1]] == [0.0] * (len(texts) - 1)
    for fork, twin in zip(forks, played, strict=True):
        assert fork.action is not KEEP or twin.outcome == fork.episode.outcome
    assert len({episode.outcome for episode in factuals}) > 1


def test_an_episode_that_a_limit_cuts_is_scored_by_what_there_is_of_it():
    rollout, tasks = rollout_of(count_a, max_context=14, turns=9)
    factuals = rollout.play(tasks, 12, 1)
    assert all(episode.truncated for episode in factuals)
    for episode in factuals:
        texts = ["".join(map(chr, turn.action)) for turn in episode.turns]
        assert episode.outcome == "".join(texts).count("a")
    assert any(episode.outcome > 0 for episode in factuals)
    twins = rollout.fork([Fork(episode, 0, KEEP) for episode in factuals])
    assert [twin.outcome for twin in twins] == [episode.outcome for episode in factuals]


def test_a_failed_reward_is_a_failed_row_and_the_others_go_on():
    def picky(prompts, completions, **columns):
        return [None if completions[0].startswith("a") else 1.0]

    rollout, tasks = rollout_of(picky)
    episodes = rollout.play(tasks, 12, 1)
    failed = [episode for episode in episodes if episode.outcome is None]
    assert 0 < len(failed) < 12
    assert {e.info["reason"] for e in failed} == {"a tool failed: the reward returned None"}
    assert all(e.outcome == 1.0 for e in episodes if e.outcome is not None)


def test_what_the_task_pays_is_dropped_and_what_it_tells_stays():
    own = Rewarded(Once(), lambda **given: 7)
    own.reset({}, None)
    step = own.step("a", None)
    assert (step.reward, step.info["won"]) == (0.0, True)
    assert (own.stop, own.max_turns, own.slot(["a"])) == (("|",), 2, 1)
    assert Rewarded(SearchQa(search=None), count_a).stop_texts == ("</search>", "</answer>")


# Chats


def test_a_chat_shows_its_prompt_and_takes_one_reply():
    form = ChatTemplate(tiny_qwen.tokenizer())
    chat = Chat(form=form)
    assert chat.reset({"prompt": "as it is"}) == "as it is"
    opening = chat.reset({"prompt": [{"role": "user", "content": "hi"}]})
    assert opening.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert chat.step("hello<|im_end|>").done
    assert not chat.step("hello<|im_end|>").info["truncated"]
    assert chat.step("hello without an en").info["truncated"]


def test_a_chat_without_a_reward_or_a_template_is_refused(tmp_path, module):
    rows = [{"prompt": [{"role": "user", "content": "hi"}], "level": 1}]
    (tmp_path / "chats.jsonl").write_text(json.dumps(rows[0]) + "\n")
    pl.DataFrame(rows).write_parquet(tmp_path / "chats.parquet")
    data = [f"task.data={tmp_path / 'chats.jsonl'}", f"task.test_data={tmp_path / 'chats.parquet'}"]
    chat = changed(Config(recipe="demo"), ["task.name=chat", "task.parts=1", *data])
    with pytest.raises(UsageError, match="Task 'chat' needs `reward`"):
        check(chat)
    with pytest.raises(UsageError, match="needs a model with a chat template"):
        check(changed(chat, [f"reward={module}:length"]))
    assert TaskConfig().name == "facts"
