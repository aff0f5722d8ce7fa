"""The key table of DESIGN section 4 as a whole, through the chain, which draws ahead by columns."""

import dataclasses
import itertools

import numpy as np

import simulations.worlds.tabular as tabular
from simulations.worlds.chain import Chain
from simulations.worlds.chain_model import ChainSetting
from tests.key_table import (
    KINDS,
    assert_shared_exactly_by_label,
    decision_label,
    environment_label,
    play_nested,
)
from twinstats.episodes import DIFFERENT, FRESH, KEEP, RESAMPLE, SHARED, Fork

SETTING = ChainSetting(name="keys", horizon=4, states=3, actions=3, luck=0.5)


class PlayedChain:
    """A chain without early ends that plays fork by fork and notes the keys of its draws."""

    def __init__(self, monkeypatch):
        self.world = Chain(SETTING, seed=6)
        self.draws, self.episodes = [], []
        self._keys = {"sample": [], "gumbels": [], "uniforms": []}
        for name, position in (("sample", 1), ("gumbels", 0), ("uniforms", 0)):
            real = getattr(tabular, name)
            monkeypatch.setattr(tabular, name, self._noting(name, real, position))

    def play(self, *args):
        episodes = self.world.play(*args)
        for kind, label in (("gumbels", decision_label), ("uniforms", environment_label)):
            walks = np.reshape(self._keys[kind], (len(episodes), SETTING.horizon, -1))
            for episode, keys in zip(episodes, walks.tolist(), strict=True):
                self._note(episode, label, map(tuple, keys), 0)
        return self._done(episodes)

    def fork(self, forks):
        return [episode for fork in forks for episode in self._forked(fork)]

    def _forked(self, fork):
        (episode,) = self.world.fork([fork])
        # The walk has drawn a decision at the fork's turn too, but what is taken there is given.
        sampled, tail, coins = (
            self._keys["sample"],
            self._keys["gumbels"][1:],
            self._keys["uniforms"],
        )
        assert len(sampled) == (fork.action in (RESAMPLE, DIFFERENT))
        if fork.skip_equal is False:
            assert len(coins) == len(tail) + 1 == SETTING.horizon - fork.turn
        self._note(episode, decision_label, sampled, fork.turn)
        self._note(episode, decision_label, tail, fork.turn + 1)
        self._note(episode, environment_label, coins, fork.turn)
        return self._done([episode])

    def _noting(self, name, real, position):
        def noting(*args, **named):
            keys = args[position]
            columns = np.stack([*keys.words, keys.turn_luck, keys.row], axis=1).tolist()
            self._keys[name] += map(tuple, columns)
            return real(*args, **named)

        return noting

    def _note(self, episode, label, keys, first):
        for turn, key in enumerate(keys, start=first):
            self.draws.append(((*label(episode, turn), turn), key))

    def _done(self, episodes):
        self.episodes += episodes
        for keys in self._keys.values():
            keys.clear()
        return episodes


def test_chain_episodes_share_exactly_what_the_table_says(monkeypatch):
    played = PlayedChain(monkeypatch)
    kinds = [
        kind | ({"action": kind["action"][0] % 3} if "action" in kind else {})
        for kind in KINDS
        if kind.get("action") is not KEEP
    ]
    kinds += [
        {"luck": luck, "action": act} for luck in (SHARED, FRESH) for act in (KEEP, DIFFERENT)
    ]
    play_nested(played, played.world.tasks(1), kinds)
    keys = assert_shared_exactly_by_label(played.draws)
    assert len(keys) > 800 and len(played.draws) > 1.5 * len(keys)
    assert max(episode.path.count("/") for episode in played.episodes) == 2
    forks = [episode.fork for episode in played.episodes if episode.fork][::20]
    for one, fork in zip(played.world.fork(forks), forks, strict=True):  # in one batch, alike
        (again,) = played.world.fork([fork])
        assert list(one.turns) == list(again.turns) and one.outcome == again.outcome


def test_chain_tails_are_identical_where_luck_and_state_are():
    world = Chain(dataclasses.replace(SETTING, horizon=6, ends=0.3), seed=6)
    episodes = world.play(world.tasks(3), 40, 0)
    long = [episode for episode in episodes if episode.num_turns > 3]
    same = {}
    for luck in (SHARED, FRESH, 1):
        early = world.fork([Fork(e, 1, luck=luck, skip_equal=False) for e in long])
        met = [
            one
            for one in early
            if one.num_turns > 3 and one.turns[3].state == one.fork.episode.turns[3].state
        ]
        late = world.fork([Fork(e.fork.episode, 3, e.turns[3].action, luck) for e in met])
        tails = [
            list(e.turns[3:]) == list(other.turns[3:]) for e, other in zip(met, late, strict=True)
        ]
        assert len(tails) > 10
        same[luck] = np.mean(tails)
    assert same[SHARED] == same[1] == 1 > same[FRESH]


def test_a_chains_control_has_its_twins_decision_and_another_tail(monkeypatch):
    played = PlayedChain(monkeypatch)
    factuals = played.play(played.world.tasks(1), 20, 0)
    for alternative in range(3):
        options = {"alternative": alternative, "skip_equal": False}
        twins = played.fork([Fork(e, 1, luck=SHARED, **options) for e in factuals])
        controls = played.fork([Fork(e, 1, luck=FRESH, **options) for e in factuals])
        decided = [[e.turns[1].action for e in some] for some in (twins, controls)]
        tails = [[list(e.turns[2:]) for e in some] for some in (twins, controls)]
        assert decided[0] == decided[1] and tails[0] != tails[1]


def test_a_chain_plays_a_fork_asked_for_twice_twice_alike():
    world = Chain(SETTING, seed=6)
    (parent,) = world.play(world.tasks(1), 1, 0)
    for luck, action in itertools.product((SHARED, FRESH, 2), (RESAMPLE, DIFFERENT, KEEP, 1)):
        one, other = world.fork([Fork(parent, 1, action, luck)] * 2)
        assert one is not other and list(one.turns) == list(other.turns)
        assert one.outcome == other.outcome
        shares = luck is SHARED and action is not KEEP  # the second takes the first's tail
        cost = int(action != 1) if shares else one.sampled
        assert other.sampled == cost
