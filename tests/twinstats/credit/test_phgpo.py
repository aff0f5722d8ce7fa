import json

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit._pheromones import Pheromones
from twinstats.credit.phgpo import phgpo
from twinstats.credit.registry import Need
from twinstats.episodes import Group, Task

A = 1 / np.sqrt(2)


@pytest.fixture
def tooled(scripted):
    def build(outcome, tools, *, row=0, **fields):
        return scripted(outcome, (0,) * len(tools), row=row, info={"tool": list(tools)}, **fields)

    return build


def group_of(*episodes):
    return Group(Task("task"), list(episodes), 0, 0)


def step(method, group, world):
    credits = assign(world, [group], method)
    method.observe(0, credits)
    return credits[0]


def tau(method):
    return {(before, tool): value for before, tool, value in method.state()["tau"]}


def test_phgpo_by_hand(tooled, given_world):
    method = make("phgpo", eta=0.5)
    group = group_of(tooled(1.0, "ab"), tooled(0.0, "b", row=1))
    first = step(method, group, given_world())
    # nothing was observed before: GRPO
    np.testing.assert_allclose(np.concatenate(first.values), [A, A, -A], rtol=2e-6)
    # the success leaves .99 + .5 * 1 + .3 A on each edge; the failure .99 - .03 * 0 - .3 A / 2
    won, lost = 0.99 + 0.5 + 0.3 * A, 0.99 - 0.15 * A
    found = tau(method)
    assert found.keys() == {(None, "a"), ("a", "b"), (None, "b")}
    np.testing.assert_allclose([found[None, "a"], found["a", "b"]], won, rtol=1e-6)
    np.testing.assert_allclose(found[None, "b"], lost, rtol=1e-6)
    second = step(method, group, given_world())
    # tools a, b: at the start tau is won, lost; after a it is 1 (never taken), won
    half = (np.log(won) - np.log(lost)) / 2
    np.testing.assert_allclose(second.values[0], [A + half / 2, A + np.log(won) / 4], rtol=1e-5)
    np.testing.assert_allclose(second.values[1], [-A - half / 2], rtol=1e-5)


def test_the_published_defaults():
    model = Pheromones()
    assert (model.initial, model.evaporation, model.bounds) == (1.0, 0.01, (0.5, 20.0))
    assert (model.success, model.local, model.failure) == (0.5, 0.3, 0.03)


def test_edges_evaporate_once_a_step_and_stay_in_bounds(tooled, given_world):
    method = make("phgpo", evaporation=0.5, bounds=(0.5, 1.25))
    step(method, group_of(tooled(1.0, "a"), tooled(0.0, "b", row=1)), given_world())
    assert tau(method) == {(None, "a"): pytest.approx(0.5 + 0.5 + 0.3 * A), (None, "b"): 0.5}
    for _ in range(3):
        step(method, group_of(tooled(1.0, "aaaaa"), tooled(0.0, "b", row=1)), given_world())
    assert tau(method)["a", "a"] == 1.25
    step(method, group_of(tooled(0.5, "c"), tooled(0.5, "c", row=1)), given_world())
    assert tau(method)["a", "a"] == 0.625
    step(method, group_of(tooled(0.5, "c"), tooled(0.5, "c", row=1)), given_world())
    assert tau(method)["a", "a"] == 0.5


@pytest.mark.parametrize(
    ("outcome", "success", "deposit"),
    [
        (0.8, None, 0.5 * 0.8),
        (0.8, False, -0.03 * 0.8),
        (0.25, None, -0.03 * 0.25),
        (0.25, True, 0.5 * 0.25),
        (7.0, None, 0.5),
        (-7.0, None, 0.0),
    ],
)
def test_quality_is_the_outcome_clipped_and_success_decides_the_sign(
    tooled, given_world, outcome, success, deposit
):
    method = make("phgpo")
    group = group_of(*(tooled(outcome, "a", row=row, success=success) for row in range(2)))
    step(method, group, given_world())
    np.testing.assert_allclose(tau(method)[None, "a"], 0.99 + 2 * deposit)


def test_an_edge_passed_twice_gets_two_deposits(tooled, given_world):
    method = make("phgpo", local=0.0)
    step(method, group_of(tooled(1.0, "aaa"), tooled(0.0, "b", row=1)), given_world())
    assert tau(method)["a", "a"] == pytest.approx(0.99 + 2 * 0.5)


def test_the_bonus_adds_up_to_nothing_over_the_tools_seen():
    model = Pheromones()
    model.load({"tau": [[None, "a", 3.0], [None, "b", 0.5], ["a", "c", 2.0]]})
    tools = sorted(model.tools())
    assert tools == ["a", "b", "c"]
    for before in (None, "a", "never"):
        total = sum(model.bonus((before, tool), tools) for tool in tools)
        assert total == pytest.approx(0.0, abs=1e-15)
    assert model.bonus(("never", "a"), tools) == 0.0  # an unseen state: all tools alike


def test_equal_outcomes_leave_the_bonus_alone(tooled, given_world):
    method = make("phgpo", eta=1.0)
    group = group_of(tooled(0.3, "a"), tooled(0.3, "b", row=1))
    (credit,) = assign(given_world(), [group], method)
    assert np.concatenate(credit.values).tolist() == [0.0, 0.0]
    method.load({"tau": [[None, "a", 4.0], [None, "b", 1.0]]})
    (credit,) = assign(given_world(), [group], method)
    np.testing.assert_allclose(np.concatenate(credit.values), [np.log(2), -np.log(2)])


def test_no_eta_is_grpo(tooled, given_world):
    method = make("phgpo", eta=0.0)
    method.load({"tau": [[None, "a", 4.0], [None, "b", 1.0]]})
    group = group_of(tooled(1.0, "ab"), tooled(0.0, "b", row=1), tooled(0.0, "a", row=2))
    (credit,) = assign(given_world(), [group], method)
    grpo = make("grpo")(group)
    assert [v.tolist() for v in credit.values] == [v.tolist() for v in grpo.values]


def test_failed_and_lonely_episodes(tooled, scripted, given_world):
    method = make("phgpo")
    lonely, mixed = (
        group_of(tooled(1.0, "ab", row=5)),
        group_of(tooled(1.0, "c"), scripted(None, (0, 0), row=1, info={"tool": None})),  # unread
    )
    one, two = assign(given_world(), [lonely, mixed], method)
    np.testing.assert_array_equal(one.values[0], [np.nan, np.nan])
    assert "needs at least 2" in one.info["reason"]
    np.testing.assert_array_equal(np.concatenate(two.values), [0.0, np.nan, np.nan])
    method.observe(0, [one, two])
    assert tau(method) == {  # both still deposit, without an advantage
        (None, "a"): pytest.approx(1.49),
        ("a", "b"): pytest.approx(1.49),
        (None, "c"): pytest.approx(1.49),
    }
    group = group_of(
        tooled(1.0, "a"), tooled(0.0, "b", row=1), scripted(None, row=2, info={"tool": None})
    )
    (credit,) = assign(given_world(), [group], method)
    np.testing.assert_array_equal(np.isnan(np.concatenate(credit.values)), [False, False, True])


def test_missing_tools_are_refused(tooled, scripted, given_world):
    assert make("phgpo").needs == (Need("tool"),)
    with pytest.raises(ValueError, match="'phgpo' needs 'tool'"):
        assign(given_world(), [group_of(scripted(1.0), scripted(0.0, row=1))], make("phgpo"))
    with pytest.raises(ValueError, match="'tool' of episode 0/0 must be names, got None"):
        phgpo(group_of(tooled(1.0, [None]), tooled(0.0, "b", row=1)))


def test_memory_survives_json_and_ignores_the_order_of_rows(tooled, given_world):
    rng = np.random.default_rng(0)
    episodes = [tooled(rng.uniform(), "".join(rng.choice(list("abc"), 4)), row=r) for r in range(6)]
    one, other = make("phgpo"), make("phgpo")
    for _ in range(3):
        step(one, group_of(*episodes), given_world())
        step(other, group_of(*episodes[::-1]), given_world())
    state = json.loads(json.dumps(one.state(), allow_nan=False))
    assert state == other.state()
    fresh = make("phgpo")
    fresh.load(state)
    first, second = (assign(given_world(), [group_of(*episodes)], m)[0] for m in (one, fresh))
    assert [v.tobytes() for v in first.values] == [v.tobytes() for v in second.values]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaporation": 1.5}, "`evaporation` must be in .0, 1., got 1.5"),
        ({"success": -1.0}, "`success` must be at least 0"),
        ({"bounds": (0.0, 2.0)}, "`least` must be positive"),
        ({"initial": 30.0}, "`initial` must be within `bounds` .0.5, 20.0., got 30.0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make("phgpo", **options)


def test_a_negative_eta_is_refused(tooled):
    with pytest.raises(ValueError, match="`eta` must be at least 0 and finite, got -1.0"):
        phgpo(group_of(tooled(1.0, "a")), eta=-1.0)


def test_the_bonus_is_flagged_as_ours():
    assert make("phgpo").reconstructed
    assert not make("phgpo").estimates_advantage
    assert "is ours" in phgpo.__doc__
