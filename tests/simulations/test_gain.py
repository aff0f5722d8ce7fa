import numpy as np
import pytest

from simulations.studies import gain
from simulations.studies._gain_rule import RULES, rule_tables
from simulations.studies._gain_worlds import BetSetting, Setting, crossed, sweep
from twinstats.episodes import Episode, Task, Turn


def rows_of(dials, seed=0):
    return {row["part"]: row for row in gain.run(Setting(dials=dials, num_logged=60), seed)}


@pytest.mark.parametrize("contrary", [0.25, 0.5, 1.0])
def test_contrary_luck_makes_twins_worse_by_the_share_it_drives_apart(contrary):
    """After one decision: D^2 is 2 * 1/4 a turn alone, and 0 or 1 a turn with shared luck."""
    dials = BetSetting(name="bets", horizon=8, sharpness=0.5, contrary=contrary)
    opening = rows_of(dials)["opening"]
    assert opening["gain"] == pytest.approx(1 / (2 * contrary))
    # logs of independent worlds see which coins take sides, not that these are contrary
    assert opening["untouched"] == pytest.approx(1 - contrary)
    assert opening["decision_share"] == pytest.approx(0.0, abs=1e-12)


def test_twins_that_never_differ_have_no_gain_and_a_reason():
    rows = rows_of(BetSetting(name="bets", horizon=6, contrary=0.0))
    assert all(row["gain"] is None and row["untouched"] is None for row in rows.values())
    assert {row["reason"] for row in rows.values()} == {"twins never differ"}


def test_the_raw_gain_is_what_deduplication_gives_times_what_coupling_gives():
    for setting in gain.QUICK[::3]:
        for row in gain.run(setting, 1):
            if row["gain"] is not None:
                assert row["raw_gain"] == pytest.approx(row["deduplication_gain"] * row["gain"])
                assert row["reason"] is None


def test_parts_add_up_to_the_whole():
    rows = rows_of(gain.QUICK[0].dials)
    whole = rows.pop("all")
    for name in ("fresh", "deduplicated", "shared", "touched", "effect"):
        assert whole[name] == pytest.approx(sum(row[name] for row in rows.values()))


def episode(states, final):
    turns = [Turn(0, 0.0, 0.0, 1, state) for state in states]
    return Episode(Task("t"), 0, 0, turns, 1.0, True, False, final_state=final)


def test_worlds_meet_at_the_first_turn_that_shows_both_the_same():
    parent = episode(["s", "a", "b", "c"], "z")
    assert gain.until_met(parent, episode(["s", "x", "b", "y"], "z"), 0) == 2
    assert gain.until_met(parent, episode(["s", "x", "y", "y"], "z"), 0) == 4
    assert gain.until_met(parent, episode(["s", "x", "y", "y"], "w"), 0) is None
    # an episode that ended in the state which the other one goes on from
    assert gain.until_met(parent, episode(["s", "x"], "b"), 0) == 2
    # the same state at another turn is no meeting
    assert gain.until_met(parent, episode(["s", "b"], "w"), 0) is None


def test_settings_turn_one_dial_or_several_and_never_twice():
    base = BetSetting(name="bets")
    alone = sweep(base, horizon=(6, 12), density=(0.5,))
    assert [(s.name, s.dial) for s in alone] == [
        ("bets", "base"),
        ("bets, horizon 6", "horizon"),
        ("bets, density 0.5", "density"),
    ]
    several = crossed(base, horizon=(6, 12), density=(0.0, 0.5))
    assert [s.name for s in several] == ["bets, horizon 6, density 0.5"]
    names = [setting.name for setting in gain.SETTINGS]
    assert len(set(names)) == len(names)


def cell(setting, *, part="opening", world="w", untouched=0.5, tail=3.0, equal=0.5, **own):
    return {
        "setting": setting,
        "world": world,
        "part": part,
        "untouched": untouched,
        "untouched_logged": untouched,
        "tail": tail,
        "equal_share": equal,
        "gain": 2.0,
        "deduplication_gain": 2.0,
    } | own


def planted(num=40):
    """gain = e^0.1 (1 - untouched)^-0.8 (1 + tail)^0.2, whatever the equal share."""
    rng = np.random.default_rng(0)
    cells = []
    for number in range(num):
        untouched, tail, equal = rng.uniform(size=3) * [0.9, 20, 0.8]
        value = np.exp(0.1) * (1 - untouched) ** -0.8 * (1 + tail) ** 0.2
        own = {"untouched": untouched, "tail": tail, "equal": equal, "gain": float(value)}
        cells.append(cell(f"s{number // 2}", world="vw"[number % 4 // 2], **own))
    return cells


def test_the_rule_finds_planted_numbers_on_the_half_it_did_not_see():
    tables = rule_tables(planted())
    (found,) = [
        row
        for row in tables["gain_rule"]
        if (row["rule"], row["half"], row["world"]) == ("all three", "test", "every")
    ]
    numbers = [found[f"slope_{name}"] for name in ("untouched", "tail", "equal")]
    assert [found["intercept"], *numbers] == pytest.approx([0.1, 0.8, 0.2, 0.0], abs=1e-9)
    assert found["r2"] == pytest.approx(1) and found["worst_factor"] == pytest.approx(1)
    for row in tables["gain"]:
        assert row["predicted_all"] == pytest.approx(row["gain"])
        assert row["predicted"] == pytest.approx(1 / (1 - row["untouched"]))


def test_cells_of_the_test_half_and_of_all_turns_change_no_number():
    cells = planted()
    halves = {row["setting"]: row["half"] for row in rule_tables(cells)["gain"]}
    changed = [c | {"gain": 99.0} if halves[c["setting"]] == "test" else c for c in cells]
    changed += [c | {"part": "all", "gain": 77.0} for c in cells]
    fitted = [
        {row["rule"]: row["intercept"] for row in rule_tables(own)["gain_rule"]}
        for own in (cells, changed)
    ]
    assert fitted[0] == fitted[1]


def test_numbers_that_are_not_determined_are_null_with_a_reason():
    tables = rule_tables([cell("a"), cell("b"), cell("c"), cell("d")])
    rows = {row["rule"]: row for row in tables["gain_rule"] if row["world"] == "every"}
    assert rows["all three"]["reason"] == "too few cells" and rows["all three"]["r2"] is None
    assert rows["all three"]["slope_tail"] is None
    assert rows["untouched"]["reason"] is None and rows["untouched"]["median_factor"] == 1.0
    assert tables["gain"][0]["predicted_all"] is None


def test_halves_split_each_world_evenly_by_setting():
    rows = rule_tables(planted())["gain"]
    halves = {(row["world"], row["setting"]): row["half"] for row in rows}
    assert len(halves) == len({row["setting"] for row in rows})
    for world in "vw":
        own = [half for (kind, _), half in halves.items() if kind == world]
        assert abs(own.count("fit") - own.count("test")) <= 1


def test_errors_by_hand():
    """Two cells each half: gains 2 and 8, the rule says 4 and 4."""
    cells = [
        cell(f"s{number}", untouched=0.75, gain=value, part=part)
        for number in range(2)
        for part, value in (("opening", 2.0), ("late", 8.0))
    ]
    (row,) = [
        row
        for row in rule_tables(cells)["gain_rule"]
        if (row["rule"], row["half"], row["world"]) == ("untouched", "test", "every")
    ]
    assert (row["num_cells"], row["num_settings"]) == (2, 1)
    assert row["r2"] == pytest.approx(0.0)
    factors = [row[f"{name}_factor"] for name in ("median", "p90", "worst", "bias")]
    assert factors == pytest.approx([2, 2, 2, 1])


def test_a_threshold_by_hand():
    """Twins pay from untouched .6 on, but for two cells of each setting."""
    shares = [0.1, 0.3, 0.5, 0.7, 0.9]
    pays = [False, False, False, True, True]
    cells = [
        cell(f"s{number}", untouched=share, gain=3.0 if does else 1.0)
        for number in range(2)
        for share, does in zip([*shares, 0.05, 0.8], [*pays, True, False], strict=True)
    ]
    found = {
        (row["predictor"], row["pays_at"], row["half"]): row
        for row in rule_tables(cells)["gain_threshold"]
    }
    row = found["untouched", 1.5, "test"]
    assert row["threshold"] == pytest.approx(0.6)
    assert (row["num_pays"], row["num_not"]) == (3, 4)
    assert (row["sensitivity"], row["specificity"]) == (pytest.approx(2 / 3), 0.75)


def test_cells_without_a_gain_or_an_estimate_are_left_out():
    cells = planted()
    cells.append(cell("blank", gain=None, deduplication_gain=None, untouched=None))
    cells += [cell(f"few{number}", untouched_logged=None) for number in range(2)]
    tables = rule_tables(cells)
    by_name = {row["setting"]: row for row in tables["gain"]}
    assert by_name["blank"]["half"] is None and by_name["blank"]["predicted"] is None
    assert by_name["few0"]["predicted_logged"] is None
    assert {row["rule"] for row in tables["gain_rule"]} == {rule.name for rule in RULES}


@pytest.mark.slow
def test_the_untouched_share_predicts_the_gain_better_than_tails_and_equal_decisions():
    rows = [row for setting in gain.DEMO for row in gain.run(setting, 7)]
    errors = {
        row["rule"]: row
        for row in gain.summarise(rows)["gain_rule"]
        if row["half"] == "test" and row["world"] == "every"
    }
    assert errors["untouched"]["r2"] > 0.7 > errors["tail and equal"]["r2"]
    assert errors["untouched"]["median_factor"] < 1.1
    assert any(row["gain"] is not None and row["gain"] < 0.9 for row in rows)
