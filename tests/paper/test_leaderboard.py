import pytest

from paper import logs
from paper.figures import leaderboard
from tests.paper import synthetic


@pytest.fixture
def table(tmp_path):
    run = synthetic.study_run(tmp_path / "run", leaderboard=synthetic.leaderboard_rows())
    return leaderboard.table([run])


def test_numbers_are_those_of_the_log(table):
    own = table.filter(method="twice", metric="mse")
    assert own["budget"].to_list() == [1.0, 2.0]
    assert own["value"].to_list() == [0.5, 0.25]
    assert own["low"].to_list() == pytest.approx([0.4, 0.2])


def test_what_has_no_place_on_the_axes_is_counted(table):
    assert table.filter(~table["is_drawn"])["method"].to_list() == ["rloo", "rloo"]
    assert "not on a log axis: 1 dropped" in leaderboard.caption(table)
    assert "no point at budgets" in leaderboard.caption(table)


def test_reconstructed_methods_are_marked(table):
    labels = leaderboard.draw(table).axes[0].get_legend_handles_labels()[1]
    assert labels == ["rloo", "twice*"]
    assert "* Reconstructed" in leaderboard.caption(table)


def test_a_scale_that_is_no_advantage_is_said(tmp_path):
    rows = [row | {"estimates_advantage": False} for row in synthetic.leaderboard_rows()]
    table = leaderboard.table([synthetic.study_run(tmp_path / "other", leaderboard=rows)])
    assert "one least-squares scale" in leaderboard.caption(table)


def test_settings_that_do_not_fit_are_named(tmp_path):
    rows = [
        row | {"setting": f"chain-{horizon}", "horizon": horizon}
        for horizon in (4, 8, 16, 32)
        for row in synthetic.leaderboard_rows()
    ]
    table = leaderboard.table([synthetic.study_run(tmp_path / "four", leaderboard=rows)])
    assert table["setting"].n_unique() == 4
    assert "in the table only: chain-32." in leaderboard.caption(table)
    assert len(leaderboard.draw(table).axes) == 6


def test_a_missing_study_is_named(tmp_path):
    run = synthetic.study_run(tmp_path / "run", other=[{"x": 1}])
    with pytest.raises(logs.MissingLogs, match="no leaderboard in run"):
        leaderboard.table([run])
