"""What goes wrong in an environment or an engine is a row with a reason, and the step goes on."""

import math
import threading
import time

import numpy as np
import pytest

from tests.trainer.conftest import Echo, Letters, Script, coin, scripted
from trainer.rollout import Rollout, guarded, patience
from trainer.rollout.play import Limits
from trainer.tasks import Step, ToolError
from trainer.tasks.facts import Facts
from trainer.tasks.free_text import FreeText
from trainer.tasks.reward import Rewarded
from twinstats.episodes import FRESH, KEEP, SHARED, Fork, Task
from twinstats.errors import Stopped

GOOD, BAD = Task("t", {"right": "a.", "turns": 3}), Task("bad", {"right": "a.", "turns": 3})
OVER = {"won": False, "truncated": False}
HALF = "must return text of whole characters, got"


class Faulty(Echo):
    """Echo, whose rows named "bad" go through `fault` in the call that it is for."""

    def __init__(self, where, fault):
        super().__init__([])
        self._where, self._fault, self._is_bad = where, fault, False

    def reset(self, row, noise):
        self._is_bad = row is BAD.info
        return self._maybe("reset", super().reset(row, noise))

    def step(self, text, noise):
        return self._maybe("step", super().step(text, noise))

    def slot(self, history):
        return self._maybe("slot", super().slot(history))

    def _maybe(self, where, answer):
        return self._fault(answer) if self._is_bad and where == self._where else answer


def over(**flags):
    """A step that says something of how it ended."""
    return Step("", 0.0, True, OVER | flags)


class Quick(Faulty):
    """A task that says that no call of it can hang."""

    can_hang = False


def rollout_of(environment, *, choose=coin, seconds=60.0, max_context=1000, policy=None):
    limits = Limits(max_context=max_context, max_turns=9, tool_seconds=seconds)
    agent = Letters() if policy is None else policy
    return Rollout(agent, Script(choose), environment, seed=3, temperature=1.0, limits=limits)


def played(where, fault, *, task=Faulty, **options):
    """A good episode and one with a fault, and why that one failed."""
    good, bad = rollout_of(lambda: task(where, fault), **options).play([GOOD, BAD], 1, 0)
    assert good.outcome is not None and good.num_turns == 3 and "reason" not in good.info
    assert (bad.outcome, bad.success, bad.terminated, bad.truncated) == (None,) * 2 + (False,) * 2
    assert bad.sampled == sum(turn.num_tokens for turn in bad.turns) + unplayed(bad)
    return bad.info["reason"]


def unplayed(episode):
    """Tokens of the turn that the fault met, which is not in the episode."""
    return episode.sampled - sum(turn.num_tokens for turn in episode.turns)


class Mute(Exception):
    """An exception that cannot say what it is."""

    def __str__(self):
        raise KeyError


def raising(error):
    def fault(answer):
        raise error

    return fault


@pytest.mark.parametrize("where", ["reset", "step", "slot"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ToolError("no\nanswer"), "no answer"),
        (KeyError("x"), "`{}` raised KeyError: 'x'"),
        (TimeoutError("socket"), "`{}` raised TimeoutError: socket"),
        (RuntimeError("x" * 1000), "`{}` raised RuntimeError: " + "x" * 300),
        (ValueError("\ud800"), "`{}` raised ValueError: \\ud800"),
        (SystemExit(3), "`{}` raised SystemExit: 3"),
        (Mute(), "`{}` raised Mute: (its message cannot be read: KeyError)"),
    ],
)
def test_whatever_is_raised_is_the_reason(where, error, told):
    assert played(where, raising(error)) == f"a tool failed: {told.format(where)}"


@pytest.mark.parametrize("end", [KeyboardInterrupt("now"), Stopped("now")])
def test_the_user_can_end_the_program_while_its_own_thread_asks_the_task(end):
    for where, task in (("slot", Faulty), ("step", Quick)):
        with pytest.raises(type(end)):
            played(where, raising(end), task=task)
    told = f"a tool failed: `step` raised {type(end).__name__}: now"
    assert played("step", raising(end)) == told


def test_a_task_that_cannot_hang_is_asked_on_the_programs_own_thread_after_its_reset():
    own, seen = threading.current_thread(), []

    def told(answer):
        seen.append(threading.current_thread())
        raise ToolError("no answer")

    for where in ("reset", "step"):
        assert played(where, told, task=Quick) == "a tool failed: no answer"
    assert seen[0] is not own and seen[1] is own
    assert played("step", told) == "a tool failed: no answer"
    assert seen[2] is not own


@pytest.mark.parametrize("task", [Facts, FreeText])
def test_own_reward_functions_keep_the_time_limit(task):
    assert task.can_hang is False
    assert getattr(Rewarded(task(), len), "can_hang", True)


@pytest.mark.parametrize(
    ("where", "answer", "told"),
    [
        ("reset", None, "`reset` must return a text to show, got NoneType"),
        ("reset", b"?", "`reset` must return a text to show, got bytes"),
        ("slot", 1.5, "`slot` must return a whole number, got float"),
        ("slot", None, "`slot` must return a whole number, got NoneType"),
        ("step", None, "`step` must return observation, reward, done, info, got NoneType"),
        ("step", ("", 0.0, True), "`step` must return observation, reward, done, info, got tuple"),
        ("step", Step(7, 0.0, False, OVER), "`step` must return a text to show, got int"),
        ("step", Step("", None, False, OVER), "`step` must return its reward as a number"),
        ("step", Step("", math.nan, False, OVER), "`step` must return a finite reward, got nan"),
        ("step", Step("", -math.inf, False, OVER), "`step` must return a finite reward, got -inf"),
        ("step", Step("", 10**400, False, OVER), "`step` must return a finite reward, got inf"),
        ("step", Step("", 0.0, None, OVER), "`step` must return `done` as a bool, got NoneType"),
        ("step", Step("", 0.0, True, {"won": 1}), "`step` must return an info that has `won` and"),
        ("step", Step("", 0.0, True, None), "`step` must return an info that has `won` and"),
        ("step", over(won="no"), "`step` must return `won` as a bool, got str"),
        ("step", over(won=1), "`step` must return `won` as a bool, got int"),
        ("step", over(truncated=None), "`step` must return `truncated` as a bool, got NoneType"),
        ("step", Step("a\ud800", 0.0, False, OVER), f"`step` {HALF} '\\ud800' at character 1"),
        ("reset", "\udfff", f"`reset` {HALF} '\\udfff' at character 0"),
        ("reset", "", "`reset` showed nothing"),
    ],
)
def test_rubbish_is_named(where, answer, told):
    assert played(where, lambda _: answer).startswith(f"a tool failed: {told}")


@pytest.mark.parametrize(
    ("slot", "told"),
    [
        (0, "The task named slot 0 twice."),
        (65_535, "The task named slot 65535 twice."),
        (-1, "The task named a slot outside 0..65534: -1."),
        (65_536, "The task named a slot outside 0..65534: 65536."),
    ],
)
def test_a_slot_that_no_turn_can_have_fails_its_episode(slot, told):
    assert played("slot", lambda own: own and slot) == told


def test_numbers_of_numpy_are_numbers():
    def fault(step):
        info = {"won": np.bool_(step.done), "truncated": np.bool_(False)}
        return Step(step.observation, np.float32(0.5), np.bool_(step.done), info)

    good, bad = rollout_of(lambda: Faulty("step", fault)).play([GOOD, BAD], 1, 0)
    assert bad.outcome == 1.5 and type(bad.turns[0].reward) is float
    assert bad.success is True and type(bad.turns[0].info["step"]["won"]) is bool


@pytest.mark.parametrize("reward", [1e308, -1e308])
def test_rewards_whose_sum_is_not_finite_fail_their_episode(reward):
    reason = played("step", lambda step: step._replace(reward=reward))
    assert reason == f"the sum of its rewards must be finite, got {reward * 10}"


@pytest.mark.parametrize(("where", "num_turns"), [("reset", 0), ("step", 1)])
def test_a_text_with_a_token_that_the_model_lacks_fails_its_episode(where, num_turns):
    class Narrow(Letters):
        vocabulary = 128

    def shown(answer):
        if where == "reset":
            return "\x80?"
        return answer._replace(observation="so é") if "bb" in answer.observation else answer

    def choose(session, key, index):
        return "a." if index < 1 else "bb."

    rollout = rollout_of(lambda: Faulty(where, shown), choose=choose, policy=Narrow())
    good, bad = rollout.play([GOOD, BAD], 1, 0)
    assert good.outcome is not None and bad.outcome is None and bad.num_turns == num_turns
    text, token = (r"'\x80?'", r"128, '\x80'") if where == "reset" else ("'so é'", "233, 'é'")
    assert bad.info["reason"] == (
        f"the text {text} has token {token}, outside the policy's vocabulary of 128"
    )


def test_an_environment_that_cannot_be_made_fails_its_episode():
    made = []

    def make():
        made.append(None)
        if len(made) == 1:
            raise OSError("no game file")
        return Echo([])

    bad, good = rollout_of(make).play([GOOD, GOOD], 1, 0)
    told = "a tool failed: the environment's constructor raised OSError: no game file"
    assert (bad.info["reason"], bad.num_turns, bad.sampled) == (told, 0, 0)
    assert good.outcome is not None


@pytest.mark.parametrize("where", ["reset", "step"])
def test_what_hangs_is_left_alone(where):
    freed = threading.Event()
    begun = time.perf_counter()
    told = played(where, lambda answer: freed.wait(60) and answer, seconds=0.2)
    assert told == f"a tool failed: `{where}` took longer than 0.2 seconds"
    assert time.perf_counter() - begun < 10
    freed.set()


def test_a_worker_that_was_abandoned_ends_and_the_next_call_is_not_its():
    freed, threads = threading.Event(), []

    def hang():
        threads.append(threading.current_thread())
        freed.wait(60)
        return "late"

    with pytest.raises(TimeoutError):
        patience.outcome_within(0.05, hang)
    assert patience.outcome_within(5, lambda: "own").result() == "own"
    freed.set()
    threads[0].join(5)
    assert not threads[0].is_alive()
    assert patience.outcome_within(5, lambda: "own").result() == "own"


def test_a_call_that_gets_on_is_waited_for_and_left_once_it_does_not():
    parts, freed = [], threading.Event()

    def work():
        for part in range(4):
            time.sleep(0.3)
            parts.append(part)
        return "done"

    def stop():
        parts.append(0)
        freed.wait(60)

    waited = patience.outcome_within(0.5, work, progress=lambda: len(parts))
    assert waited.result() == "done"
    with pytest.raises(TimeoutError):
        patience.outcome_within(0.2, stop, progress=lambda: len(parts))
    freed.set()


def forked(drift):
    """What forks of an undisturbed episode of four turns come to, where `drift` is at work."""
    rollout = rollout_of(lambda: Echo([], drift=lambda *told: drifts[-1](*told)), seconds=0.5)
    drifts = [lambda turn, text: text]
    (parent,) = rollout.play([Task("t", {"right": "a.", "turns": 4})], 1, 0)
    drifts.append(drift)
    return rollout.fork([Fork(parent, 3, KEEP, FRESH)])[0], parent


def test_a_prefix_is_replayed_on_one_thread_in_one_go(monkeypatch):
    waited = []
    plain = patience.outcome_within
    monkeypatch.setattr(
        guarded, "outcome_within", lambda *a, **k: waited.append(0) or plain(*a, **k)
    )
    twin, parent = forked(lambda turn, text: text)
    assert twin.outcome == parent.outcome
    assert len(waited) == (1 + 4) + (1 + 1 + 1)  # of the fork: its start, its prefix, its turn


def test_each_call_of_a_prefix_has_the_whole_time_limit():
    twin, parent = forked(lambda turn, text: time.sleep(0.3) or text)
    assert twin.outcome == parent.outcome


def test_what_hangs_in_a_prefix_is_left_alone():
    freed = threading.Event()
    twin, _ = forked(lambda turn, text: text if turn == 1 else freed.wait(60) and text)
    told = "a tool failed: `step` took longer than 0.5 seconds"
    assert (twin.info["reason"], twin.num_turns, twin.outcome) == (told, 1, None)
    freed.set()


def test_a_prefix_that_differs_is_the_reason_whatever_comes_of_it_later():
    def drift(turn, text):
        if turn == 2:
            raise KeyError("lost")
        return text + "!"

    assert forked(drift)[0].info["reason"] == "replay differs before turn 1"


def test_calls_from_many_threads_do_not_wait_for_each_other():
    met = threading.Barrier(8)
    waited = []
    threads = [
        threading.Thread(
            target=lambda: waited.append(patience.outcome_within(20, lambda: met.wait(20)).result())
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(waited) == list(range(8))


def test_a_call_is_cheap():
    """A step of 1,000 turns makes about as many; half a millisecond each would be noticed."""
    begun = time.process_time()
    for _ in range(2000):
        patience.outcome_within(60, int)
    assert (time.process_time() - begun) / 2000 < 5e-4


# The step as a whole


def test_a_step_of_nothing_but_failures_is_refused():
    rollout = rollout_of(lambda: Faulty("step", raising(KeyError("first"))))
    with pytest.raises(
        RuntimeError, match="All 6 episodes of step 4 failed, .* `step` raised KeyError: 'first'"
    ):
        rollout.play([BAD, BAD], 3, 4)
    assert rollout.play([], 3, 4) == []
    assert [one.outcome for one in rollout.evaluate([BAD], 0)] == [None]


def test_a_prompt_without_room_fails_before_anything_is_sampled():
    long = Task("bad", {"right": "a.", "turns": 3, "long": True})

    class Wordy(Echo):
        def reset(self, row, noise):
            return super().reset(row, noise) * (20 if "long" in row else 1)

    rollout = rollout_of(lambda: Wordy([]), max_context=20)
    good, bad = rollout.play([GOOD, long], 1, 0)
    assert good.outcome is not None
    assert bad.info["reason"] == (
        "the first text of 20 tokens leaves no room for a turn: it must have fewer than 20"
    )
    assert (bad.num_turns, bad.sampled, len(rollout.engine.starts)) == (0, 0, 1)


def test_an_engine_that_cannot_sample_a_turn_fails_its_session():
    class Refusing(Script):
        def run(self, sessions, *, temperature):
            sessions[1].start()
            sessions[1].fail("the server said 503")
            super().run([sessions[0], *sessions[2:]], temperature=temperature)

    rollout, _, _ = scripted(coin)
    rollout.engine = Refusing(coin)
    first, failed, last = rollout.play([GOOD], 3, 0)
    assert (failed.outcome, failed.success) == (None, None)
    assert failed.info == {"reason": "the server said 503"}
    assert first.outcome is not None and last.outcome is not None


@pytest.mark.parametrize("action", [KEEP, (98, 46)])
@pytest.mark.parametrize("luck", [SHARED, FRESH])
def test_forks_of_a_failed_episode_fail(action, luck):
    def fault(step):
        raise KeyError("x") if step.observation == "" else ToolError("gone")

    rollout = rollout_of(lambda: Faulty("slot", lambda own: 10 if own else 0))
    good, bad = rollout.play([GOOD, BAD], 1, 0)
    assert bad.info["reason"] == "The task named slot 10 twice." and bad.num_turns == 2
    twin, other = rollout.fork([Fork(bad, 0, action, luck), Fork(good, 0, (98, 46))])
    assert (twin.outcome, twin.num_turns, twin.sampled) == (None, 0, 0)
    assert twin.info["reason"] == "the parent has no outcome: The task named slot 10 twice."
    assert other.outcome is not None


def test_a_fork_whose_tool_fails_fails_alone():
    broken = []

    def drift(turn, text):
        if turn == 3 and broken:
            raise ValueError("out of order")
        return text

    rollout, _, _ = scripted(coin, drift=drift)
    (parent,) = rollout.play([Task("t", {"right": "a.", "turns": 4})], 1, 0)
    broken.append(True)
    twins = rollout.fork([Fork(parent, 0, (98, 46)), Fork(parent, 3, (98, 46))])
    reason = "a tool failed: `step` raised ValueError: out of order"
    assert [twin.info["reason"] for twin in twins] == [reason] * 2
    assert [twin.num_turns for twin in twins] == [2, 2]


def test_a_null_twin_tells_of_the_replay_unless_its_tool_fails():
    broken = []

    def drift(turn, text):
        if turn == 2 and broken == ["down"]:
            raise OSError("no network")
        return text + "!" * (turn == 1 and broken == ["moved"])

    rollout, _, _ = scripted(coin, drift=drift)
    (parent,) = rollout.play([Task("t", {"right": "a.", "turns": 4})], 1, 0)
    nulls = [Fork(parent, 3, KEEP), Fork(parent, 0, KEEP)]
    for trouble, is_exact in (("down", True), ("moved", False)):
        broken[:] = [trouble]
        failed = rollout.fork(nulls[:1])[0]
        assert failed.outcome is None and rollout.exact_replay is is_exact
        broken.clear()
        assert rollout.fork(nulls[1:])[0].outcome == parent.outcome
    assert failed.info == {"reason": "replay differs before turn 1", "replay_differs": True}
    assert not rollout.exact_replay  # one exact null twin later it is still not trusted


def test_a_truncated_episode_has_an_outcome_and_is_forked_like_any_other():
    rollout, _, _ = scripted(coin, max_turns=2)
    (cut,) = rollout.play([Task("t", {"right": "a.", "turns": 4})], 1, 0)
    assert cut.truncated and cut.outcome is not None
    nulls = rollout.fork([Fork(cut, turn, KEEP) for turn in range(2)])
    assert [null.outcome for null in nulls] == [cut.outcome] * 2
    assert all(null.truncated and null.num_turns == 2 for null in nulls)
    (twin,) = rollout.fork([Fork(cut, 1, (98, 46))])
    assert twin.truncated and twin.outcome is not None


def test_the_longest_turn_always_has_room():
    """Turns of at most 5 tokens in a context of 20: none starts with more than 15 before it."""
    starts = []

    def say(session, key, index):
        starts.append(len(session._transcript.ids))
        return "a" * (1 + (index + len(session._blank.task.id)) % 5)

    rollout, _, _ = scripted(say, max_context=20 - 5)
    tasks = [Task("t" * count, {"right": "a.", "turns": 9}) for count in range(5)]
    for cut in rollout.play(tasks, 1, 0):
        assert cut.truncated and not cut.terminated and cut.outcome == 0
    assert rollout.take_counts()["rollout/overfull_count"] == 5
    assert max(starts) + 5 <= 20 and max(starts) > 5


def test_no_thread_keeps_the_program_from_ending():
    patience.outcome_within(5, int)
    own = [thread for thread in threading.enumerate() if thread.name == "patience"]
    assert own and all(thread.daemon for thread in own)
