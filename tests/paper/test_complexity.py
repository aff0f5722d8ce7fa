import math

import pytest

from paper import logs
from paper.figures import complexity
from tests.paper import synthetic


def rows_of(tmp_path, rows, **more):
    run = synthetic.study_run(tmp_path / "run", complexity=rows, **more)
    return complexity.table([run])


def test_points_and_exponents_are_those_of_the_log(tmp_path):
    table = rows_of(tmp_path, synthetic.complexity_rows(), complexity_fit=synthetic.fit_rows())
    twin = table.filter(arm="twin", reading="stopping")
    assert twin["pairs"].to_list() == pytest.approx([500, 100, 20, 5])
    assert twin["low"].to_list() == pytest.approx([p * math.exp(-0.1959964) for p in twin["pairs"]])
    assert twin["slope"].unique().to_list() == [-1.0]
    free = table.filter(arm="independent", reading="power")
    assert free["pairs"].to_list() == pytest.approx([250_000, 10_000, 400, 25])
    assert free["low"].null_count() == 4
    assert (free["slope"][0], free["slope_low"][0]) == (-2.0, -2.1)


def test_seeds_are_averaged_on_the_log_scale(tmp_path):
    first, second = (dict(synthetic.complexity_rows()[1]) for _ in range(2))
    first |= {"pairs": 10.0, "stderr_log_pairs": 0.3}
    second |= {"pairs": 1000.0, "stderr_log_pairs": 0.4, "seed": 1}
    table = rows_of(tmp_path, [first, second])
    assert len(table) == 1
    assert table["pairs"][0] == pytest.approx(100)
    assert math.log(table["high"][0] / 100) == pytest.approx(1.959964 * 0.5 / 2)


def test_a_censored_seed_leaves_the_point_undefined(tmp_path):
    first, second, other = (dict(synthetic.complexity_rows()[1]) for _ in range(3))
    second |= {"pairs": None, "seed": 1}
    table = rows_of(tmp_path, [first, second, other | {"regime": "step"}])
    assert table.filter(regime=first["regime"])["pairs"].to_list() == [None]
    assert "1 points are undefined" in complexity.caption(table)


def test_a_study_without_any_point_is_named(tmp_path):
    rows = [row | {"pairs": None} for row in synthetic.complexity_rows()]
    with pytest.raises(logs.MissingLogs, match="no positive effect whose number of pairs is known"):
        rows_of(tmp_path, rows)


def test_without_the_fit_there_is_no_exponent(tmp_path):
    table = rows_of(tmp_path, synthetic.complexity_rows())
    assert table["slope"].null_count() == len(table)
    labels = complexity.draw(table).axes[0].get_legend_handles_labels()[1]
    assert labels == ["twin", "independent"]


def test_the_legend_names_exponents_with_intervals(tmp_path):
    table = rows_of(tmp_path, synthetic.complexity_rows(), complexity_fit=synthetic.fit_rows())
    labels = complexity.draw(table).axes[0].get_legend_handles_labels()[1]
    assert labels == [
        "twin -1.00 [-1.10, -0.90], exact -1.00",
        "independent -2.00 [-2.10, -1.90], exact -2.00",
    ]


def test_a_missing_study_is_named_with_its_command(tmp_path):
    run = synthetic.study_run(tmp_path / "run", other=[{"x": 1}])
    with pytest.raises(logs.MissingLogs, match="no complexity in run.*twice simulate complexity"):
        complexity.table([run])
