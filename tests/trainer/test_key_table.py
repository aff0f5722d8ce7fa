"""The key table of DESIGN section 4 as a whole, through the rollout of language models."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy.stats import norm

from tests.key_table import (
    KINDS,
    A,
    B,
    assert_shared_exactly_by_label,
    decision_label,
    environment_label,
    factual_of,
    nested_forks,
    play_nested,
)
from tests.trainer.conftest import Letters, Script, coin
from trainer.loop.train import train_tasks
from trainer.rollout import Rollout
from trainer.rollout.play import RESET_SLOT, Limits
from trainer.setup import make_rollout
from trainer.tasks import Step
from trainer.tasks.facts import Facts
from twinstats.episodes import FRESH, KEEP, RESAMPLE, SHARED, Fork, Task
from twinstats.keys import fork_streams, rejection
from twinstats.noise import KeyColumns, gumbel, uniform

TASKS = [Task("t", {}), Task("u", {})]
# Worlds that note what they draw from


class Noting:
    """An engine that notes the keys which each session's turns are sampled with."""

    def __init__(self, engine):
        self._engine, self.sessions, self.explains = engine, [], True
        self.ends = engine.ends

    def run(self, sessions, *, temperature):
        noted = [NotedSession(session) for session in sessions]
        self.sessions += noted
        self._engine.run(noted, temperature=temperature)


class NotedSession:
    """A session, and the keys that were asked of it."""

    def __init__(self, session):
        self._session, self.keys = session, []

    def start(self):
        return self._session.start()

    def key(self):
        self.keys.append(self._session.key())
        return self.keys[-1]

    def draft(self):
        return self._session.draft()

    def advance(self, turn):
        return self._session.advance(turn)

    def episode(self):
        return self._session.episode()


class NotedEnvironment:
    """An environment, and the keys that it was given."""

    def __init__(self, environment):
        self._environment, self.reset_key, self.keys = environment, None, []

    def reset(self, row, noise):
        self.reset_key = noise
        return self._environment.reset(row, noise)

    def step(self, text, noise):
        self.keys.append(noise)
        return self._environment.step(text, noise)

    def slot(self, history):
        return self._environment.slot(history)


class Played:
    """A rollout whose draws are noted: `draws` holds (label and slot, key) of every one."""

    def __init__(self, policy, engine, environment, *, seed=3, max_context=1000):
        self.episodes, self.draws, self.keys, self._environments = [], [], {}, []
        self._engine = Noting(engine)

        def noted():
            self._environments.append(NotedEnvironment(environment()))
            return self._environments[-1]

        limits = Limits(max_context=max_context, max_turns=6)
        self.rollout = Rollout(
            policy, self._engine, noted, seed=seed, temperature=1.0, limits=limits
        )

    def play(self, *args):
        return self._noted(self.rollout.play(*args))

    def fork(self, forks):
        return self._noted(self.rollout.fork(forks))

    def _noted(self, episodes):
        assert all(episode.outcome is not None for episode in episodes)
        for session in self._engine.sessions:
            self._note_decisions(session.episode(), session.keys)
        for episode, environment in zip(episodes, self._environments, strict=True):
            self._note_environment(episode, environment)
        self._engine.sessions.clear()
        self._environments.clear()
        self.episodes += episodes
        return episodes

    def _note_decisions(self, episode, keys):
        fork = episode.fork
        first = 0 if fork is None else fork.turn + (fork.action is not RESAMPLE)
        self.keys[episode] = {first + index: key for index, key in enumerate(keys)}
        for turn, key in self.keys[episode].items():
            self.draws.append(((*decision_label(episode, turn), slot_of(episode, turn)), key))

    def _note_environment(self, episode, environment):
        root = factual_of(episode)
        self.draws.append((("environment", root, "reset"), environment.reset_key))
        for turn, key in enumerate(environment.keys):
            self.draws.append(((*environment_label(episode, turn), slot_of(episode, turn)), key))


def slot_of(episode, turn):
    """The slot of a turn by what the environment told of it, not by what the rollout noted."""
    return episode.turns[turn].info["step"]["slot"]


def parts(said):
    """The slot of each turn: three parts of one or two turns, counted down; "a." ends a part."""
    found, part, turn = [], 2, 0
    for text in said:
        found.append(64 * part + turn)
        part, turn = (part - 1, 0) if turn == 1 or text == "a." else (part, 1)
    return found


class Parts:
    """Three parts as `parts` has them, with luck in what is shown and paid."""

    def reset(self, row, noise):
        self._said = []
        return f"?{float(uniform(noise, 0))}"

    def step(self, text, noise):
        self._said.append(text)
        luck, slot = float(uniform(noise, 0)), parts(self._said)[-1]
        done = slot == 1 or (slot == 0 and text == "a.")
        info = {"won": False, "truncated": False, "slot": slot}
        return Step("" if done else f"<{luck}>", int(8 * luck) / 8, done, info)

    def slot(self, history):
        return parts([*history, ""])[-1]


def scripted(**options):
    """A scripted rollout on `Parts`; words depend on their turn's key alone."""
    return Played(Letters(), Script(coin), Parts, **options)


@pytest.fixture
def model(policy, config):
    """A tiny random model on two real questions; an answer ends a part early."""
    task = dataclasses.replace(config.task, parts=2)
    config = dataclasses.replace(config, task=task)
    engine = make_rollout(policy, config).engine
    return Played(policy, engine, Told, max_context=240), train_tasks(config, 1)


class Told(Facts):
    """The task `facts`, telling the slot of each turn by its own counts."""

    def step(self, text, noise):
        step = super().step(text, noise)
        return step._replace(info=step.info | {"slot": 64 * step.info["part"] + step.info["turn"]})


# The rollout of language models


def test_scripted_episodes_share_exactly_what_the_table_says():
    played = play_nested(scripted(), TASKS, KINDS)
    keys = assert_shared_exactly_by_label(played.draws)
    assert len(keys) > 1000 and len(played.draws) > 2 * len(keys)
    assert max(episode.path.count("/") for episode in played.episodes) == 2
    assert {slot_of(e, t) for e in played.episodes for t in range(e.num_turns)} == {
        *(0, 1, 64, 65, 128, 129)
    }
    columns = KeyColumns.of(keys)
    words = np.stack([*columns.words, columns.turn_luck, columns.row], axis=1)
    assert len(np.unique(words, axis=0)) == len(keys)  # no key is another's counter


def test_keys_that_differ_give_noise_that_does_not_correlate():
    """Over 10,240 ids; the bound holds for all pairs at once but for one in a million."""
    keys = assert_shared_exactly_by_label(play_nested(scripted(), TASKS, KINDS, (1,)).draws)
    near = sorted(keys, key=lambda k: (k.row, k.step, k.turn, k.purpose, k.luck))[:150]
    far = [keys[i] for i in np.random.default_rng(0).choice(len(keys), 150, replace=False)]
    chosen = list(dict.fromkeys(near + far))
    noise = np.array([gumbel(key, 1, np.arange(10_240)) for key in chosen])
    assert len(np.unique(noise)) == noise.size
    ranked = noise.argsort(axis=1).argsort(axis=1).astype(np.float64)
    pairs = len(chosen) * (len(chosen) - 1)
    bound = norm.isf(1e-6 / pairs) / np.sqrt(noise.shape[1] - 1)
    for values in (noise, ranked):
        correlation = np.corrcoef(values) - np.eye(len(chosen))
        assert np.abs(correlation).max() < bound < 0.08


def test_environment_noise_of_different_keys_shares_no_value():
    played = scripted()
    play_nested(played, TASKS[:1], KINDS, (1,))
    drawn = {key for label, key in played.draws if label[0] == "environment"}
    values = [uniform(key, position, np.arange(2)) for key in drawn for position in range(2)]
    assert len(np.unique(values)) == 4 * len(drawn) > 400


def test_a_models_episodes_share_exactly_what_the_table_says(model, policy):
    played, tasks = model
    answer, search = "<answer>Chad</answer>", "<search>Chad</search>"
    given = {A: tuple(policy.encode(answer)), B: tuple(policy.encode(search))}
    kinds = [
        kind | ({"action": given[kind["action"]]} if kind.get("action") in given else {})
        for kind in KINDS[::2]
    ]
    factuals = played.play(tasks, 1, 1)
    first = played.fork(nested_forks(factuals, kinds, (0,)))
    second = played.fork(nested_forks(first[::3], kinds[:5], (1,)))
    played.fork(nested_forks(second[::6], kinds[1:4], (0,)))
    keys = assert_shared_exactly_by_label(played.draws)
    assert len(keys) > 150 and len(played.draws) > 2 * len(keys)
    assert max(episode.path.count("/") for episode in played.episodes) == 2
    # Turns on the same slot after parts of different lengths do occur, and are shared.
    assert {slot_of(e, 1) for e in first} == {1, 64}


def assert_is_control(played, twin, control):
    """The twin's decision, then nothing of its noise."""
    turn = twin.fork.turn
    assert played.keys[twin][turn] == played.keys[control][turn]
    assert twin.turns[turn].action == control.turns[turn].action
    later = [{k for t, k in played.keys[e].items() if t > turn} for e in (twin, control)]
    assert later[0] and later[1] and not later[0] & later[1]


@pytest.mark.parametrize("alternative", [0, 1, 2])
def test_a_control_has_its_twins_decision_and_another_tail(model, alternative):
    for played, tasks in ((scripted(), TASKS), model):
        factuals = played.play(tasks, 2, 1)
        parents = [*factuals, *played.fork([Fork(e, 1, luck=FRESH) for e in factuals])]
        options = {"alternative": alternative, "skip_equal": False}
        twins = played.fork([Fork(e, 1, luck=SHARED, **options) for e in parents])
        controls = played.fork([Fork(e, 1, luck=FRESH, **options) for e in parents])
        for twin, control in zip(twins, controls, strict=True):
            assert_is_control(played, twin, control)
        tails = [[[t.action for t in e.turns[2:]] for e in some] for some in (twins, controls)]
        assert tails[0] != tails[1]


def test_a_numbered_draw_is_one_luck_for_all_turns_of_an_episode():
    """Coupled VinePPO: the j-th samples of all turns meet in the same slots with the same noise."""
    played = scripted()
    factuals = played.play(TASKS, 2, 3)
    for episode in factuals:
        forks = [
            Fork(episode, turn, luck=j) for turn in range(episode.num_turns) for j in (1, 2, 3)
        ]
        said, met = {}, 0
        for fork in played.fork(forks):
            for turn in range(fork.fork.turn, fork.num_turns):
                place = (fork.fork.luck, slot_of(fork, turn))
                draw = (played.keys[fork][turn], fork.turns[turn].action, fork.turns[turn].reward)
                met += place in said
                assert said.setdefault(place, draw) == draw
        assert met > 6
        assert len({key for key, *_ in said.values()}) == len(said)


def test_tries_of_a_rejection_are_streams_of_their_own():
    played = play_nested(scripted(), TASKS[:1], KINDS, (1,))
    draws = list(played.draws)
    for episode in played.episodes:
        fork = episode.fork
        if fork is None or fork.action is not RESAMPLE:
            continue
        stream, slot = fork_streams(fork).decision, slot_of(episode, fork.turn)
        for attempt in range(4):
            key = rejection(stream, attempt).key(3, episode.step, episode.row, slot)
            label = (*decision_label(episode, fork.turn), slot)
            draws.append(((*label, f"~{attempt}") if attempt else label, key))
            assert key.purpose == stream.purpose + (f"~{attempt}" if attempt else "")
    assert len(draws) > len(played.draws) + 100
    assert_shared_exactly_by_label(draws)


def test_another_seed_shares_nothing():
    one, other = (
        {key for _, key in play_nested(scripted(seed=seed), TASKS[:1], KINDS[:4]).draws}
        for seed in (3, 4)
    )
    assert one and other and not one & other


def test_a_fork_asked_for_twice_is_played_twice_alike():
    played = scripted()
    (parent,) = played.play(TASKS[:1], 1, 0)
    for luck, action in itertools.product((SHARED, FRESH, 2), (RESAMPLE, KEEP, A)):
        one, other = played.fork([Fork(parent, 1, action, luck, skip_equal=False)] * 2)
        assert one is not other and one.name == other.name
        assert [t.action for t in one.turns] == [t.action for t in other.turns]
        assert one.outcome == other.outcome and played.keys[one] == played.keys[other]


# The start of an episode, and episodes that no fork may take up


def test_the_start_and_the_first_turn_have_luck_of_their_own():
    played = scripted()
    episodes = played.play(TASKS, 3, 0)
    played.fork([Fork(e, 1, luck=luck) for e in episodes for luck in (SHARED, FRESH, 1)])
    starts = {key for label, key in played.draws if label[-1] == "reset"}
    steps = {key for label, key in played.draws if label[0] == "environment"} - starts
    assert len(starts) == len(episodes)  # each fork starts with its factual's
    assert {(key.purpose, key.luck, key.turn) for key in starts} == {("environment", 0, RESET_SLOT)}
    values = [[uniform(key, 0).item() for key in keys] for keys in (starts, steps)]
    assert not set(values[0]) & set(values[1])


def test_a_turn_cannot_have_the_slot_of_the_start(monkeypatch):
    monkeypatch.setattr(Parts, "slot", lambda self, history: RESET_SLOT - 1 + len(history))
    with pytest.raises(RuntimeError, match=f"named slot {RESET_SLOT} twice"):
        scripted().play(TASKS, 1, 0)


def test_forks_of_an_evaluation_are_refused_in_one_sentence():
    rollout = scripted().rollout
    (good,) = rollout.play(TASKS[:1], 1, 2)
    evaluated = rollout.evaluate(TASKS, 2)
    message = (
        "Episode 2/1 was played by `evaluate`, whose noise forks do not have: "
        "fork what `play` returns."
    )
    for action in (RESAMPLE, KEEP, A):
        with pytest.raises(ValueError) as error:
            rollout.fork([Fork(good, 0), Fork(evaluated[1], 1, action)])
        assert str(error.value) == message
    assert rollout.fork([Fork(good, 0)])[0].outcome is not None
