import dataclasses
import itertools

import numpy as np
import pytest

from simulations.measure import score_step, score_sum
from simulations.worlds.tokens import Tokens
from simulations.worlds.tokens_model import (
    STOP,
    TokensModel,
    TokensSetting,
    build_model,
    turn_law,
)
from twinstats.coupling import agreement
from twinstats.credit import assign, make
from twinstats.episodes import DIFFERENT, FRESH, KEEP, RESAMPLE, SHARED, Fork, Task, group_by_task
from twinstats.errors import UsageError
from twinstats.keys import Stream
from twinstats.noise import NoiseKey, gumbel, sample, uniform
from twinstats.rows import null_disagreements

TINY = TokensSetting(
    name="tiny",
    horizon=2,
    states=2,
    vocabulary=5,
    classes=2,
    modes=3,
    limit=3,
    density=1.0,
    ends=0.6,
    contrast=1.0,
)
ENDS = TokensSetting(name="ends", horizon=5, vocabulary=40, density=0.6, ends=0.4, stop=0.5)
KEYINGS = ("slot", "position", "generator", "collide")


def keyed(setting, keying, **dials):
    return dataclasses.replace(setting, keying=keying, **dials)


def token_law(model: TokensModel, turn, state, said):
    """Probability of each token of the vocabulary after what was said, by a dense softmax."""
    classes = np.repeat(np.arange(len(model.sizes)), model.sizes)
    previous = classes[said[-1]] if said else 0
    style = model.style_of[turn, state, previous]
    logits = np.array(
        [
            model.logits[turn, state, previous, classes[token]] + model.styles[style, token]
            for token in range(model.setting.vocabulary)
        ]
    )
    weight = np.exp(logits - logits.max())
    return weight / weight.sum()


def all_turns(model: TokensModel, turn, state, said=()):
    """Every (probability, tokens, meaning) of a turn: nothing but the tables."""
    if said and (said[-1] == STOP or len(said) == model.setting.limit):
        classes = np.repeat(np.arange(len(model.sizes)), model.sizes)
        mode = 0
        for token in said:
            mode = mode if token == STOP else model.after[mode, classes[token]]
        return [(1.0, said, mode)]
    return [
        (share * p, tokens, meaning)
        for token, share in enumerate(token_law(model, turn, state, said).tolist())
        for p, tokens, meaning in all_turns(model, turn, state, (*said, token))
    ]


def outcomes_from(model: TokensModel, turn, state, first=None):
    """Every (probability, reward still to come) of a state; `first` names the turn said there."""
    if turn == model.setting.horizon:
        return [(1.0, 0.0)]
    turns = all_turns(model, turn, state)
    if first is not None:
        turns = [(1.0, tokens, meaning) for _, tokens, meaning in turns if tokens == first]
    meant = np.zeros(model.setting.modes)
    for p, _, meaning in turns:
        meant[meaning] += p
    found = []
    for meaning in np.flatnonzero(meant).tolist():
        after = model.move[turn, state, meaning]
        chance, hazard = model.chance[turn, after], model.hazard[turn, after]
        rest = outcomes_from(model, turn + 1, after)
        for coin, share in ((0, 1 - chance), (1, chance)):
            own = model.points[turn, state, meaning] + coin * model.prize[turn]
            weight = meant[meaning] * share
            found.append((weight * hazard, own))
            found += [(weight * (1 - hazard) * p, own + more) for p, more in rest]
    return found


def mean(outcomes):
    return sum(p * reward for p, reward in outcomes)


@pytest.mark.parametrize("table_seed", [0, 1])
def test_the_law_of_turns_equals_enumeration_of_every_token_sequence(table_seed):
    model = build_model(dataclasses.replace(TINY, table_seed=table_seed))
    law = turn_law(model)
    for turn, state in itertools.product(range(2), range(2)):
        turns = all_turns(model, turn, state)
        share = np.array([p for p, _, _ in turns])
        assert share.sum() == pytest.approx(1, rel=1e-12)
        meant = [share[[m == meaning for _, _, m in turns]].sum() for meaning in range(3)]
        np.testing.assert_allclose(law.meaning[turn, state], meant, rtol=1e-12, atol=1e-15)
        assert law.entropy[turn, state] == pytest.approx(-share @ np.log(share), rel=1e-12)
        lengths = [len(tokens) for _, tokens, _ in turns]
        assert law.length[turn, state] == pytest.approx(share @ lengths, rel=1e-12)
        first = token_law(model, turn, state, ())
        expected = pytest.approx(-first @ np.log(first), rel=1e-12)
        assert law.first_entropy[turn, state] == expected


@pytest.mark.parametrize("reward", ["turns", "end"])
def test_truth_equals_brute_force_over_tokens(reward):
    world = Tokens(dataclasses.replace(TINY, reward=reward), seed=3)
    for episode in world.play(world.tasks(2), 4, step=0):
        action_value, value, advantage = world.truth(episode)
        earned = 0.0
        for index, turn in enumerate(episode.turns):
            before = mean(outcomes_from(world.model, *turn.state))
            after = mean(outcomes_from(world.model, *turn.state, first=turn.action))
            assert value[index] == pytest.approx(earned + before, abs=1e-12)
            assert action_value[index] == pytest.approx(earned + after, abs=1e-12)
            earned += turn.reward
        np.testing.assert_allclose(advantage, action_value - value, atol=1e-12)
        assert episode.outcome == earned


def test_logprob_is_that_of_the_whole_vocabulary():
    world = Tokens(ENDS, seed=3)
    for episode in world.play(world.tasks(3), 5, step=0):
        for turn in episode.turns:
            shares = [
                token_law(world.model, *turn.state, turn.action[:place])[token]
                for place, token in enumerate(turn.action)
            ]
            assert turn.logprob == pytest.approx(np.log(shares).sum(), rel=1e-12)
            assert turn.num_tokens == len(turn.action) <= ENDS.limit
            assert STOP not in turn.action[:-1]
            assert turn.action[-1] == STOP or len(turn.action) == ENDS.limit


def test_class_gradient_equals_finite_differences():
    world = Tokens(TINY, seed=0)
    exact = world.class_gradient(world.tasks(2))
    for place in np.ndindex(exact.shape):
        ends = []
        for nudge in (1e-5, -1e-5):
            logits = world.model.logits.copy()
            logits[place] += nudge
            model = dataclasses.replace(world.model, logits=logits)
            ends.append(Tokens(TINY, seed=0, model=model).values.value[0].mean())
        assert exact[place] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)


def test_scores_of_all_turns_give_the_class_gradient():
    """Sum over turns of pi(turn) * A(turn) * grad log pi(turn), at turn 0 from one start."""
    world = Tokens(TINY, seed=0)
    task = world.tasks(1)
    (episode,) = world.play(task, 1, step=0)
    total = 0.0
    for share, tokens, _ in all_turns(world.model, 0, 0):
        (fork,) = world.fork([Fork(episode, 0, tokens)])
        weight = np.zeros(fork.num_turns)
        weight[0] = share * world.truth(fork)[2][0]
        total = total + world.class_scores(fork, weight)
    np.testing.assert_allclose(total[0], world.class_gradient(task)[0], atol=1e-14)


def positions(world, episode, turn):
    """Slot and first position of a turn's noise, counted anew."""
    earlier = episode.turns[:turn]
    sampled = sum(t.num_tokens for t in earlier)
    shown = sum(int(world.model.shown[t.state[1]]) for t in episode.turns[: turn + 1])
    return {
        "slot": (turn, 0),
        "collide": (turn, 0),
        "position": (0, sampled + shown),
        "generator": (0, sampled),
    }[world.setting.keying]


def follows(world, episode, turn, stream, row):
    slot, start = positions(world, episode, turn)
    said = episode.turns[turn]
    for place, token in enumerate(said.action):
        law = token_law(world.model, *said.state, said.action[:place])
        key = stream.key(world.seed, episode.step, row, slot)
        assert token == np.argmax(np.log(law) + gumbel(key, start + place, np.arange(len(law))))


def coin_follows(world, episode, turn, stream, row):
    said = episode.turns[turn]
    meaning = world.places(episode)[2][turn]
    coin = uniform(stream.key(world.seed, episode.step, row, turn), 0) < 0.5
    paid = said.reward - world.model.points[*said.state, meaning]
    assert paid == world.setting.luck * coin


@pytest.mark.parametrize("keying", KEYINGS)
def test_factual_follows_its_keys(keying):
    world = Tokens(keyed(ENDS, keying), seed=7)
    for row, episode in enumerate(world.play(world.tasks(2), 5, step=3)):
        assert episode.row == row and episode.step == 3
        named = row // 4 if keying == "collide" else row
        for turn in range(episode.num_turns):
            follows(world, episode, turn, Stream("sample"), named)
            coin_follows(world, episode, turn, Stream("environment"), named)


FORKS = [
    (SHARED, 0, Stream("alternative", 1), Stream("sample"), Stream("environment")),
    (
        FRESH,
        1,
        Stream("alternative", 2),
        Stream("fresh/2.1.fresh.resample"),
        Stream("environment/2.1.fresh.resample"),
    ),
    (3, 0, Stream("draw", 3), Stream("draw", 3), Stream("environment", 3)),
]


@pytest.mark.parametrize("keying", KEYINGS)
@pytest.mark.parametrize(("luck", "alternative", "decision", "tail", "environment"), FORKS)
def test_fork_follows_its_keys(keying, luck, alternative, decision, tail, environment):
    world = Tokens(keyed(ENDS, keying, ends=0.0), seed=7)
    parents = world.play(world.tasks(3), 3, step=3)
    forks = [
        Fork(parent, 2, RESAMPLE, luck, alternative=alternative, skip_equal=False)
        for parent in parents
    ]
    for parent, episode in zip(parents, world.fork(forks), strict=True):
        assert episode.row == parent.row
        named = parent.row // 4 if keying == "collide" else parent.row
        for turn in range(2, 5):
            follows(world, episode, turn, decision if turn == 2 else tail, named)
            coin_follows(world, episode, turn, environment, named)


def actions(episode):
    return [turn.action for turn in episode.turns]


def test_same_key_same_bytes_whatever_the_batch():
    world = Tokens(ENDS, seed=1)
    alone = world.play([Task("a", {"start": 1})], 2, step=0)
    many = Tokens(ENDS, seed=1).play([Task("a", {"start": 1})], 30, step=0)
    for one, other in zip(alone, many, strict=False):
        assert actions(one) == actions(other) and one.outcome == other.outcome
        assert one.column("logprob").tolist() == other.column("logprob").tolist()
    assert len({tuple(actions(episode)) for episode in many}) == 30
    other = Tokens(ENDS, seed=2).play([Task("a", {"start": 1})], 2, step=0)
    assert actions(other[0]) != actions(alone[0])


def test_a_large_vocabulary_is_really_sampled_in_bounded_parts(monkeypatch):
    setting = TokensSetting(name="large", horizon=2, vocabulary=100_000, limit=3)
    world = Tokens(setting, seed=1)
    episodes = world.play(world.tasks(2), 2, step=0)
    for episode in episodes:
        for turn in range(2):
            said = episode.turns[turn]
            law = token_law(world.model, *said.state, ())
            key = NoiseKey(1, 0, episode.row, turn)
            assert said.action[0] == sample(np.log(law)[None], [key], [0])[0]
    monkeypatch.setattr("simulations.worlds.tokens_voice._CELLS", 1)
    again = Tokens(setting, seed=1).play(world.tasks(2), 2, step=0)
    assert [actions(e) for e in again] == [actions(e) for e in episodes]
    assert len({token for e in episodes for turn in actions(e) for token in turn}) > 5


@pytest.mark.parametrize("coupling", ["gumbel", "maximal"])
@pytest.mark.parametrize("keying", KEYINGS)
def test_null_twins_never_disagree(keying, coupling):
    world = Tokens(keyed(ENDS, keying), seed=4)
    episodes = world.play(world.tasks(3), 8, step=0)
    twins = world.fork([Fork(e, 0, coupling=coupling) for e in episodes])
    fresh = world.fork([Fork(e, e.num_turns - 1, luck=FRESH) for e in episodes])
    draws = world.fork([Fork(e, 0, luck=2) for e in episodes])
    parents = [*episodes, *twins, *fresh, *draws]
    nulls = world.fork(
        [
            Fork(parent, turn, KEEP, coupling=coupling)
            for parent in parents
            for turn in range(parent.fork.turn if parent.fork else 0, parent.num_turns)
        ]
    )
    assert null_disagreements(nulls) == (len(nulls), 0, 0)


def test_equal_decision_ends_identically_even_if_played_and_costs_its_turn():
    setting = dataclasses.replace(ENDS, vocabulary=4, stop=2.0)
    world = Tokens(setting, seed=4)
    episodes = world.play(world.tasks(3), 20, step=0)
    places = [(e, t) for e in episodes for t in range(e.num_turns)]
    skipped = world.fork([Fork(e, t) for e, t in places])
    played = world.fork([Fork(e, t, skip_equal=False) for e, t in places])
    equal = 0
    for one, other, (parent, turn) in zip(skipped, played, places, strict=True):
        assert one.outcome == other.outcome and actions(one) == actions(other)
        if one.turns[turn].action == parent.turns[turn].action:
            equal += 1
            assert one.turns == list(parent.turns) and one.outcome == parent.outcome
            assert one.sampled == parent.turns[turn].num_tokens
            assert other.sampled == sum(t.num_tokens for t in parent.turns[turn:])
    assert equal > 20


def test_costs_are_tokens_and_prefix_turns_are_the_parents_own():
    world = Tokens(dataclasses.replace(ENDS, ends=0.0), seed=0)
    (parent,) = world.play(world.tasks(1), 1, step=0)
    assert parent.sampled == sum(len(action) for action in actions(parent))
    for action in (RESAMPLE, DIFFERENT, KEEP, (3, STOP)):
        (fork,) = world.fork([Fork(parent, 2, action, FRESH)])
        assert all(one is own for one, own in zip(fork.turns[:2], parent.turns[:2], strict=True))
        drawn = fork.turns[2:] if action in (RESAMPLE, DIFFERENT) else fork.turns[3:]
        assert fork.sampled == sum(turn.num_tokens for turn in drawn)
        if action not in (RESAMPLE, DIFFERENT):
            assert fork.turns[2].action == (parent.turns[2].action if action is KEEP else action)
    assert world.fork([]) == []
    (equal,) = world.fork([Fork(parent, 2, parent.turns[2].action, skip_equal=True)])
    assert actions(equal) == actions(parent) and equal.sampled == 0


def test_a_twin_that_takes_its_parents_tail_plays_for_nobody_else():
    world = Tokens(dataclasses.replace(ENDS, vocabulary=4, stop=2.0), seed=4)
    factuals = world.play(world.tasks(3), 10, step=0)
    pairs = [(Fork(e, 0), Fork(e, 0, e.turns[0].action)) for e in factuals]
    played = world.fork([fork for pair in pairs for fork in pair])
    drawn, given = played[::2], played[1::2]
    assert any(
        one.turns[0].action == e.turns[0].action for one, e in zip(drawn, factuals, strict=True)
    )
    for own, parent in zip(given, factuals, strict=True):
        assert own.outcome == parent.outcome and actions(own) == actions(parent)
        assert own.sampled == sum(turn.num_tokens for turn in parent.turns[1:])


def test_different_follows_the_policy_given_that_it_is_not_the_parents():
    setting = dataclasses.replace(TINY, vocabulary=3, limit=2, stop=1.0, ends=0.0)
    world = Tokens(setting, seed=4)
    (parent,) = world.play(world.tasks(1), 1, step=0)
    turns = {tokens: p for p, tokens, _ in all_turns(world.model, 0, 0)}
    for action in turns:
        (child,) = world.fork([Fork(parent, 0, action)])
        number = 400
        forks = world.fork(
            [Fork(child, 0, DIFFERENT, alternative=number_) for number_ in range(number)]
        )
        found = [fork.turns[0].action for fork in forks]
        assert action not in found
        for tokens, p in turns.items():
            share = 0.0 if tokens == action else p / (1 - turns[action])
            spread = 4.5 * np.sqrt(share * (1 - share) / number)
            assert abs(found.count(tokens) / number - share) <= spread + 1e-12


def test_control_takes_the_same_decision_as_its_twin():
    world = Tokens(ENDS, seed=4)
    episodes = world.play(world.tasks(3), 10, step=0)
    twins = world.fork([Fork(e, 0, alternative=2) for e in episodes])
    controls = world.fork([Fork(e, 0, luck=FRESH, alternative=2) for e in episodes])
    assert [t.turns[0].action for t in twins] == [c.turns[0].action for c in controls]
    assert [t.outcome for t in twins] != [c.outcome for c in controls]


def test_order_of_forks_is_kept_and_does_not_matter():
    world = Tokens(ENDS, seed=4)
    episodes = world.play(world.tasks(3), 5, step=0)
    forks = [
        Fork(e, t, luck=luck, coupling="maximal")
        for e in episodes
        for t in range(e.num_turns)
        for luck in (SHARED, FRESH)
    ]
    forward, backward = world.fork(forks), world.fork(forks[::-1])[::-1]
    assert [f.fork for f in forward] == forks
    assert [actions(f) for f in forward] == [actions(f) for f in backward]


@pytest.mark.parametrize("keying", KEYINGS)
def test_every_episode_has_the_policys_law_under_every_keying(keying):
    """Factuals, twins of both couplings, fresh forks and numbered draws all have mean V."""
    world = Tokens(keyed(ENDS, keying, colliding=2), seed=5)
    episodes = world.play(world.tasks(1), 400, step=0)
    value = world.values.value[0, 0]
    kinds = [
        episodes,
        world.fork([Fork(e, 0) for e in episodes]),
        world.fork([Fork(e, 0, coupling="maximal") for e in episodes]),
        world.fork([Fork(e, 0, luck=FRESH) for e in episodes]),
        world.fork([Fork(e, 0, luck=1) for e in episodes]),
    ]
    for kind in kinds:
        outcome = np.array([e.outcome for e in kind]).reshape(-1, 2).mean(axis=1)
        assert abs(outcome.mean() - value) < 4.5 * outcome.std() / np.sqrt(len(outcome))


def meeting_world(keying):
    """A twin that stops at once says turn 1 with the noise of the factual's second token.

    Three tokens: stop, a, b. Turn 0 is "stop" or begins with a; its second token is a or b, as is
    the first of turn 1, which alone pays.
    """
    setting = TokensSetting(
        name="meet", horizon=2, states=1, vocabulary=3, classes=2, modes=3, limit=2, luck=0.0
    )
    logits = np.full((2, 1, 3, 3), -30.0)
    logits[0, 0, 0, [0, 1]] = 0.0
    logits[0, 0, 1, [1, 2]] = 0.0
    logits[1, 0, 0, [1, 2]] = 0.0
    logits[1, 0, 1:, 0] = 0.0
    model = dataclasses.replace(
        build_model(setting),
        logits=logits,
        after=np.array([[0, 1, 2], [1, 1, 1], [2, 2, 2]]),
        points=np.array([[[0.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]]),
        shown=np.zeros(1, np.int64),
    )
    return Tokens(keyed(setting, keying), seed=6, model=model)


BIASED = [("slot", False), ("position", True), ("generator", True), ("collide", False)]


@pytest.mark.parametrize(("keying", "is_biased"), BIASED)
def test_shared_luck_is_biased_where_positions_run_on(keying, is_biased):
    """E[twin | factual said a, a]: half 1 (the twin stopped), half V = 1/2. Fresh luck: V."""
    world = meeting_world(keying)
    episodes = [e for e in world.play(world.tasks(1), 1600, step=0) if e.row % 4 == 0]
    own = [e for e in episodes if e.turns[0].action == (1, 1)]
    expected = {SHARED: -0.25 if is_biased else 0.0, FRESH: 0.0}
    assert len(own) > 60
    for luck, bias in expected.items():
        twins = world.fork([Fork(e, 0, luck=luck) for e in own])
        errors = np.array(
            [e.outcome - t.outcome - world.truth(e)[2][0] for e, t in zip(own, twins, strict=True)]
        )
        assert abs(errors.mean() - bias) < 4.5 * errors.std() / np.sqrt(len(errors)) + 1e-12
        assert bias == 0 or errors.mean() < -0.1


@pytest.mark.parametrize("coupling", ["gumbel", "maximal"])
def test_twins_are_unbiased_for_every_meaning(coupling):
    world = Tokens(dataclasses.replace(ENDS, horizon=4), seed=9)
    episodes = world.play(world.tasks(1), 1500, step=0)
    twins = world.fork([Fork(e, 0, coupling=coupling) for e in episodes])
    errors = np.array(
        [e.outcome - t.outcome - world.truth(e)[2][0] for e, t in zip(episodes, twins, strict=True)]
    )
    meaning = np.array([world.places(e)[2][0] for e in episodes])
    for own in np.unique(meaning):
        error = errors[meaning == own]
        assert abs(error.mean()) < 4.5 * error.std() / np.sqrt(len(error))


def test_colliding_rows_repeat_each_other_and_bias_group_baselines():
    world = Tokens(keyed(ENDS, "collide"), seed=2)
    episodes = world.play(world.tasks(80), 4, step=0)
    assert actions(episodes[0]) == actions(episodes[3]) != actions(episodes[4])
    groups = group_by_task(episodes, seed=2, step=0)
    errors = {}
    for name in ("rloo", "twice"):
        credits = assign(world, groups, make(name))
        exact = [[world.truth(e)[2] for e in c.episodes] for c in credits]
        errors[name] = np.array(
            [
                sum(((v - a) * a).sum() for v, a in zip(c.values, own, strict=True))
                for c, own in zip(credits, exact, strict=True)
            ]
        )
        if name == "rloo":
            assert all((values == 0).all() for credit in credits for values in credit.values)
    z = {name: own.mean() / (own.std() / np.sqrt(len(own))) for name, own in errors.items()}
    assert z["rloo"] < -5 and abs(z["twice"]) < 4.5, z


def last_tokens(episodes):
    return np.array([episode.turns[1].action[0] for episode in episodes])


def near(shares, expected, number):
    """Within 4.5 standard errors of a share."""
    return (np.abs(shares - expected) < 4.5 * np.sqrt(expected * (1 - expected) / number)).all()


def test_maximal_agrees_as_often_as_two_laws_can_and_back_again():
    """Turns of one token; the first leads to one of two states, the second is said there.

    A twin of the twin that returns to the first state is coupled to the twin, by coins of its own.
    """
    setting = TokensSetting(
        name="x", horizon=2, vocabulary=6, classes=2, modes=3, limit=1, density=1.0
    )
    world = Tokens(dataclasses.replace(setting, contrast=1.5, table_seed=3), seed=3)
    number = 1800
    parents = world.play(world.tasks(1), number, step=0)
    states = {e.turns[0].action: e.turns[1].state[1] for e in parents}
    said = (STOP,)
    other = next(action for action in states if states[action] != states[said])
    parents = world.fork([Fork(e, 0, said, luck=1) for e in parents])
    laws = [token_law(world.model, 1, states[action], ()) for action in (said, other)]
    plain = world.fork([Fork(p, 0, other) for p in parents])
    twins = world.fork([Fork(p, 0, other, coupling="maximal") for p in parents])
    back = world.fork([Fork(t, 0, said, coupling="maximal") for t in twins])
    for episodes, law in ((parents, 0), (plain, 1), (twins, 1), (back, 0)):
        shares = np.bincount(last_tokens(episodes), minlength=6) / number
        assert near(shares, laws[law], number)
    for one, two, coupling in (
        (parents, plain, "gumbel"),
        (parents, twins, "maximal"),
        (twins, back, "maximal"),
    ):
        same = (last_tokens(one) == last_tokens(two)).mean()
        assert near(same, agreement(*laws, coupling), number)


def test_maximal_touches_shared_tails_only():
    world = Tokens(ENDS, seed=4)
    episodes = world.play(world.tasks(3), 5, step=0)
    for luck in (FRESH, 2):
        plain = world.fork([Fork(e, 0, luck=luck) for e in episodes])
        other = world.fork([Fork(e, 0, luck=luck, coupling="maximal") for e in episodes])
        assert [actions(e) for e in plain] == [actions(e) for e in other]
    twins = world.fork([Fork(e, 0, coupling="maximal") for e in episodes])
    plain = world.fork([Fork(e, 0) for e in episodes])
    assert [t.turns[0].action for t in twins] == [p.turns[0].action for p in plain]
    with pytest.raises(ValueError, match="must be 'maximal' for a fork that shares the luck"):
        world.fork([Fork(twins[0], 0, KEEP)])
    assert world.fork([Fork(twins[0], 0, luck=FRESH)])[0].outcome is not None


def test_actions_that_are_no_turns_are_refused():
    world = Tokens(ENDS, seed=0)
    (parent,) = world.play(world.tasks(1), 1, step=0)
    for action in ((), (STOP, STOP), (3,), (99, STOP), (3,) * (ENDS.limit + 1), (-1, STOP)):
        with pytest.raises(ValueError, match=r"`action` must be a turn: 1 to 6 ids in 0\.\.39"):
            world.fork([Fork(parent, 0, action)])


def test_dials_are_refused_outside_their_range():
    for dials, match in (
        ({"vocabulary": 3}, "`vocabulary` must have a token for each class"),
        ({"limit": 0}, "`limit` must be at least 1"),
        ({"density": 0.0}, "`density` must be in"),
        ({"luck": 0.3}, "multiple of 1/8"),
        ({"judge": 2.0}, "`judge` must be in"),
        ({"sharpness": np.nan}, "`sharpness` must be at least 0 and finite"),
        ({"spread": -1.0}, "`spread` must be at least 0 and finite"),
        ({"reward": "ends"}, "Unknown reward 'ends'. Did you mean 'end'"),
    ):
        with pytest.raises(ValueError, match=match):
            TokensSetting(name="x", **dials)
    with pytest.raises(UsageError, match="Unknown keying"):
        TokensSetting(name="x", keying="turn")


AFTER_LAST = ("value", "state_score", "features", "gold_logprob")
PER_TURN = ("first_entropy", "signature", "turn_reward", "tool", "hindsight_logprob", "teacher_gap")


def test_needs_have_their_shapes_and_a_missing_one_is_a_sentence():
    world = Tokens(dataclasses.replace(ENDS, reward="end"), seed=0)
    episodes = world.play(world.tasks(2), 4, step=0)
    forks = world.fork([Fork(e, 0, luck=FRESH) for e in episodes])
    for need in (*AFTER_LAST, *PER_TURN, "segments"):
        world.provide(need, [*episodes, *forks])
        for episode in (*episodes, *forks):
            wanted = episode.num_turns + (need in AFTER_LAST)
            assert need == "segments" or len(episode.info[need]) == wanted
    for episode in episodes:
        assert episode.info["value"][-1] == episode.outcome
        gaps = zip(episode.info["teacher_gap"], episode.turns, strict=True)
        assert all(len(gap) == turn.num_tokens for gap, turn in gaps)
        assert (0 < episode.info["first_entropy"]).all() and (
            episode.info["first_entropy"] < 1
        ).all()
    with pytest.raises(UsageError, match=r"Unknown need of the tokens world.*turn_reward"):
        world.provide("predicates", episodes)


def test_hindsight_is_bayes_over_token_sequences():
    """Mean over a turn's tokens of log P(tokens | state, reward still to come)."""
    world = Tokens(TINY, seed=1)
    episodes = world.play(world.tasks(2), 4, step=0)
    world.provide("hindsight_logprob", episodes)
    for episode in episodes:
        for index, turn in enumerate(episode.turns):
            to_come = sum(t.reward for t in episode.turns[index:])
            chances = [
                sum(p for p, reward in outcomes if reward == to_come)
                for outcomes in (
                    outcomes_from(world.model, *turn.state, first=turn.action),
                    outcomes_from(world.model, *turn.state),
                )
            ]
            expected = (turn.logprob + np.log(chances[0] / chances[1])) / turn.num_tokens
            assert episode.info["hindsight_logprob"][index] == pytest.approx(expected, rel=1e-9)


def test_an_exact_teachers_gap_is_that_of_the_turn():
    world = Tokens(dataclasses.replace(ENDS, teacher=1.0), seed=1)
    episodes = world.play(world.tasks(2), 4, step=0)
    world.provide("teacher_gap", episodes)
    for episode in episodes:
        total = [gap.sum() for gap in episode.info["teacher_gap"]]
        turn, state, meaning = world.places(episode)
        gain = 4.0 * world.values.advantage
        policy = world.policy_table()
        norm = np.log((policy * np.exp(gain)).sum(axis=-1))
        np.testing.assert_allclose(total, gain[turn, state, meaning] - norm[turn, state], atol=1e-9)


@pytest.mark.parametrize("name", ["twice", "independent", "vine", "rloo", "gigpo", "arpo", "rtmc"])
def test_methods_run_and_are_scored_against_exact_truth(name):
    world = Tokens(ENDS, seed=3)
    scored = score_step(world, make(name), num_tasks=3, rollouts=4, step=0)
    assert np.isfinite(scored.error).all() and scored.factual_tokens > len(scored.value)
    assert score_sum(world, scored.place, scored.value).shape == world.policy_table().shape


def test_exact_credit_points_along_both_gradients():
    """The exact advantage, weighted by scores, has the policy gradient as its mean."""
    world = Tokens(dataclasses.replace(ENDS, horizon=3), seed=3)
    tasks = world.tasks(3)
    scored = score_step(world, make("rloo"), num_tasks=3, rollouts=600, step=0)
    estimate = score_sum(world, scored.place, scored.advantage) / scored.num_episodes
    exact = world.policy_gradient(tasks)
    assert np.abs(estimate - exact).max() < 0.02 and np.abs(exact).max() > 0.05
    episodes = world.play(tasks, 300, step=0)
    scores = sum(world.class_scores(e, world.truth(e)[2]) for e in episodes) / len(episodes)
    exact = world.class_gradient(tasks)
    assert np.abs(scores - exact).max() < 0.03 and np.abs(exact).max() > 0.05
