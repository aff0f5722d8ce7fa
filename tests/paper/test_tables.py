import polars as pl
import pytest

from paper import logs
from paper.tables import formats, leaderboard, leaderboard_bias, leaderboard_split
from tests.paper import synthetic


@pytest.fixture
def table(tmp_path):
    return leaderboard.table(
        [synthetic.study_run(tmp_path / "run", **synthetic.leaderboard_tables())]
    )


def test_numbers_are_those_of_the_logs(table):
    own = table.filter(method="twice", metric="mse_scaled")
    assert own["value"].to_list() == [0.5, 0.25]
    assert own["ratio"].to_list() == [0.25, 0.25] and own["ratio_high"].null_count() == 2
    (tested,) = table.drop_nulls("pvalue_holm").to_dicts()
    assert (tested["method"], tested["metric"], tested["budget"]) == ("rloo", "mse", 1.0)
    assert (tested["over_twice"], tested["pvalue_holm"]) == (2.4, 0.04)
    assert len(table) == 12


def test_what_is_shown_by_hand(table):
    shown = leaderboard.show(table)
    assert shown.columns == [
        "setting",
        "method",
        *(f"{budget:g}" for budget in leaderboard.BUDGETS),
        "tokens / vine's",
        "remark",
    ]
    rows = {row["method"]: row for row in shown.to_dicts()}
    assert rows["twice*"]["1"] == "0.50 ± 0.10" and rows["twice*"]["2"] == "0.25 ± 0.05"
    assert rows["twice*"]["5"] == "" and rows["twice*"]["tokens / vine's"] == "0.25 [0.20, ∞]"
    assert rows["rloo"]["tokens / vine's"] == ""
    assert rows["rloo"]["remark"] == "not reached: its floor is above the target"


def test_bounds_and_free_scales_are_marked(table):
    bound = table.with_columns(is_bound=True, estimates_advantage=False)
    rows = leaderboard.show(bound).to_dicts()
    assert {row["method"] for row in rows} == {"twice*°", "rloo°"}
    assert {row["tokens / vine's"] for row in rows} == {"≤ 0.25 [0.20, ∞]", ""}


def test_a_method_that_was_refused_shows_why(table):
    refused = table.with_columns(value=None, low=None, high=None, reason=None).with_columns(
        reason=(table["method"] + " has no x")
    )
    assert {row["remark"] for row in leaderboard.show(refused).to_dicts()} == {
        "rloo has no x",
        "twice has no x",
    }


def test_latex_and_markdown_escape_what_is_special(table):
    shown = leaderboard.show(table).with_columns(remark=pl.lit("a_b & c ≤ 1 | d"))
    latex = formats.latex(shown, "50% _of_ it")
    assert r"\caption{50\% \_of\_ it}" in latex and r"a\_b \& c $\leq$ 1" in latex
    assert latex.count(r"\\") == len(shown) + 2
    assert latex.index(r"\toprule") < latex.index(r"\midrule") < latex.index(r"\bottomrule")
    markdown = formats.markdown(shown, "caption")
    lines = markdown.splitlines()
    assert lines[0] == "caption" and len(lines) == len(shown) + 4
    assert r"a\_b & c ≤ 1 \| d" in markdown
    assert {line.count(" | ") for line in lines[2:]} == {shown.width - 1}


def test_missing_logs_are_named(tmp_path):
    run = synthetic.study_run(tmp_path / "run", leaderboard=synthetic.leaderboard_rows())
    with pytest.raises(logs.MissingLogs, match="no leaderboard_tokens or leaderboard_diff"):
        leaderboard.table([run])


@pytest.mark.parametrize("module", [leaderboard_split, leaderboard_bias])
def test_missing_logs_of_split_and_bias_are_named(tmp_path, module):
    run = synthetic.study_run(tmp_path / "run", leaderboard=synthetic.leaderboard_rows())
    with pytest.raises(logs.MissingLogs, match=f"no {module.NEEDS[0]} in run"):
        module.table([run])


def test_the_split_is_shown_at_the_least_budget_that_all_pay(tmp_path):
    run = synthetic.study_run(tmp_path / "run", leaderboard_split=synthetic.split_rows())
    error, tokens = leaderboard_split.show(leaderboard_split.table([run])).to_dicts()
    assert error["what"] == "squared error at 2" and error["remark"] == ""
    assert error["equal decisions free"] == "2.00 [1.50, 2.50]"
    assert (error["shared luck"], error["both"]) == ("3.00 [2.50, 3.50]", "6.00 [5.50, 6.50]")
    assert tokens["what"] == "tokens to VinePPO's error" and tokens["both"] == ""
    assert tokens["remark"] == "twice: not reached"


def test_bias_is_shown_of_those_that_claim_none(tmp_path):
    run = synthetic.study_run(tmp_path / "run", leaderboard_bias=synthetic.bias_rows())
    table = leaderboard_bias.table([run])
    twice, independent = leaderboard_bias.show(table).to_dicts()
    assert (twice["method"], twice["bias"]) == ("twice*", "0.010 [-0.040, 0.060]")
    assert (twice["within everywhere"], twice["farthest bound"]) == ("yes", "0.11")
    assert independent["within everywhere"] == "not shown"
    assert independent["excludes 0"] == "0 of 2"
    assert "within 0.25 of 0" in leaderboard_bias.caption(table)
