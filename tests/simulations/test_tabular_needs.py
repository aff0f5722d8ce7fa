import numpy as np
import pytest

from simulations.worlds.chain_model import ChainSetting
from simulations.worlds.tabular_needs import (
    JUDGE_NOISE,
    LEAST_LOGPROB,
    NOTABLE,
    TEACHER_STRENGTH,
    Quality,
)
from tests.simulations.toy import TURNS, random_model, toy, ways
from twinstats.episodes import DIFFERENT, FRESH, Fork
from twinstats.errors import UsageError
from twinstats.noise import NoiseKey, uniform


def filled(world, need, rollouts=40):
    episodes = world.play(world.tasks(2), rollouts, step=0)
    world.provide(need, episodes)
    return [(episode, episode.info[need]) for episode in episodes]


def test_value_is_exact_at_quality_one_and_noise_around_the_mean_at_zero():
    world = toy()
    for episode, value in filled(world, "value"):
        np.testing.assert_array_equal(value[:-1], world.truth(episode)[1])
        assert value[-1] == episode.outcome
    seen = np.concatenate([value[:-1] for _, value in filled(toy(quality=0.0), "value", 1000)])
    mean = world.values.value[0, [2, 0]].mean()
    assert seen.mean() == pytest.approx(mean, abs=0.02)
    assert seen.std() == pytest.approx(0.25, abs=0.01)


def test_exact_teacher_prefers_better_actions_and_is_a_law():
    world = toy(tokens=3)
    gaps = np.full(world.values.policy.shape, np.nan)
    for episode, found in filled(world, "teacher_gap", 400):
        for place, gap in zip(world.places(episode).T, found, strict=True):
            assert gap.shape == (3,) and np.ptp(gap) == 0
            gaps[tuple(place)] = gap.sum()
    met = ~np.isnan(gaps).any(axis=-1)
    assert met.sum() > 5
    mass = (world.values.policy * np.exp(gaps)).sum(axis=-1)[met]
    np.testing.assert_allclose(mass, 1, atol=1e-12)
    advantage = world.values.advantage
    apart = (advantage[..., 1] - advantage[..., 0])[met]
    np.testing.assert_allclose(
        (gaps[..., 1] - gaps[..., 0])[met], TEACHER_STRENGTH * apart, atol=1e-12
    )


def test_bad_teacher_sees_noise_of_its_own_in_every_token():
    world = toy(tokens=2, quality=0.0)
    tokens = np.concatenate([gap for _, gaps in filled(world, "teacher_gap", 600) for gap in gaps])
    first, second = tokens[::2], tokens[1::2]
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert tokens.std() == pytest.approx(1.0, abs=0.07)


def test_gold_logprob_is_the_probability_of_success():
    world = toy()
    for episode, gold in filled(world, "gold_logprob"):
        earned = np.append(0, np.cumsum(episode.column("reward")))
        for index, turn in enumerate(episode.turns):
            at, state = map(int, turn.state.split(":"))
            hits = [p for p, _, r in ways(world.tables, at, state) if sum(r) + earned[index] == 1]
            floor = np.exp(LEAST_LOGPROB)
            assert np.exp(gold[index]) == pytest.approx(max(sum(hits), floor), rel=1e-10)
        assert gold[-1] == (0.0 if episode.success else LEAST_LOGPROB)


def test_hindsight_is_bayes_rule():
    world = toy()
    for episode, hindsight in filled(world, "hindsight_logprob"):
        to_come = episode.outcome - np.append(0, np.cumsum(episode.column("reward")))
        for index, turn in enumerate(episode.turns):
            at, state = map(int, turn.state.split(":"))
            hits = [way for way in ways(world.tables, at, state) if sum(way[2]) == to_come[index]]
            joint = sum(p for p, places, _ in hits if places[0][2] == turn.action)
            expected = joint / sum(p for p, _, _ in hits)
            assert np.exp(hindsight[index]) == pytest.approx(expected, rel=1e-10)


def test_exact_judge_names_runs_of_notable_turns():
    world = toy()
    some = 0
    for episode, segments in filled(world, "segments"):
        advantage = world.truth(episode)[2]
        marks = np.zeros(episode.num_turns)
        for begin, end, sign in segments:
            assert not marks[begin : end + 1].any()
            marks[begin : end + 1] = sign
            some += end > begin
        expected = np.where(np.abs(advantage) > NOTABLE, np.sign(advantage), 0)
        np.testing.assert_array_equal(marks, expected)
        borders = zip(segments, segments[1:], strict=False)
        assert all(a[1] + 1 < b[0] or a[2] != b[2] for a, b in borders)
    assert some > 5


def test_judgement_is_keyed_by_row_and_slot():
    world = toy(quality=0.0)
    episodes = [e for e in world.play(world.tasks(2), 40, step=5) if e.num_turns == TURNS]
    twins = world.fork([Fork(e, 2, DIFFERENT, FRESH) for e in episodes])
    world.provide("value", [*episodes, *twins])
    for twin in twins:
        np.testing.assert_array_equal(twin.info["value"][:3], twin.fork.episode.info["value"][:3])
    seen = np.array([episode.info["value"][:2] for episode in episodes])
    assert len(np.unique(seen)) == seen.size
    world.provide("segments", episodes)
    for episode in episodes:
        marks = np.zeros(TURNS)
        for begin, end, sign in episode.info["segments"]:
            marks[begin : end + 1] = sign
        for slot in range(TURNS):
            noise = float(uniform(NoiseKey(0, 5, episode.row, slot, purpose="judge"), 0))
            assert marks[slot] in (0, 1 if noise > 0.5 else -1)
            assert (marks[slot] != 0) == (abs(noise - 0.5) > 0.19146246)  # half a spread of .1
    assert JUDGE_NOISE == 0.1 and NOTABLE == 0.05


def test_the_other_needs_follow_the_episode():
    world = toy(tokens=2)
    episodes = world.play(world.tasks(2), 20, step=0)
    for need in ("first_entropy", "tool", "turn_reward", "state_score", "signature", "features"):
        world.provide(need, episodes)
    for episode in episodes:
        names = [("left", "right")[turn.action] for turn in episode.turns]
        states = [turn.state for turn in episode.turns]
        assert episode.info["tool"] == names
        assert episode.info["signature"] == list(zip(states, names, strict=True))
        rewards = episode.column("reward")
        np.testing.assert_array_equal(episode.info["turn_reward"], rewards)
        np.testing.assert_array_equal(episode.info["state_score"], np.append(0, np.cumsum(rewards)))
        np.testing.assert_allclose(
            episode.info["first_entropy"], episode.column("entropy") / np.log(2)
        )
        shown = [int(text.split(":")[1]) for text in [*states, episode.final_state]]
        np.testing.assert_array_equal(episode.info["features"][:, :-1], np.eye(3)[shown])
        np.testing.assert_allclose(
            episode.info["features"][:, -1], np.arange(episode.num_turns + 1) / 3
        )


def test_needs_that_a_world_lacks_are_refused_with_those_it_has():
    with pytest.raises(UsageError, match="need of the toy world 'entities'.*Known: .*gold_logprob"):
        toy().provide("entities", [])
    plain = toy(model=random_model(goal=None))
    with pytest.raises(UsageError, match="Unknown need of the toy world 'gold_logprob'"):
        plain.provide("gold_logprob", [])
    assert plain.play(plain.tasks(1), 1, step=0)[0].success is None


@pytest.mark.parametrize("name", ["critic", "teacher", "judge"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_qualities_are_refused_outside_their_range(name, value):
    known = {"critic": 1.0, "teacher": 1.0, "judge": 1.0, name: value}
    with pytest.raises(ValueError, match=rf"`{name}` must be in \[0, 1\], got {value}"):
        Quality(**known)
    with pytest.raises(ValueError, match=rf"`{name}` must be in"):
        ChainSetting(name="x", **{name: value})
