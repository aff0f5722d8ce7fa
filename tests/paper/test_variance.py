import numpy as np
import polars as pl
import pytest

from paper import coupling, logs
from paper.figures import variance
from tests.paper import synthetic
from twinstats import logged_pairs
from twinstats.variance import variance_account


def test_ratios_are_means_over_seeds_with_pooled_intervals(tmp_path):
    table = variance.table(
        [synthetic.study_run(tmp_path / "run", variance=synthetic.variance_rows())]
    )
    row = table.filter(panel="ratio", series="smooth").row(0, named=True)
    assert (row["place"], row["num_pairs"]) == (0.5, 200)
    assert row["value"] == pytest.approx(0.5)
    assert row["low"] == pytest.approx(0.5 - 0.06 / np.sqrt(2))
    assert row["high"] == pytest.approx(0.5 + 0.08 / np.sqrt(2))


def test_the_chains_gain_is_by_turn(tmp_path):
    table = variance.table(
        [synthetic.study_run(tmp_path / "run", variance=synthetic.variance_rows())]
    )
    chain = table.filter(panel="chain", series="raw")
    assert chain["place"].to_list() == [0.0, 1.0]
    assert chain["value"].to_list() == pytest.approx([(1 / 0.4 + 1 / 0.6) / 2] * 2)
    assert table.filter(panel="chain", series="deduplicated")["value"][0] == pytest.approx(
        (1 / 0.4 + 1 / 0.6) / 2 - 0.5
    )


def test_training_gains_are_variance_accounts_of_joined_forks(tmp_path):
    run = synthetic.train_run(tmp_path / "run", steps=12)
    table = variance.table([run]).filter(panel="gain", place=0.0)
    pairs = logs.read([run], "pairs").to_dicts()
    twins = [p for p in pairs if p["kind"] == "twin" and p["slot"] == 0]
    fresh = {
        (p["factual"], p["turn"], p["alternative"]): p["twin_outcome"]
        for p in pairs
        if p["kind"] == "control"
    }
    account = variance_account(
        [p["factual_outcome"] for p in twins],
        [p["twin_outcome"] for p in twins],
        control=[fresh.get((p["factual"], p["turn"], p["alternative"])) for p in twins],
        equal=[p["equal"] for p in twins],
        cluster=[f"run {p['task']}" for p in twins],
    )
    values = dict(table.select("series", "value").iter_rows())
    assert values["raw"] == pytest.approx(account.coupling_gain)
    assert values["deduplicated"] == pytest.approx(account.coupling_gain_deduplicated)
    low = dict(table.select("series", "low").iter_rows())
    assert low["raw"] == pytest.approx(account.intervals["coupling_gain"][0])


def test_slots_with_few_controls_are_left_out(tmp_path):
    run = synthetic.train_run(tmp_path / "run", steps=2)
    with pytest.raises(
        logs.MissingLogs, match="no variance and no turn with 20 twins that .* in pairs in"
    ):
        variance.table([run])


def test_a_failed_twin_is_no_pair_and_a_failed_control_no_control():
    base = {"run": "r", "factual": "0/0", "task": "t", "turn": 0, "alternative": 0}
    base |= {"factual_outcome": 1.0}
    rows = [
        base | {"kind": "twin", "twin_outcome": 1.0},
        base | {"kind": "control", "twin_outcome": None},
        base | {"kind": "twin", "twin_outcome": None, "alternative": 1},
        base | {"kind": "null", "twin_outcome": 1.0},
        base | {"kind": "draw", "twin_outcome": 0.0},
    ]
    joined = logged_pairs.joined(pl.DataFrame(rows, infer_schema_length=None))
    assert joined.select("alternative", "control_outcome").rows() == [(0, None)]


def test_each_decision_has_its_own_control():
    base = {"run": "r", "factual": "0/0", "task": "t", "turn": 0, "factual_outcome": 1.0}
    rows = [
        base | {"kind": kind, "alternative": alternative, "twin_outcome": outcome}
        for kind, alternative, outcome in (
            ("twin", 0, 0.1),
            ("twin", 1, 0.2),
            ("control", 1, 0.4),
            ("control", 0, 0.3),
        )
    ]
    joined = logged_pairs.joined(pl.DataFrame(rows)).sort("alternative")
    assert joined.select("twin_outcome", "control_outcome").rows() == [(0.1, 0.3), (0.2, 0.4)]


def test_null_twins_are_counted_by_token_and_outcome():
    rows = [(1.0, 1.0, True), (1.0, 0.0, False), (0.0, 0.0, False), (0.0, None, None)]
    names = ["factual_outcome", "twin_outcome", "same_tokens"]
    pairs = pl.DataFrame(rows, schema=names, orient="row").with_columns(kind=pl.lit("null"))
    assert logged_pairs.null_floor(pairs) == {
        "num_nulls": 4,
        "token_disagreements": 3,
        "outcome_disagreements": 2,
    }


def test_slots_of_parts_are_named_by_part_and_turn():
    assert [coupling.slot_name(slot, True) for slot in (0, 1, 64, 130)] == [
        "0.0",
        "0.1",
        "1.0",
        "2.2",
    ]
    assert coupling.slot_name(3, False) == "3"


def test_a_study_without_any_ratio_or_gain_is_named(tmp_path):
    names = ("ratio", "coupling_gain", "deduplicated_gain")
    rows = [row | dict.fromkeys(names) for row in synthetic.variance_rows()]
    run = synthetic.study_run(tmp_path / "run", variance=rows)
    with pytest.raises(logs.MissingLogs, match="have a control and outcomes that differ in var"):
        variance.table([run])


def test_every_panel_that_has_rows_is_drawn(tmp_path):
    run = synthetic.train_run(tmp_path / "train", steps=12)
    study = synthetic.study_run(tmp_path / "study", variance=synthetic.variance_rows())
    both, one = variance.table([run, study]), variance.table([run])
    assert [len(variance.draw(table).axes) for table in (both, one)] == [3, 1]
    assert "1 - rho_eff" in variance.caption(both)
    assert "1 - rho_eff" not in variance.caption(one)
