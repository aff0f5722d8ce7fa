import dataclasses
import math

import numpy as np
import polars as pl
import pytest

from trainer.loop.step_log import play_metrics
from twinstats.credit.budget import Budget, BudgetMemory, Planned
from twinstats.episodes import FRESH, KEEP, Credit, Episode, Fork, Group, Task, Turn
from twinstats.records import create_run, metric_rows


def episode(task, row, outcome, *, lengths=(1,), fork=None, action=1, sampled=None):
    """An episode of turns with given numbers of tokens; a fork's own turn says `action`."""
    own = 0 if fork is None else fork.turn
    turns = [
        Turn((action if index == own else 1,) * length, -1.0, None, length, "s")
        for index, length in enumerate(lengths)
    ]
    sampled = sum(lengths[own:]) if sampled is None else sampled
    return Episode(task, 0, row, turns, outcome, True, False, fork=fork, sampled=sampled)


def group(*outcomes, name="t", lengths=(1,), first_row=0):
    task = Task(name)
    rows = enumerate(outcomes, start=first_row)
    return Group(task, [episode(task, row, value, lengths=lengths) for row, value in rows], 0, 0)


def played(factual, outcome, *, turn=0, luck=None, action=None, alternative=0, says=2, **how):
    """A fork of a factual; by default a twin whose decision is another."""
    options = {"alternative": alternative} | ({} if luck is None else {"luck": luck})
    fork = Fork(factual, turn, **options | ({} if action is None else {"action": action}))
    lengths = tuple(turn.num_tokens for turn in factual.turns)
    return episode(
        factual.task, factual.row, outcome, lengths=lengths, fork=fork, action=says, **how
    )


def measured(groups, forks, **info):
    """The metrics of a step whose forks all stand in the first group's credit."""
    credits = [
        Credit(
            episodes=one.episodes,
            values=[np.zeros(e.num_turns) for e in one.episodes],
            info={"forks": forks if one is groups[0] else []} | info,
        )
        for one in groups
    ]
    return play_metrics(groups, credits)


def test_a_method_that_says_nothing_of_its_groups_is_logged_all_the_same():
    groups = [group(1.0, 0.0), group(1.0, 1.0), group(0.5, None)]
    metrics = measured(groups, [])
    assert metrics["credit/informative_groups_share"] == pytest.approx(1 / 3)
    assert metrics["train/failed_count"] == 1


def test_a_failed_episode_is_neither_a_success_nor_a_failure_of_the_policy():
    own = group(1.0, None)
    won = dataclasses.replace(own.episodes[0], success=True)
    metrics = measured([dataclasses.replace(own, episodes=[won, own.episodes[1]])], [])
    assert metrics["train/success_share"] == 1.0 == metrics["train/outcome_share"]


def test_where_success_is_not_defined_it_is_null_and_no_failure():
    metrics = measured([group(1.0, 0.0)], [])
    assert np.isnan(metrics["train/success_share"]) and metrics["train/outcome_share"] == 0.5


# (factual, twin, control, equal), two of each task
PAIRS = [
    (1.0, 1.0, 0.0, False),
    (1.0, 0.0, 0.0, False),
    (0.0, 0.0, 1.0, True),
    (0.0, 0.5, 1.0, False),
    (1.0, 0.5, 1.0, False),
    (0.0, 0.0, 0.0, True),
]


def paired_step(pairs=PAIRS):
    """A group a task of two factuals; each has a twin, and a control where one is given."""
    groups, forks = [], []
    for start in range(0, len(pairs), 2):
        own = pairs[start : start + 2]
        groups.append(group(*(f for f, *_ in own), name=f"t{start}", first_row=start))
        for factual, (_, twin, control, equal) in zip(groups[-1].episodes, own, strict=True):
            says = 1 if equal else 2
            forks.append(played(factual, twin, says=says))
            if control is not None:
                forks.append(played(factual, control, luck=FRESH, says=says))
    return groups, forks


def gains(pairs):
    f, t, c, equal = (np.array(column, float) for column in zip(*pairs, strict=True))
    shared, fresh = np.var(f - t), np.var(f - c)
    return fresh / shared, np.var(np.where(equal == 1, 0.0, f - c)) / shared


def test_gains_are_ratios_of_variances_on_the_same_forks_with_jackknife_errors_over_tasks():
    metrics = measured(*paired_step())
    assert (metrics["pairs/twins_count"], metrics["pairs/controls_count"]) == (6, 6)
    without = [gains(PAIRS[:at] + PAIRS[at + 2 :]) for at in (0, 2, 4)]
    for index, word in enumerate(("coupling_gain", "deduplicated_gain")):
        assert metrics[f"pairs/{word}_ratio"] == pytest.approx(gains(PAIRS)[index])
        own = np.array(without)[:, index]
        stderr = math.sqrt(2 / 3 * ((own - own.mean()) ** 2).sum())
        assert metrics[f"pairs/{word}_stderr_ratio"] == pytest.approx(stderr)
    assert gains(PAIRS)[0] != pytest.approx(gains(PAIRS)[1])
    f, t = np.array(PAIRS)[:, 0], np.array(PAIRS)[:, 1]
    assert metrics["pairs/rho_eff_ratio"] == pytest.approx(
        2 * np.cov(f, t, ddof=0)[0, 1] / (np.var(f) + np.var(t))
    )
    assert metrics["pairs/discordance_share"] == pytest.approx(3 / 6)
    assert metrics["pairs/equal_share"] == pytest.approx(2 / 6)


def test_what_a_step_does_not_identify_is_null_in_the_log_and_never_0(tmp_path):
    lonely = [(*pair[:2], None, pair[3]) for pair in PAIRS]
    constant = [(1.0, 1.0, 1.0, False)] * 4
    fields = {"configuration": {}, "seed": 0, "started": "2026-01-01T00:00:00Z"}
    run = create_run(tmp_path / "run", command="x", **fields)
    for step, pairs in enumerate((lonely, constant)):
        run.write("metrics", step, metric_rows(step, measured(*paired_step(pairs))))
    log = pl.read_parquet(run.path / "metrics" / "*.parquet")
    values = {(row["step"], row["name"]): row["value"] for row in log.to_dicts()}
    gain = "pairs/coupling_gain_ratio"
    assert values[0, gain] is None and values[1, gain] is None
    assert values[0, "pairs/rho_eff_ratio"] is not None and values[1, "pairs/rho_eff_ratio"] is None
    assert values[0, "pairs/controls_count"] == 0 and values[1, "pairs/controls_count"] == 4
    assert values[0, "pairs/null_floor_squared_reward"] is None
    assert set(log.filter(name=gain)["reason"]) == {"undefined"}


def test_the_floor_is_the_mean_squared_difference_of_null_twins():
    groups = [group(1.0, 0.0, 0.5)]
    ends = (1.0, 0.5, None)
    forks = [
        played(factual, end, action=KEEP, says=1)
        for factual, end in zip(groups[0].episodes, ends, strict=True)
    ]
    metrics = measured(groups, forks)
    assert metrics["pairs/null_floor_squared_reward"] == pytest.approx(0.25 / 2)
    assert metrics["pairs/null_count"] == 3
    assert metrics["pairs/null_outcome_disagreements_count"] == 2
    assert metrics["pairs/twins_count"] == 0


def test_tokens_by_purpose_add_up_to_all_that_were_sampled():
    groups = [group(1.0, 0.0, lengths=(2, 3, 4))]
    factual, other = groups[0].episodes
    forks = [
        played(factual, 0.0, turn=1),  # 7
        played(factual, 0.0, turn=1, luck=FRESH),  # its control, 7
        played(factual, 1.0, turn=0, says=1, sampled=2),  # an equal decision
        played(factual, None, turn=2),  # failed, 4
        played(factual, 1.0, turn=1, action=KEEP, says=1, sampled=4),  # a null twin
        played(other, 0.0, turn=2, luck=FRESH),  # no twin has its decision, 4
        played(other, 0.0, turn=0, luck=3, sampled=5),  # a numbered draw
    ]
    metrics = measured(groups, forks)
    tokens = {
        name.split("/")[1].removesuffix("_tokens"): value
        for name, value in metrics.items()
        if name.startswith("tokens/")
    }
    saved = tokens.pop("saved")
    assert tokens == {
        "factual": 18,
        "twin": 7 + 4,
        "equal_twin": 2,
        "control": 7,
        "null": 4,
        "other": 4 + 5,
    }
    total = metrics["train/sampled_tokens"] + metrics["train/auxiliary_tokens"]
    assert sum(tokens.values()) == total
    # the equal decision took a tail of 7; the draw's 9 tokens cost 5; the null twin kept 3 and
    # played all 4 of its tail
    assert saved == 7 + 4
    assert metrics["pairs/factual_tails_count"] == 1
    assert metrics["pairs/shared_tails_count"] == 1


def test_the_plan_stands_beside_what_was_spent():
    groups = [group(1.0, 0.0, lengths=(2, 3))]
    plan = [
        Planned(
            episode=one, turn=turn, expected=m, count=2, discordance=0.5, tail_tokens=9.0, price=1.5
        )
        for one, turn, m in zip(groups[0].episodes, (0, 1), (0.5, 1.5), strict=True)
    ]
    forks = [played(groups[0].episodes[0], 0.0, sampled=4)]
    metrics = measured(groups, forks, plan=plan)
    assert metrics["budget/planned_tokens"] == pytest.approx(0.5 * 5 + 1.5 * 3)
    assert metrics["budget/spent_tokens"] == 4
    assert metrics["budget/expected_twins_count"] == pytest.approx(2.0)
    assert metrics["budget/planned_twins_count"] == 4
    assert metrics["budget/price_sqrt_tokens"] == 1.5
    without = measured(groups, forks)
    assert math.isnan(without["budget/planned_tokens"]) and without["budget/spent_tokens"] == 4


def test_the_first_step_of_a_budget_has_no_price_and_later_ones_have():
    memory = BudgetMemory(Budget(ratio=4.0))
    (own,) = groups = [group(1.0, 0.0, 1.0, lengths=(2, 3))]
    prices = []
    for _ in range(2):
        plan = memory.plan(own)
        values = [np.zeros(2)] * 3
        info = {"plan": plan, "twins": [[] for _ in plan], "forks": []}
        credits = [Credit(episodes=own.episodes, values=values, info=info)]
        prices.append(play_metrics(groups, credits)["budget/price_sqrt_tokens"])
        memory.observe(credits)
    assert math.isnan(prices[0]) and prices[1] > 0


def test_every_step_of_every_method_has_the_same_names():
    groups, forks = paired_step()
    names = [list(measured(groups, own)) for own in (forks, [], forks[1::2])]
    assert names[0] == names[1] == names[2]
