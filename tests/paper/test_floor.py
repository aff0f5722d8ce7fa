import numpy as np
import polars as pl
import pytest

from paper import logs
from paper.figures import floor
from tests.paper import oracle_logs, synthetic
from twinstats.variance import variance_account

FORKS = oracle_logs.floor(("f1", "exact_match"), num_episodes=20)


def run_of(folder, forks):
    return synthetic.study_run(folder, oracle_floor=forks)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return floor.table([run_of(tmp_path_factory.mktemp("floor") / "run", FORKS)])


def cell(table, **where):
    (row,) = table.filter(outcome="f1", **where).to_dicts()
    return row


def of(kind, variant):
    return [f for f in FORKS if (f["kind"], f["variant"], f["outcome"]) == (kind, variant, "f1")]


def test_the_floor_is_that_of_an_account_clustered_by_episode(table):
    nulls = of("null", "noisy")
    factual, null = ([f[name] for f in nulls] for name in ("factual", "fork"))
    found = variance_account(factual, null, null=null, cluster=[f["episode"] for f in nulls])
    row = cell(table, series="floor", variant="noisy")
    assert row["value"] == pytest.approx(0.5 * 0.25)  # every other one misses by .5
    assert (row["low"], row["high"]) == pytest.approx(found.intervals["floor"])
    assert row["low"] < row["value"] < row["high"] and not row["is_bound"]
    assert (row["num_pairs"], row["num_episodes"]) == (20 * 4, 20)


def test_intervals_of_the_share_that_differs_count_episodes_not_null_twins(table):
    """All null twins of an episode differ, or none: each episode is one observation."""
    row = cell(table, series="differing", variant="noisy")
    assert row["value"] == 0.5
    assert row["high"] - row["low"] > 1.5 * 2 * 1.96 * np.sqrt(0.25 / 80)


def test_where_nothing_differs_the_bound_is_that_of_the_rule_of_three(table):
    for series in ("floor", "differing"):
        row = cell(table, series=series, variant="exact")
        assert (row["value"], row["low"], row["is_bound"]) == (0.0, 0.0, True)
        assert (1 - row["high"]) ** 20 == pytest.approx(0.05)  # no episode of 20 has one
        assert row["high"] == pytest.approx(3 / 20, rel=0.1)


def test_the_square_of_twins_is_over_all_of_them(table):
    twins = of("twin", "exact")
    row = cell(table, series="pairs", variant="exact")
    assert row["value"] == pytest.approx(np.mean([(f["factual"] - f["fork"]) ** 2 for f in twins]))
    assert row["num_pairs"] == len(twins) == 20 * 4 * 3
    assert row["equal_share"] == pytest.approx(np.mean([f["equal"] for f in twins]))


def test_gains_are_those_of_twins_beside_their_controls(table):
    twins = of("twin", "noisy")
    fresh = {(f["episode"], f["turn"], f["alternative"]): f["fork"] for f in of("control", "noisy")}
    found = variance_account(
        [f["factual"] for f in twins],
        [f["fork"] for f in twins],
        control=[fresh[f["episode"], f["turn"], f["alternative"]] for f in twins],
        equal=[f["equal"] for f in twins],
        cluster=[f["episode"] for f in twins],
    )
    for series, name in (("raw", "coupling_gain"), ("deduplicated", "coupling_gain_deduplicated")):
        row = cell(table, series=series, variant="noisy")
        assert row["value"] == pytest.approx(getattr(found, name))
        assert (row["low"], row["high"]) == pytest.approx(found.intervals[name])


def test_the_gap_of_log_probabilities_is_the_largest(table):
    assert cell(table, series="logprob", variant="noisy")["value"] == pytest.approx(0.08)
    assert "noisy 80 in 20, 0.08 nats" in floor.caption(table)


def test_a_null_twin_that_failed_differs_and_has_no_square(tmp_path):
    lost = {"fork": None, "same_tokens": None, "equal": None, "logprob_gap": None, "reason": "x"}
    is_lost = [f["kind"] == "null" and f["turn"] == 0 and f["variant"] == "exact" for f in FORKS]
    forks = [f | lost if gone else f for f, gone in zip(FORKS, is_lost, strict=True)]
    table = floor.table([run_of(tmp_path / "r", forks)])
    share = cell(table, series="differing", variant="exact")
    assert (share["value"], share["num_failed"], share["is_bound"]) == (0.25, 20, False)
    square = cell(table, series="floor", variant="exact")
    assert (square["num_pairs"], square["num_failed"], square["is_bound"]) == (60, 20, True)
    assert "exact 80 in 20, 20 failed" in floor.caption(table)


def test_every_variant_has_a_line_and_bounds_are_hollow(table):
    figure = floor.draw(table)
    first = figure.axes[0]
    assert [text.get_text() for text in first.get_yticklabels()] == ["exact", "noisy"]
    middle = figure.axes[1].containers
    assert [one.lines[0].get_markerfacecolor() == "white" for one in middle] == [True, False]
    assert "1 - .05^(1/n)" in floor.caption(table)
    noisy = table.filter(variant="noisy")
    assert "rule of three" not in floor.caption(noisy)


def test_no_bound_runs_through_a_twins_bar(table):
    first = floor.draw(table).axes[0]
    lines = [float(one.lines[0].get_ydata()[0]) for one in first.containers]
    assert len(lines) == 2 * 2 * 2  # floors and twins of two outcomes of two variants
    assert np.diff(sorted(lines)).min() >= 0.2 - 1e-9


def test_settings_without_a_place_and_undefined_gains_are_named(table):
    names = [f"facts {number}" for number in range(5)]
    many = pl.concat([table.with_columns(setting=pl.lit(name)) for name in names])
    assert len(floor.draw(many).axes) == floor.MOST_ROWS * len(floor.PANELS)
    assert "In the table only: facts 4." in floor.caption(many)
    gone = pl.when(series="deduplicated", variant="noisy").then(None).otherwise("value")
    blank = table.with_columns(value=gone)
    assert "Undefined gains, not drawn: 2." in floor.caption(blank) and floor.draw(blank).axes


def test_logs_without_null_twins_are_told_from_no_logs(tmp_path):
    some = run_of(tmp_path / "some", [f for f in FORKS if f["kind"] != "null"])
    with pytest.raises(logs.MissingLogs, match="no null twin in oracle_floor in some"):
        floor.table([some])
    other = synthetic.study_run(tmp_path / "other", x=[{"x": 1}])
    with pytest.raises(logs.MissingLogs, match="floor: no oracle_floor in other; make it with"):
        floor.table([other])
