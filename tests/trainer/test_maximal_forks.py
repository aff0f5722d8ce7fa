"""Maximal coupling of language-model forks: marginals, agreement, and what it draws from.

Played in a game of four words and turns of one or two, so that every law is known.
"""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom, norm

from tests.trainer.conftest import coin, log_of, scripted
from tests.trainer.test_adopted_credit import GAME, Few, Truth, game
from tests.trainer.test_adopted_credit import model as model  # a fixture
from trainer.noise.logged import LoggedNoise
from trainer.noise.maximal import MaximalNoise
from trainer.rollout import world as module
from twinstats.episodes import FRESH, KEEP, RESAMPLE, SHARED, Fork, Task
from twinstats.errors import UsageError
from twinstats.noise import NoiseKey
from twinstats.rows import null_disagreements

A, B = (0, 2), (1, 2)  # "a.", "b."
COUNT = 800
RARE = norm.isf(1e-6 / 2)
TASK = Task("t", {"right": "a.", "turns": 4})


@pytest.fixture(scope="module")
def truth(model):
    return Truth(model)


@pytest.fixture(scope="module")
def coupled(model):
    """Factuals of the game, and of each a maximal and a Gumbel twin that says "b." first."""
    rollout = game(model, 8)
    episodes = rollout.play([GAME], COUNT, 0)
    twins = {
        coupling: rollout.fork([Fork(e, 0, B, coupling=coupling) for e in episodes])
        for coupling in ("maximal", "gumbel")
    }
    return episodes, twins


def context(episode, turn):
    """The ids before a turn, by the game's rules."""
    words, ids = Few(), []
    for said in episode.turns[:turn]:
        ids += [*said.info["shown"], *said.action]
    return tuple([*ids, *words.encode(episode.turns[turn].state)])


def law_of_second(truth):
    """The law of the second turn after "b.", by the model alone."""
    return dict(truth.turns(tuple(Few().encode("?b.?b"))))


def test_a_coupled_turn_has_the_law_of_its_own_context(coupled, truth):
    _, twins = coupled
    said = Counter(twin.turns[1].action for twin in twins["maximal"])
    law = law_of_second(truth)
    assert set(said) <= set(law) and len(law) == 13
    for turn, probability in law.items():
        low, high = binom.interval(1 - 1e-6 / len(law), COUNT, probability)
        assert low <= said[turn] <= high


def test_first_tokens_agree_as_often_as_two_laws_allow(coupled, truth):
    episodes, twins = coupled
    own = np.array(truth.law(tuple(Few().encode("?b.?b"))))
    most = np.array([np.minimum(own, truth.law(context(episode, 1))).sum() for episode in episodes])
    assert most.mean() < 0.97  # there is something to lose
    agree = {
        coupling: np.array(
            [twin.turns[1].action[0] == twin.fork.episode.turns[1].action[0] for twin in some]
        )
        for coupling, some in twins.items()
    }
    error = RARE * np.sqrt((most * (1 - most)).sum())
    assert abs((agree["maximal"] - most).sum()) < error
    assert agree["gumbel"].mean() < agree["maximal"].mean()


def test_null_twins_of_maximal_forks_end_as_their_factuals_did(model):
    rollout = game(model, 8)
    episodes = rollout.play([GAME], 30, 0)
    twins = rollout.fork([Fork(e, 0, coupling="maximal") for e in episodes])
    parents = [*episodes, *twins]
    forks = [Fork(e, t, KEEP, coupling="maximal") for e in parents for t in range(e.num_turns)]
    assert len(forks) > 120
    nulls = rollout.fork([fork for fork in forks if fork.turn + 1 < fork.episode.num_turns])
    assert null_disagreements(nulls) == (len(nulls), 0, 0)


def test_forks_of_adopted_episodes_are_coupled_too(model, truth, dice):
    away = game(model, 0, sampler=dice(3)).play([GAME], 200, 0)
    here = game(model, 9)
    episodes = here.adopt([log_of(one) for one in away], 1)
    twins = here.fork([Fork(one, 0, B, coupling="maximal") for one in episodes])
    said = Counter(twin.turns[1].action for twin in twins)
    for turn, probability in law_of_second(truth).items():
        low, high = binom.interval(1 - 1e-6 / 13, len(twins), probability)
        assert low <= said[turn] <= high
    nulls = here.fork([Fork(one, 0, KEEP, coupling="maximal") for one in episodes[:50]])
    assert null_disagreements(nulls) == (50, 0, 0)


# What is drawn from what


@pytest.fixture
def notes(monkeypatch):
    """A scripted rollout whose parents have logits that say where they are from."""

    def logits(policy, episodes):
        return [
            [np.full((len(turn.action), 200), index) for index, turn in enumerate(one.turns)]
            for one in episodes
        ]

    monkeypatch.setattr(module, "turn_logits", logits)
    return scripted(lambda session, noise, index: coin(session, key_of(noise), index))


def key_of(noise):
    return noise if isinstance(noise, NoiseKey) else noise.key


def last_noise(engine):
    return engine.keys[-1]


def test_the_tail_keeps_the_parents_turns_by_slot(notes):
    rollout, engine, _ = notes
    (parent,) = rollout.play([TASK], 1, 2)
    rollout.fork([Fork(parent, 1, (97, 46), coupling="maximal")])
    assert len(last_noise(engine)) == 2
    for index, noise in enumerate(last_noise(engine), 2):
        assert isinstance(noise, MaximalNoise)
        assert noise.tokens == parent.turns[index].action
        assert (noise.logits == index).all()
        assert noise.coins == NoiseKey(3, 2, 0, 10 * index, purpose="maximal")
        assert noise.rest == noise.key == NoiseKey(3, 2, 0, 10 * index)


def test_what_the_parent_did_not_come_to_is_drawn_from_the_tails_key(notes):
    rollout, engine, _ = notes
    shorter = Task("t", {"right": "a.", "turns": 2})
    (parent,) = rollout.play([shorter], 1, 2)
    object.__setattr__(parent, "task", TASK)
    rollout.fork([Fork(parent, 0, (97, 46), coupling="maximal")])
    assert [type(noise) for noise in last_noise(engine)] == [MaximalNoise, NoiseKey, NoiseKey]
    assert last_noise(engine)[1] == NoiseKey(3, 2, 0, 20)


def test_decisions_and_other_luck_are_not_coupled(notes):
    rollout, engine, _ = notes
    (parent,) = rollout.play([TASK], 1, 2)
    rollout.fork([Fork(parent, 0, RESAMPLE, SHARED, coupling="maximal", skip_equal=False)])
    assert [type(noise) for noise in last_noise(engine)] == [NoiseKey] + [MaximalNoise] * 3
    for luck in (FRESH, 2):
        rollout.fork([Fork(parent, 0, RESAMPLE, luck, coupling="maximal")])
        assert {type(noise) for noise in last_noise(engine)} == {NoiseKey}


def test_coins_follow_the_parents_path(notes):
    rollout, engine, _ = notes
    (parent,) = rollout.play([TASK], 1, 2)
    (twin,) = rollout.fork([Fork(parent, 0, (97, 46), coupling="maximal")])
    rollout.fork([Fork(twin, 0, (98, 46), coupling="maximal")])
    assert {noise.coins.purpose for noise in last_noise(engine)} == {f"maximal/{twin.path}"}
    assert [noise.tokens for noise in last_noise(engine)] == [t.action for t in twin.turns[1:]]


def test_past_the_parents_turn_the_rest_draws():
    laws = np.array([[0.0, 1.0, 2.0]])
    key, coins = NoiseKey(1, 0, 0, 0), NoiseKey(1, 0, 0, 0, purpose="maximal")
    plain = MaximalNoise(coins=coins, tokens=(2,), logits=laws, rest=key)
    logged = LoggedNoise(key=key, tokens=(0, 1), logits=np.vstack([laws, laws]), temperature=1.0)
    within = MaximalNoise(coins=coins, tokens=(2,), logits=laws, rest=logged)
    noises = [plain, within, plain, within, within]
    before = [(), (), (2,), (2,), (2, 1)]
    drawn = MaximalNoise.draw(noises, np.repeat(laws, 5, axis=0), before, 1.0)
    assert drawn == [2, 2, None, 1, None]  # equal laws keep the token
    assert within.key == key


# Refusals


def test_engines_without_sources_refuse_it_by_name(notes):
    rollout, engine, _ = notes
    (parent,) = rollout.play([TASK], 1, 2)
    engine.explains = False
    with pytest.raises(UsageError, match="coupling='maximal' needs noise .*`engine.name=hf`"):
        rollout.fork([Fork(parent, 0), Fork(parent, 0, KEEP, coupling="maximal")])
    assert rollout.fork([Fork(parent, 0, luck=FRESH, coupling="maximal")])[0].outcome is not None


def test_they_refuse_the_luck_of_adopted_episodes_too(model):
    rollout = game(model, 9)
    episodes = rollout.adopt([log_of(one) for one in game(model, 0).play([GAME], 1, 0)], 1)
    rollout.engine.explains = False
    with pytest.raises(UsageError, match="the luck of adopted episodes needs noise"):
        rollout.fork([Fork(episodes[0], 0)])
    assert rollout.fork([Fork(episodes[0], 0, luck=FRESH)])[0].outcome is not None


def test_gumbel_noise_does_not_explain_a_maximal_twin(notes):
    rollout, _, _ = notes
    (parent,) = rollout.play([TASK], 1, 2)
    (twin,) = rollout.fork([Fork(parent, 0, (97, 46), coupling="maximal")])
    for action in (RESAMPLE, KEEP):
        with pytest.raises(ValueError, match="must be 'maximal' for a fork that shares the luck"):
            rollout.fork([Fork(twin, 0, action)])
    assert rollout.fork([Fork(twin, 0, luck=FRESH)])[0].outcome is not None
