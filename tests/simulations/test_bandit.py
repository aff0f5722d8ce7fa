import numpy as np
import pytest

from simulations.worlds.bandit import REGIMES, Bandit, BanditSetting, outcome, pair_law, pairs
from twinstats.credit import assign, make
from twinstats.episodes import DIFFERENT, FRESH, KEEP, SHARED, Fork, Task, group_by_task
from twinstats.errors import UsageError
from twinstats.rows import null_disagreements


def world_setting(regime, **dials):
    return BanditSetting(name=f"test {regime}", regime=regime, effect=0.1, **dials)


@pytest.mark.parametrize("luck", ["shared", "fresh"])
@pytest.mark.parametrize("regime", REGIMES)
def test_pairs_follow_their_law(regime, luck):
    setting = world_setting(regime)
    factual, twin = pairs(setting, 40_000, seed=1, luck=luck)
    law = pair_law(setting, luck)
    spread = 5 / np.sqrt(len(factual))
    assert abs((factual - twin).mean() - law.effect) < spread
    assert abs((factual != twin).mean() - law.discordance) < spread
    assert abs(np.cov(factual, twin)[0, 1] - law.covariance) < spread


def test_the_law_of_shared_luck_by_enumerating_the_uniform():
    setting = world_setting("smooth")
    luck = np.zeros((20_000, 4))
    luck[:, 0] = (np.arange(20_000) + 0.5) / 20_000
    luck[:, 2] = 1.0
    zeros = np.zeros(20_000, np.int64)
    first, second = outcome(setting, zeros, luck), outcome(setting, zeros + 1, luck)
    law = pair_law(setting)
    assert (first - second).mean() == pytest.approx(law.effect, abs=1e-4)
    assert (first != second).mean() == pytest.approx(law.discordance, abs=1e-4)
    assert np.cov(first, second)[0, 1] == pytest.approx(law.covariance, abs=1e-4)


def test_variances_of_a_law_agree_with_its_discordance():
    for regime in REGIMES:
        law = pair_law(world_setting(regime))
        assert law.variance_paired == pytest.approx(law.discordance - law.effect**2)
        assert law.variance_paired == pytest.approx((1 - law.rho_eff) * law.variance_independent)


def test_regimes_are_what_they_say():
    laws = {r: pair_law(BanditSetting(name=r, regime=r, effect=1e-4)) for r in REGIMES}
    assert laws["smooth"].discordance == pytest.approx(2e-4)
    assert laws["cancelling"].discordance == pytest.approx(0.3)
    assert laws["chaotic"].rho == pytest.approx(0, abs=1e-12)
    assert laws["adverse"].rho == pytest.approx(-0.5)
    assert 0.3 < laws["grader"].discordance < 0.301


def test_continuous_rewards_share_their_spread():
    setting = world_setting("smooth", spread=2.0)
    factual, twin = pairs(setting, 20_000, seed=1)
    law = pair_law(setting)
    assert np.corrcoef(factual, twin)[0, 1] == pytest.approx(law.rho, abs=0.01)
    assert (factual - twin).var() == pytest.approx(law.variance_paired, rel=0.1)


def test_same_seed_and_chunk_same_pairs():
    setting = world_setting("grader")
    first, again = pairs(setting, 100, seed=1, chunk=2), pairs(setting, 100, seed=1, chunk=2)
    other = pairs(setting, 100, seed=1, chunk=3)
    assert first[0].tobytes() == again[0].tobytes() and first[1].tobytes() == again[1].tobytes()
    assert first[0].tobytes() != other[0].tobytes()


def test_impossible_dials_are_refused():
    with pytest.raises(ValueError, match="No pair of outcomes has"):
        BanditSetting(name="x", effect=0.4, ratio=3.0)
    with pytest.raises(UsageError, match="Did you mean 'smooth'"):
        BanditSetting(name="x", regime="smoth")


def test_twins_of_the_world_have_the_exact_law():
    setting = world_setting("smooth")
    world = Bandit(setting, seed=5)
    episodes = world.play(world.tasks(1), 5000, step=0)
    best = [e for e in episodes if e.turns[0].action == 0]
    for luck in ("shared", "fresh"):
        twins = world.fork(
            [Fork(e, 0, DIFFERENT, SHARED if luck == "shared" else FRESH) for e in best]
        )
        gap = np.array([t.fork.episode.outcome - t.outcome for t in twins])
        law = pair_law(setting, luck)
        spread = 5 / np.sqrt(len(gap))
        assert abs(gap.mean() - law.effect) < spread
        assert abs((gap != 0).mean() - law.discordance) < spread


def test_truth_is_closed_form():
    world = Bandit(world_setting("smooth"), seed=5, share=0.25)
    for episode in world.play(world.tasks(1), 10, step=0):
        action_value, value, advantage = world.truth(episode)
        assert value[0] == pytest.approx(0.25 * 0.55 + 0.75 * 0.45)
        assert action_value[0] == pytest.approx(0.55 - 0.1 * episode.turns[0].action)
        assert advantage[0] == pytest.approx(action_value[0] - value[0])


def test_null_twins_agree_unless_the_scorer_has_luck_of_its_own():
    for regime, floor in (("smooth", False), ("grader", True)):
        world = Bandit(world_setting(regime), seed=5)
        episodes = world.play(world.tasks(1), 200, step=0)
        number, by_token, by_outcome = null_disagreements(
            world.fork([Fork(e, 0, KEEP) for e in episodes])
        )
        assert (number, by_token, by_outcome > 0) == (200, 0, floor)


@pytest.mark.parametrize("name", ["twice", "independent", "vine"])
def test_credit_methods_run_and_are_unbiased(name):
    world = Bandit(world_setting("smooth"), seed=5)
    groups = group_by_task(world.play(world.tasks(200), 4, step=0), seed=5, step=0)
    credits = assign(world, groups, make(name, **({"rollouts": 2} if name == "vine" else {})))
    errors = np.concatenate(
        [
            value - world.truth(episode)[2]
            for credit in credits
            for episode, value in zip(credit.episodes, credit.values, strict=True)
        ]
    )
    assert abs(errors.mean()) < 4.5 * errors.std() / np.sqrt(len(errors))


def test_another_coupling_is_refused():
    world = Bandit(BanditSetting(name="coupling", effect=0.1), seed=1)
    (episode,) = world.play([Task("t")], 1, 0)
    with pytest.raises(ValueError, match="`coupling` must be 'gumbel'"):
        world.fork([Fork(episode, 0, coupling="maximal")])
