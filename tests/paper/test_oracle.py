import numpy as np
import pytest
from scipy import stats

from paper import logs
from paper.figures import oracle as figure
from paper.tables import oracle as tokens
from tests.paper import oracle_logs, synthetic


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("oracle") / "run"
    tables = {"oracle_points": oracle_logs.points() + oracle_logs.refused()}
    tables |= {"oracle_turns": oracle_logs.turns()}
    return synthetic.study_run(folder, group_size=2, **tables)


@pytest.fixture(scope="module")
def table(run):
    return figure.table([run])


def own(table, method, **where):
    return table.filter(method=method, setting="facts", outcome="f1", **where)


def test_errors_have_the_references_noise_taken_out(table):
    """A method's error is slope / tokens + floor of the mean square, whatever the noise."""
    rows = own(table, "twice")
    assert rows["tokens"].to_list() == pytest.approx([1.0, 3.0, 9.0])
    assert rows["tokens_low"].equals(rows["tokens"])  # the same in all batches
    assert rows["value"].to_list() == pytest.approx([0.52, 0.5 / 3 + 0.02, 0.5 / 9 + 0.02])
    factors = 1 + 0.1 * (np.arange(6) - 2.5)
    low, high = stats.t.interval(0.95, 5, 0.52, stats.sem(0.52 * factors))
    assert (rows["low"][0], rows["high"][0]) == pytest.approx((low, high))
    assert rows["num_batches"].to_list() == [6, 6, 6]


def test_a_negative_error_is_shown_as_such(table):
    best = own(table, "vine_coupled")["value"].to_list()[-1]
    assert best == pytest.approx(1 / 9 - 0.15)
    panels = figure.draw(table).axes
    bottom, _ = panels[0].get_ylim()
    assert bottom < best
    assert "Below 0 by the noise of the estimates: 4 points." in figure.caption(table)


def test_group_methods_stand_at_the_tokens_of_their_larger_groups(table):
    assert own(table, "rloo")["tokens"].to_list() == pytest.approx([0.0, 1.0])


def test_a_refused_method_has_its_reason_and_no_point(table):
    (row,) = own(table, "spader").to_dicts()
    assert row["value"] is None and row["reason"] == "it needs 'entities'"
    assert "Not drawn (it needs 'entities'): spader." in figure.caption(table)


def test_every_setting_and_outcome_has_a_panel(table):
    titles = [panel.get_title() for panel in figure.draw(table).axes]
    assert titles == [f"{s}, {o}" for s in ("facts", "text") for o in oracle_logs.OUTCOMES]


def test_families_have_a_colour_each_and_members_a_marker(table):
    handles, names = figure.draw(table).axes[0].get_legend_handles_labels()
    lines = {
        name: one.lines[0] for name, one in zip(names, handles, strict=True) if name != "others"
    }
    assert lines["twice*"].get_color() == lines["twice_maximal*"].get_color()
    assert lines["twice*"].get_marker() != lines["twice_maximal*"].get_marker()
    assert len({line.get_color() for line in lines.values()}) == len(figure.FAMILIES)
    assert lines["tree_grpo*"].get_markerfacecolor() == "none"
    assert "Grey: rloo." in figure.caption(table)
    assert "VinePPO's too, are without a scale." in figure.caption(table)


def test_the_reference_is_described_where_its_turns_are_logged(table, tmp_path):
    assert set(table["num_rollouts"]) == {64.0}
    assert table["noise_share"].to_list() == pytest.approx([0.2] * len(table))
    assert "Reference of facts, f1: 64 rollouts a turn, noise 20%" in figure.caption(table)
    alone = synthetic.study_run(tmp_path / "alone", oracle_points=oracle_logs.points())
    assert figure.table([alone])["noise_share"].null_count() == len(figure.table([alone]))
    assert "Reference of" not in figure.caption(figure.table([alone]))


def test_the_mean_outcome_is_clustered_by_task(table, tmp_path):
    """Both episodes of a task end alike: three tasks are three observations."""
    (row,) = own(table, "twice").head(1).to_dicts()
    ends = stats.t.interval(0.95, 2, 1 / 3, stats.sem([0.25, 0.5, 0.25]))
    assert row["mean_outcome"] == pytest.approx(1 / 3)
    assert (row["mean_low"], row["mean_high"]) == pytest.approx(ends)
    tables = {"oracle_points": oracle_logs.points(), "oracle_turns": oracle_logs.turns()}
    again = [synthetic.study_run(tmp_path / name, **tables) for name in ("a", "b")]
    assert set(figure.table(again)["mean_outcome"]) == {row["mean_outcome"]}


def test_tokens_have_an_interval_over_batches(tmp_path):
    rows = oracle_logs.points(("facts",))
    spread = [row | {"tokens": row["tokens"] + 100.0 * row["seed"]} for row in rows]
    table = figure.table([synthetic.study_run(tmp_path / "run", oracle_points=spread)])
    row = own(table, "twice").row(0, named=True)
    tokens = 1 + 0.1 * np.arange(6)
    assert row["tokens"] == pytest.approx(tokens.mean())
    ends = stats.t.interval(0.95, 5, tokens.mean(), stats.sem(tokens))
    assert (row["tokens_low"], row["tokens_high"]) == pytest.approx(ends)


def test_a_reference_of_nothing_but_noise_gives_no_error(tmp_path):
    rows = [
        row | {"truth_noise": 2 * row["truth_square"]} for row in oracle_logs.points(("facts",))
    ]
    blank = [row | {"reference": 0.0} for row in oracle_logs.turns(("facts",))]
    own = {"oracle_turns": blank + oracle_logs.turns(("text",))}
    both = rows + oracle_logs.points(("text",))
    whole = figure.table([synthetic.study_run(tmp_path / "both", oracle_points=both, **own)])
    table = whole.filter(setting="facts")
    assert table["value"].null_count() == len(table) == table["noise_share"].null_count()
    assert "nan" not in figure.caption(whole)
    assert set(table["reason"]) == {"the truth does not differ from 0 by more than its noise"}
    alone = synthetic.study_run(tmp_path / "alone", oracle_points=rows, **own)
    reason = r"no identified error \(the truth does not differ from 0 by more than its noise\) in"
    with pytest.raises(logs.MissingLogs, match=reason):
        figure.table([alone])


def test_tokens_to_vines_error_by_hand(run):
    """vine has 2 / 27 at 27; twice_maximal, .4 / x + .02, gets there between 3 and 9."""
    table = tokens.table([run]).filter(metric="mse", setting="facts", outcome="f1")
    rows = {row["method"]: row for row in table.to_dicts()}
    assert rows["vine"]["target"] == pytest.approx(2 / 27)
    assert rows["vine"]["ratio"] == pytest.approx(1) and rows["vine"]["rollouts"] == 9
    high, low = np.log(0.4 / 3 + 0.02), np.log(0.4 / 9 + 0.02)
    share = (high - np.log(2 / 27)) / (high - low)
    needed = np.exp(np.log(4000) + share * np.log(10000 / 4000)) - 1000
    assert rows["twice_maximal"]["auxiliary_tokens"] == pytest.approx(needed)
    assert rows["twice_maximal"]["low"] <= needed / 27000 <= rows["twice_maximal"]["high"]
    assert rows["tree_grpo"]["reason"] == "its scale does not estimate A"
    assert rows["rloo"]["reason"] == "not reached: its floor is above the target"


def test_the_table_shows_the_cheapest_first_and_reasons_last(run):
    shown = tokens.show(tokens.table([run])).filter(setting="facts", outcome="f1")
    assert shown["method"].to_list()[:2] == ["vine_coupled", "twice_maximal*"]
    rows = {row["method"]: row for row in shown.to_dicts()}
    assert rows["vine"]["tokens / vine's"] == "1.00 [1.00, 1.00]"
    assert rows["spader"]["remark"] == "it needs 'entities'" and rows["spader"]["method"]
    assert "tree_grpo*°" in rows
    assert "VinePPO with 9 rollouts" in tokens.caption(tokens.table([run]))


def test_one_batch_has_no_interval_and_says_so(tmp_path):
    points = oracle_logs.points(("facts",), ("f1",), num_batches=1)
    table = tokens.table([synthetic.study_run(tmp_path / "run", oracle_points=points)])
    rows = {row["method"]: row for row in table.filter(metric="mse").to_dicts()}
    own = rows["twice_maximal"]
    assert own["ratio"] > 0 and own["low"] is own["high"] is None
    assert own["reason"] == "one replicate: no interval"
    assert rows["rloo"]["reason"] == "not reached: its floor is above the target"
    shown = {row["method"]: row for row in tokens.show(table).to_dicts()}
    assert shown["vine"]["tokens / vine's"] == "1.00"


def test_an_outcome_that_never_differs_identifies_nothing(tmp_path):
    """Of its own setting and outcome only."""
    turns = [
        row | ({"factual": 0.0} if row["outcome"] == "f1" else {})
        for row in oracle_logs.turns(("facts",))
    ]
    points = oracle_logs.points(("facts",))
    run = synthetic.study_run(tmp_path / "run", oracle_points=points, oracle_turns=turns)
    table = tokens.table([run]).filter(metric="mse", method="twice_maximal")
    row, other = (table.filter(outcome=name).row(0, named=True) for name in ("f1", "exact_match"))
    assert row["ratio"] is row["low"] is row["high"] is row["auxiliary_tokens"] is None
    assert row["reason"] == "not identified: outcome 0.000 in all 6 episodes"
    assert other["ratio"] > 0 and other["low"] is not None


def test_fewer_rollouts_of_vine_are_the_reference_where_9_were_not_played(tmp_path):
    few = [r for r in oracle_logs.points(("facts",), ("f1",)) if r["knob"] != 9]
    table = tokens.table([synthetic.study_run(tmp_path / "run", oracle_points=few)])
    assert set(table["rollouts"]) == {3.0}
    without = [r for r in few if not r["method"].startswith("vine")]
    table = tokens.table([synthetic.study_run(tmp_path / "none", oracle_points=without)])
    assert set(table["reason"]) == {"vine was not played at 9"}


def test_the_same_points_in_two_runs_count_once(run, table, tmp_path):
    """Whatever the second has for them, and in whatever order it has it."""
    other = [row | {"credit_square": 2 * row["credit_square"]} for row in oracle_logs.points()]
    again = synthetic.study_run(tmp_path / "again", oracle_points=other[::-1])
    both = figure.table([run, again])
    assert both.equals(table)


def test_missing_logs_are_named(tmp_path):
    empty = synthetic.study_run(tmp_path / "run", oracle_turns=oracle_logs.turns())
    for module in (figure, tokens):
        with pytest.raises(logs.MissingLogs, match="oracle: no oracle_points in run; make it"):
            module.table([empty])


def test_an_outcome_without_any_error_has_no_panel_and_is_named(table):
    is_blank = (table["setting"] == "text") & (table["outcome"] == "f1")
    blank = table.with_columns(value=table["value"].set(is_blank, None))
    titles = [panel.get_title() for panel in figure.draw(blank).axes]
    assert "text, f1" not in titles and len([title for title in titles if title]) == 3
    assert "In the table only: text, f1." in figure.caption(blank)
