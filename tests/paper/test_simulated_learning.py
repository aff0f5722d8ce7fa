import pytest

from paper import logs
from paper.figures import simulated_learning
from tests.paper import synthetic


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learning") / "run"
    run = synthetic.study_run(folder, learning=synthetic.learning_rows())
    return simulated_learning.table([run])


def test_numbers_are_those_of_the_log_without_nulls(table):
    own = table.filter(method="twice", setting="chain-8", reading="end")
    assert own["budget"].to_list() == [100.0, 200.0]
    assert own["return"].to_list() == pytest.approx([0.5, 1.1])
    assert table.filter(method="grpo").is_empty()


def test_methods_are_ranked_by_how_far_they_get_to_the_best_policy(table):
    # from .8 to 2 on the chain: ppo .125, twice .25; from .6 to 1 in the errand: ppo .5; rloo 0
    assert simulated_learning.ranking(table) == ["ppo", "rloo", "twice"]
    chain = table.filter(setting="chain-8")
    assert simulated_learning.ranking(chain) == ["twice", "ppo", "rloo"]
    errand = table.filter(setting="errand-8")
    assert simulated_learning.ranking(errand) == ["ppo", "rloo"]


def test_every_method_is_named_and_marked(table):
    figure = simulated_learning.draw(table)
    assert len(figure.axes) == 4
    labels = [label.get_text() for label in figure.axes[2].get_yticklabels()]
    assert labels == ["ppo†", "rloo", "twice*"]
    assert figure.axes[0].get_legend_handles_labels()[1] == ["twice*", "rloo"]
    text = simulated_learning.caption(table)
    assert "* Reconstructed" in text and "† Reads" in text
    assert "end of the grid: 1 of 5" in text


def test_settings_that_do_not_fit_are_named(tmp_path):
    rows = [
        row | {"setting": f"chain-{number}"}
        for number in range(5)
        for row in synthetic.learning_rows()
        if row["setting"] == "chain-8"
    ]
    table = simulated_learning.table([synthetic.study_run(tmp_path / "five", learning=rows)])
    assert len(simulated_learning.draw(table).axes) == 8
    assert "in the table only: chain-4." in simulated_learning.caption(table)


def test_a_missing_study_is_named(tmp_path):
    run = synthetic.study_run(tmp_path / "run", other=[{"x": 1}])
    with pytest.raises(logs.MissingLogs, match="no learning in run"):
        simulated_learning.table([run])


def test_a_study_without_a_return_is_named(tmp_path):
    rows = [row | {"return": None} for row in synthetic.learning_rows()]
    run = synthetic.study_run(tmp_path / "run", learning=rows)
    with pytest.raises(logs.MissingLogs, match="no return that is not null in learning in run"):
        simulated_learning.table([run])
