import inspect

import numpy as np
import pytest

from twinstats.credit import assign, make
from twinstats.credit._predicates import broken, potential, predicates
from twinstats.credit.dars import dars
from twinstats.credit.gigpo import gigpo
from twinstats.episodes import Group, Task

CHAIN = {"predicate_graph": [("key", "open"), ("open", "inside")], "goal": ["inside"]}
PLAIN = {"discount": 1.0, "decay": 0.5}


def grouped(*episodes, info=CHAIN):
    return Group(Task("task", info), list(episodes), 0, 0)


def errand(walk, outcome, states, *held, row=0):
    episode = walk(outcome, states, row=row)
    episode.info["predicates"] = [set(own) for own in held]
    return episode


def test_dars_by_hand(walk):
    group = grouped(
        errand(walk, 0.0, "AB", [], ["key"], ["key", "open"]), errand(walk, 0.0, "A", [], [], row=1)
    )
    credit = dars(group, **PLAIN)
    # weights 1/3, 1/6, 1/12 for inside, open, key: Phi = -7/12, then -6/12, then -4/12
    # returns from A: 3/12 and 0, so +-1.5/12; no outcome, so A_E = 0; B came once
    np.testing.assert_allclose(credit.values[0], [0.125, 0.0], atol=1e-15)
    np.testing.assert_allclose(credit.values[1], [-0.125], atol=1e-15)


def test_potentials_are_discounted_with_the_returns(walk):
    group = grouped(errand(walk, 0.0, "A", [], ["key"]), errand(walk, 0.0, "A", [], [], row=1))
    credit = dars(group, discount=0.5, decay=0.5, shaping=2.0)
    # 2 * (.5 * -6/12 + 7/12) and 2 * (.5 * -7/12 + 7/12) differ by 1/12
    np.testing.assert_allclose(np.concatenate(credit.values), [1 / 24, -1 / 24])


def test_breaking_what_is_still_needed_is_fined(walk):
    group = grouped(
        errand(walk, 0.0, "A", ["key"], []), errand(walk, 0.0, "A", ["key"], ["key"], row=1)
    )
    # potential: -1/12; fine: 3 * 1/12 more
    found = dars(group, penalty=3.0, **PLAIN).values[0]
    np.testing.assert_allclose(found, [-4 / 24])
    np.testing.assert_allclose(dars(group, penalty=0.0, **PLAIN).values[0], [-1 / 24])


def test_a_precondition_that_has_served_may_go():
    known = predicates("dars", Task("t", CHAIN), decay=0.5, heavier="near")
    assert broken(known, {"key", "open"}, {"open"}) == 0.0
    assert broken(known, {"key", "open"}, {"inside"}) == pytest.approx(1 / 12)  # open is away again
    assert broken(known, {"key"}, set()) == pytest.approx(1 / 12)
    assert broken(known, {"inside"}, set()) == 0.0  # the goal is no precondition
    assert broken(known, set(), {"key"}) == 0.0


def test_weights_fall_with_the_distance_or_grow_with_it():
    info = {
        "predicate_graph": [*CHAIN["predicate_graph"], ("key", "inside2"), ("lost", "sunk")],
        "goal": ["inside", "inside2"],
    }
    near = predicates("dars", Task("t", info), decay=0.5, heavier="near").weights
    # six predicates; key is one edge from inside2; lost and sunk lead to no goal
    expected = {"inside": 1.0, "inside2": 1.0, "open": 0.5, "key": 0.5, "lost": 0.0, "sunk": 0.0}
    assert near == pytest.approx({p: weight / 6 for p, weight in expected.items()})
    far = predicates("dars", Task("t", CHAIN), decay=0.5, heavier="far")
    assert far.weights == pytest.approx({"inside": 1 / 12, "open": 1 / 6, "key": 1 / 3})
    assert potential(far, {"open", "unknown"}) == pytest.approx(-5 / 12)


def test_a_graph_may_have_cycles_and_no_edges():
    cycle = {"predicate_graph": [("a", "b"), ("b", "a")], "goal": ["b"]}
    weights = predicates("dars", Task("t", cycle), decay=0.5, heavier="near").weights
    assert weights == pytest.approx({"b": 0.5, "a": 0.25})
    alone = {"predicate_graph": [], "goal": ["b"]}
    assert predicates("dars", Task("t", alone), decay=0.5, heavier="far").weights == {"b": 1.0}


def test_without_shaping_and_penalty_it_is_gigpo(walk):
    group = grouped(
        errand(walk, 1.0, "AB", [], ["key"], []),
        errand(walk, 0.0, "A", ["key"], [], row=1),
        errand(walk, 0.3, "BA", [], [], [], row=2),
    )
    for mode in ("mean_norm", "mean_std_norm"):
        found = dars(group, shaping=0.0, penalty=0.0, mode=mode, weight=0.5).values
        expected = gigpo(group, mode=mode, weight=0.5).values
        assert [v.tobytes() for v in found] == [v.tobytes() for v in expected]


def test_missing_inputs_are_refused_by_name(walk, scripted_world):
    world = scripted_world()
    world.provide = lambda need, episodes: None
    group = grouped(walk(1.0, "A"), walk(0.0, "A", row=1))
    with pytest.raises(ValueError, match="Method 'dars' needs 'predicates' .*which the world did"):
        assign(world, [group], make("dars"))
    with pytest.raises(ValueError, match=r"needs 'predicates' \(the predicates that hold"):
        dars(group)
    for key in ("predicate_graph", "goal"):
        info = {name: value for name, value in CHAIN.items() if name != key}
        with pytest.raises(ValueError, match=rf"'dars' needs `task.info\['{key}'\]`"):
            dars(grouped(*group.episodes, info=info))
    with pytest.raises(ValueError, match=r"`task.info\['goal'\]` of task 'task' must not be empty"):
        dars(grouped(*group.episodes, info=CHAIN | {"goal": []}))


def test_the_defaults():
    options = {n: p.default for n, p in inspect.signature(dars).parameters.items() if n != "group"}
    assert options == {
        "discount": 0.95,
        "weight": 1.0,
        "shaping": 1.0,
        "penalty": 1.0,
        "decay": 0.9,
        "heavier": "near",
        "mode": "mean_norm",
        "epsilon": 1e-6,
    }


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"decay": 1.5}, r"`decay` must be in \[0, 1\], got 1.5"),
        ({"penalty": -1.0}, "`penalty` must be at least 0 and finite, got -1.0"),
        ({"heavier": "nea"}, "Unknown heavier 'nea'. Did you mean 'near'?"),
        ({"mode": "std"}, "Unknown mode 'std'"),
    ],
)
def test_options_out_of_range_are_refused(walk, unchecked, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        dars(grouped(walk(1.0, "A"), walk(0.0, "A", row=1)), **options)
