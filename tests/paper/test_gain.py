import numpy as np
import pytest

from paper import logs
from paper.figures import gain
from tests.paper import synthetic
from twinstats.records import create_run


def study(folder, **tables):
    tables = tables or {"gain": synthetic.gain_rows(), "gain_rule": synthetic.gain_rule_rows()}
    return synthetic.study_run(folder / "study", **tables)


def parts_run(folder):
    """A training run whose forks lie in two parts, at the first two turns of each."""
    run = create_run(
        folder,
        command="twice train parts",
        configuration={"recipe": "parts", "seed": 0, "optimizer": {"learning_rate": 0}},
        seed=0,
        started="2026-01-01T00:00:00Z",
    )
    rng = np.random.default_rng(0)
    rows = []
    for row in range(160):
        base = {"factual": f"0/{row}", "task": f"task-{row}", "turn": row % 4, "alternative": 0}
        base |= {"slot": 64 * (row % 4 // 2) + row % 2, "equal": False, "same_tokens": False}
        base |= {"factual_outcome": float(rng.random() < 0.5), "sampled": 10}
        for kind in ("twin", "control"):
            twin = f"0/{row}/{kind}"
            outcome = float(rng.random() < 0.5)
            rows.append(base | {"kind": kind, "twin": twin, "twin_outcome": outcome})
    run.write("pairs", 0, rows)
    return folder


def test_dials_are_geometric_means_over_tables_beside_the_base(tmp_path):
    table = gain.table([study(tmp_path)])
    own = table.filter(panel="horizon, chain", series="deduplicated")
    assert own["place"].to_list() == [10.0, 20.0]
    assert own["value"].to_list() == pytest.approx([4.0, 4.0])
    assert (own["low"].to_list(), own["high"].to_list()) == ([2.0, 4.0], [8.0, 4.0])
    raw = table.filter(panel="horizon, chain", series="raw")["value"].to_list()
    rule = table.filter(panel="horizon, chain", series="rule")["value"].to_list()
    assert (raw, rule) == (pytest.approx([8.0, 8.0]), pytest.approx([2.0, 2.0]))
    assert table.filter(panel="density, chain")["place"].unique().to_list() == [0.5]
    adverse = table.filter(panel="contrary, bets", series="deduplicated")
    assert adverse.row(0, named=True)["value"] == 0.5


def test_cells_are_those_of_settings_on_which_no_rule_was_fitted(tmp_path):
    table = gain.table([study(tmp_path)])
    own = table.filter(panel="untouched")
    assert sorted(own["value"]) == [0.5, 4.0, 4.0]
    assert set(own["label"]) == {"opening"}


def test_a_dial_with_an_undefined_table_has_no_point(tmp_path):
    rows = synthetic.gain_rows()
    rows[0] |= {"gain": None, "predicted": None, "raw_gain": None}
    own = gain.table([study(tmp_path, gain=rows)]).filter(panel="horizon, chain")
    assert own["place"].unique().to_list() == [20.0]


def test_the_agents_gain_stands_beside_the_parts_that_are_not_over(tmp_path):
    runs = [study(tmp_path), parts_run(tmp_path / "parts")]
    table = gain.table(runs)
    agent = table.filter(panel="agent")
    rule = agent.filter(series="rule").sort("place")
    assert rule.select("place", "value").rows() == [(0.0, 2.0), (1.0, 1.0)]
    measured = agent.filter(series="measured")
    assert len(measured) == 2 and measured["low"].null_count() == 0
    assert "Panel l" in gain.caption(table)


def test_without_a_run_in_parts_there_is_no_agent(tmp_path):
    table = gain.table([study(tmp_path), synthetic.train_run(tmp_path / "run", steps=12)])
    assert not (table["panel"] == "agent").any()
    assert "Panel l" not in gain.caption(table)
    assert len(gain.draw(table).axes) == 12


def test_the_caption_has_the_rules_errors_on_the_test_half(tmp_path):
    text = gain.caption(gain.table([study(tmp_path)]))
    assert "Rule 'untouched': off by a factor of 1.10 in the median cell, at least 1.50" in text
    assert "Cells with a gain below 1: 1." in text


def test_a_study_without_any_gain_is_named(tmp_path):
    rows = [row | dict.fromkeys(gain.SERIES.values()) for row in synthetic.gain_rows()]
    with pytest.raises(logs.MissingLogs, match="no identified gain in gain in run; make it with"):
        gain.table([synthetic.study_run(tmp_path / "run", gain=rows)])


def test_a_missing_study_is_named_with_its_command(tmp_path):
    run = synthetic.study_run(tmp_path / "run", other=[{"x": 1}])
    with pytest.raises(logs.MissingLogs, match="no gain in run.*twice simulate gain"):
        gain.table([run])
