import pytest

from paper import logs, style
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
    left_out = table.filter(~table["is_drawn"], metric="mse_scaled")
    assert left_out["method"].to_list() == ["rloo"]
    assert "not on a log axis: 1 dropped" in leaderboard.caption(table)
    assert "no point at budgets" not in leaderboard.caption(table)


def test_reconstructed_methods_are_marked(table):
    labels = leaderboard.draw(table).axes[0].get_legend_handles_labels()[1]
    assert sorted(labels) == ["rloo", "twice*"]
    assert "* Reconstructed" in leaderboard.caption(table)


def test_a_scale_that_is_no_advantage_is_said(tmp_path):
    rows = [row | {"estimates_advantage": False} for row in synthetic.leaderboard_rows()]
    table = leaderboard.table([synthetic.study_run(tmp_path / "other", leaderboard=rows)])
    assert "scale does not estimate the advantage" in leaderboard.caption(table)


def test_methods_without_a_colour_are_grey_and_named(tmp_path):
    rows = [
        row | {"method": f"new {number}", "reconstructed": number == 1}
        for number in range(2)
        for row in synthetic.leaderboard_rows()
        if row["method"] == "twice"
    ]
    rows += synthetic.leaderboard_rows()
    table = leaderboard.table([synthetic.study_run(tmp_path / "other", leaderboard=rows)])
    figure = leaderboard.draw(table)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][-1] == "others"
    assert "Grey: new 0, new 1*." in leaderboard.caption(table)
    grey = [line for line in figure.axes[0].lines if line.get_label() == "others"]
    assert [line.get_ydata().tolist() for line in grey] == [[0.5, 0.25]] * 2


def test_a_study_of_one_seed_has_nothing_to_draw_and_says_why(tmp_path):
    blank = {"value": None, "low": None, "high": None, "reason": "one seed only"}
    rows = [row | blank for row in synthetic.leaderboard_rows()]
    run = synthetic.study_run(tmp_path / "other", leaderboard=rows)
    with pytest.raises(logs.MissingLogs, match=r"no positive mse_scaled \(one seed only\) in lead"):
        leaderboard.table([run])


def test_colours_tell_the_labelled_methods_apart():
    looks = style.looks(leaderboard.LABELLED)
    assert len({look["color"] for look in looks.values()}) == len(leaderboard.LABELLED)


def test_settings_that_do_not_fit_are_named_and_every_world_has_a_panel(tmp_path):
    rows = [
        row | {"setting": f"chain-{horizon}", "horizon": horizon}
        for horizon in range(10, 22)
        for row in synthetic.leaderboard_rows()
    ]
    rows += [row | {"setting": "z", "world": "zoo"} for row in synthetic.leaderboard_rows()]
    table = leaderboard.table([synthetic.study_run(tmp_path / "many", leaderboard=rows)])
    assert table["setting"].n_unique() == 13
    drawn = [f"chain-{horizon}" for horizon in (10, 11, 13, 14, 16, 18, 19, 21)] + ["z"]
    assert [panel.get_title() for panel in leaderboard.draw(table).axes] == drawn
    assert "in the table only: chain-12, chain-15, chain-17, chain-20." in leaderboard.caption(
        table
    )


def test_a_missing_study_is_named(tmp_path):
    run = synthetic.study_run(tmp_path / "run", other=[{"x": 1}])
    with pytest.raises(logs.MissingLogs, match="no leaderboard in run"):
        leaderboard.table([run])
