"""Rollouts of language models: rows A17 to A26 and D02 to D21 of the case list that touch them.

What these rows say of losses and samplers is in `test_training`, `test_advantages`, `test_noise`
and `test_replay`. D21 speaks of ranks that draw: here rank 0 alone does (`test_distributed`), and
workers stand for them.
"""

import copy
import dataclasses

import pytest
import torch

from tests.trainer.conftest import Script, coin, scripted
from tests.trainer.test_adopted_credit import GAME, STOP, TEMPERATURE, game
from tests.trainer.test_adopted_credit import model as model  # a fixture
from trainer.engines import SampledTurn
from trainer.engines.hf import HfEngine
from trainer.noise import sources
from trainer.policy import token_logprobs
from trainer.policy.tokens import episode_ids, padded_episodes
from twinstats.episodes import DIFFERENT, FRESH, KEEP, RESAMPLE, SHARED, Fork, Task
from twinstats.rows import episode_rows, null_disagreements

TASK = Task("t", {"right": "a.", "turns": 3})


class Checked(Script):
    """A script that notes all ids that a session was given, in order."""

    def run(self, sessions, *, temperature):
        self.given = []
        for session in sessions:
            plain, ids = session.advance, list(session.start())

            def advance(turn, plain=plain, ids=ids):
                following = plain(turn)
                ids += [*turn.tokens, *(following or [])]
                return following

            session.advance = advance
            self.given.append(ids)
        super().run(sessions, temperature=temperature)


def test_a17_what_was_given_is_what_is_learned_and_other_ids_are_counted():
    rollout, _, _ = scripted(coin)
    rollout.engine = Checked(lambda session, key, index: "~~." if index else "ab~.")
    (parent,) = rollout.play([TASK], 1, 0)
    (twin,) = rollout.fork([Fork(parent, 1, (126, 46))])
    assert rollout.engine.given == [episode_ids(twin)]
    assert episode_ids(twin)[: len("?ab~.<abab.>")] == episode_ids(parent)[: len("?ab~.<abab.>")]
    counts = rollout.take_counts()
    assert counts["rollout/unstable_turns_count"] == 4 == counts["rollout/turns_count"]
    assert counts["rollout/drift_count"] == 0


def test_a17_drift_is_counted():
    rollout, _, _ = scripted(coin)
    (parent,) = rollout.play([TASK], 1, 0)
    rollout._setting = dataclasses.replace(rollout._setting, retokenise=True)
    (named,) = rollout.fork([Fork(parent, 0, (126, 46))])
    assert named.turns[0].action == (126, 46)
    assert rollout.take_counts()["rollout/drift_count"] == 1


@pytest.mark.parametrize("count", [0, 4, 6])
def test_a18_log_probabilities_that_are_too_many_or_few_raise_and_name_the_place(count):
    class Short(Script):
        def run(self, sessions, *, temperature):
            sessions[0].start()
            turn = SampledTurn(
                tokens=(97,) * 5, logprobs=(-1.0,) * count, entropy=None, is_stopped=True
            )
            sessions[0].advance(turn)

    rollout, _, _ = scripted(coin)
    rollout.engine = Short(coin)
    message = f"Episode 2/0, turn 0: {count} log-probabilities for 5 tokens"
    with pytest.raises(ValueError, match=message):
        rollout.play([TASK], 1, 2)


def test_a18_log_probabilities_are_kept_token_by_token():
    rollout, _, _ = scripted(coin)
    (parent,) = rollout.play([TASK], 1, 0)
    (null,) = rollout.fork([Fork(parent, 1, KEEP)])
    for episode in (parent, null):
        for turn in episode.turns:
            assert len(turn.info["logprobs"]) == turn.num_tokens
            assert turn.logprob == pytest.approx(sum(turn.info["logprobs"]), rel=1e-15)


def test_a19_a21_what_the_engine_says_of_a_token_is_what_the_learner_finds_at_its_place(model):
    rollout = game(model, 8)
    parents = rollout.play([GAME], 4, 0)
    episodes = [*parents, *rollout.fork([Fork(e, 1, KEEP) for e in parents])]
    ids, mask, sampled = padded_episodes(episodes)
    logp, entropy = token_logprobs(model, ids, mask, sampled, temperature=TEMPERATURE)
    for row, episode in enumerate(episodes):
        told = [value for turn in episode.turns for value in turn.info["logprobs"]]
        own = logp[row][sampled[row]].tolist()
        assert told == pytest.approx(own, abs=1e-5) and len(set(told)) > 1
        counts = [turn.num_tokens for turn in episode.turns]
        means = [float(part.mean()) for part in entropy[row][sampled[row]].split(counts)]
        assert list(episode.column("entropy")) == pytest.approx(means, abs=1e-5)


def test_a24_what_was_sampled_is_told_from_what_was_shown_in_factuals_and_in_twins(model):
    rollout = game(model, 9)
    parents = rollout.play([GAME], 3, 0)
    kinds = [kind for kind in KINDS if kind.get("action") is not KEEP]
    twins = rollout.fork([Fork(e, 1, skip_equal=False, **kind) for e in parents for kind in kinds])
    ids, mask, sampled = padded_episodes([*parents, *twins])
    for row, episode in enumerate([*parents, *twins]):
        said = [token for turn in episode.turns for token in turn.action]
        assert ids[row][sampled[row]].tolist() == said
        after = ["?b" if STOP in turn.action else "?a" for turn in episode.turns[:-1]]  # the game's
        shown = rollout.policy.encode("".join(["?", *after]))
        assert ids[row][mask[row] & ~sampled[row]].tolist() == shown
    assert [int(row.sum()) for row in sampled[: len(parents)]] == [e.sampled for e in parents]


def test_a23_a_stop_in_what_is_shown_ends_nothing():
    rollout, engine, _ = scripted(lambda *_: "a", drift=lambda turn, text: text and "<.>")
    (episode,) = rollout.play([TASK], 1, 0)
    assert [turn.action for turn in episode.turns] == [(97,)] * 3
    assert not engine.ends(episode.turns[0].action) and engine.ends(
        episode.turns[1].info["shown"][:2]
    )
    (cut,) = scripted(lambda *_: "a", max_turns=2)[0].play([TASK], 1, 0)
    assert (cut.terminated, cut.truncated) == (False, True)


def test_a26_ended_cut_and_failed_are_told_apart_and_only_failed_have_no_outcome():
    def broken(turn, text):
        if failing:
            raise OSError("gone")
        return text

    failing = []
    rollout, _, _ = scripted(lambda *_: "a.", max_turns=3, drift=broken)
    ended, cut = rollout.play([TASK, Task("long", {"right": "a.", "turns": 4})], 1, 0)
    failing.append(True)
    (failed,) = rollout.fork([Fork(cut, 0, (98, 46))])
    rows = episode_rows([ended, cut, failed])
    told = [(row["terminated"], row["truncated"], row["outcome"]) for row in rows]
    assert told == [
        (True, False, pytest.approx(1)),
        (False, True, pytest.approx(0.75)),
        (False, False, None),
    ]
    assert [row["reason"] for row in rows] == [
        None,
        None,
        "a tool failed: `step` raised OSError: gone",
    ]


KINDS = [
    {},
    {"alternative": 1},
    {"luck": FRESH},
    {"luck": 1},
    {"action": KEEP},
    {"action": DIFFERENT},
    {"action": DIFFERENT, "luck": FRESH},
    {"coupling": "maximal", "alternative": 2},
    {"action": KEEP, "coupling": "maximal"},
]


def in_batches(model, size):
    rollout = game(model, 6)
    rollout.engine = HfEngine(model, stop=frozenset({STOP}), max_turn_tokens=2, max_batch=size)
    return rollout


@pytest.mark.parametrize("explains", [True, False])
def test_d16_a_fork_does_not_depend_on_its_batch(model, explains):
    def twins(size, order):
        rollout = in_batches(model, size)
        episodes = rollout.play([GAME], 4, 0)
        rollout.engine.explains = explains
        kinds = [kind for kind in KINDS if explains or "coupling" not in kind]
        forks = [Fork(e, t, **kind) for e in episodes for t in range(2) for kind in kinds]
        played = rollout.fork(forks[::order])[::order]
        return [[turn.action for turn in twin.turns] for twin in played], rollout.exact_replay

    first, is_exact = twins(1, 1)
    assert len(first) > 50 and is_exact
    for size, order in ((2, 1), (8, -1), (9, 1), (64, -1)):
        assert twins(size, order) == (first, True)


def test_d16_costs_do_not_depend_on_the_batch_either(model):
    def costs(size):
        rollout = in_batches(model, size)
        episodes = rollout.play([GAME], 3, 0)
        forks = [Fork(e, t, alternative=k) for k in range(6) for e in episodes for t in range(2)]
        return [twin.sampled for twin in rollout.fork(forks)]

    assert costs(1) == costs(5) == costs(64)


def test_d18_forks_of_every_kind_keep_the_prefix_as_it_was_sampled(model):
    rollout = game(model, 7)
    episodes = rollout.play([GAME], 6, 0)
    for kind in KINDS:
        twins = rollout.fork([Fork(e, 1, **kind) for e in episodes])
        for twin in twins:
            assert twin.outcome is not None
            assert twin.turns[0] is twin.fork.episode.turns[0]
            assert twin.turns[1].info["shown"] == twin.fork.episode.turns[1].info["shown"]
    nulls = [Fork(e, 0, KEEP, SHARED) for e in episodes]
    assert null_disagreements(rollout.fork(nulls)) == (6, 0, 0)
    assert rollout.fork([Fork(episodes[0], 1, RESAMPLE)])[0].owner(0) is episodes[0]


def of_every_kind(rollout, count):
    """Episodes, and a fork of each kind at each of their first two turns."""
    episodes = rollout.play([GAME], count, 0)
    forks = [Fork(e, t, alternative=2, **kind) for e in episodes for t in range(2) for kind in FEW]
    return episodes, rollout.fork(forks)


FEW = [{key: value for key, value in kind.items() if key != "alternative"} for kind in KINDS[1:]]
FEW = [kind for kind in FEW if kind.get("luck") != 1]


def test_d02_a_token_without_probability_is_never_said_by_any_kind_of_fork(model):
    banned, barred = 1, copy.deepcopy(model)

    def ban(module, given, logits):
        logits = logits.clone()
        logits[..., banned] = -torch.inf
        return logits

    barred.get_output_embeddings().register_forward_hook(ban)
    played = [one for some in of_every_kind(game(barred, 10), 8) for one in some]
    assert len(played) > 50
    for episode in played:
        assert episode.outcome is not None
        for turn in episode.turns:
            assert banned not in turn.action
            assert all(map(lambda value: -50 < value <= 0, turn.info["logprobs"]))
            assert 0 <= turn.entropy < 2
    said = {
        token for e in of_every_kind(game(model, 10), 8)[0] for t in e.turns for token in t.action
    }
    assert banned in said  # else there was nothing to ban


def test_d11_a_low_precision_model_is_drawn_from_in_float32(model):
    seen = []

    def spy(logits, noises, before, temperature):
        seen.append(logits.dtype)
        return sources.sample(logits, noises, before, temperature)

    rough = copy.deepcopy(model).bfloat16()
    episodes, twins = of_every_kind(game(rough, 11, sampler=spy), 3)
    assert set(seen) == {torch.float32}
    assert all(one.outcome is not None for one in (*episodes, *twins))


def test_d13_greedy_episodes_take_the_lowest_id_on_ties(model):
    flat = copy.deepcopy(model)
    with torch.no_grad():
        flat.get_output_embeddings().weight.zero_()
    for size in (1, 9):
        for episode in in_batches(flat, size).evaluate([GAME] * 9, 0, temperature=0.0):
            assert {turn.action for turn in episode.turns} == {(0, 0)}


def test_d10_d21_workers_play_what_one_plays_and_go_on_after_a_restart(model):
    def actions(twins):
        return [[turn.action for turn in twin.turns] for twin in twins]

    whole = game(model, 12)
    episodes = whole.play([GAME], 6, 0)
    forks = [Fork(e, t, **kind) for e in episodes for t in range(2) for kind in KINDS]
    expected = actions(whole.fork(forks))
    for workers in (2, 8):
        shares = [game(model, 12).fork(forks[worker::workers]) for worker in range(workers)]
        for worker, share in enumerate(shares):
            assert actions(share) == expected[worker::workers]
    restarted = game(model, 12)
    assert actions(restarted.play([GAME], 6, 0)) == actions(episodes)
    assert len({str(one) for one in actions(episodes)}) > 1
