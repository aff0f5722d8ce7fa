import numpy as np
import pytest
from scipy import stats

from paper import logs
from paper.figures import learning
from tests.paper import synthetic


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    found = [
        synthetic.train_run(folder / f"{method}-{seed}", method=method, seed=seed)
        for method, seeds in (("rloo", (0, 1, 5)), ("vine", (0,)))
        for seed in seeds
    ]
    return [*found, synthetic.study_run(folder / "study", complexity=[{"effect": 1.0}])]


def test_single_seeds_are_evaluations_against_all_tokens(runs):
    table = learning.table(runs).filter(kind="seed", measure="exact_match", run="vine-0")
    assert table["tokens"].to_list() == [0, 4500, 9000]
    assert table["value"].to_list() == pytest.approx([0.2, 0.35, 0.5])
    assert table["high"].to_list() == pytest.approx([v + 1.959964 * 0.03 for v in table["value"]])


def test_means_over_seeds_have_t_intervals(runs):
    table = learning.table(runs).filter(kind="mean", measure="exact_match", method="rloo")
    values = np.array([0.2, 0.21, 0.25])
    low, high = stats.t.interval(0.95, 2, values.mean(), stats.sem(values))
    first = table.row(0, named=True)
    assert (first["tokens"], first["num_seeds"]) == (0, 3)
    assert (first["value"], first["low"], first["high"]) == pytest.approx(
        (values.mean(), low, high)
    )


def test_one_seed_has_the_interval_of_its_questions(runs):
    table = learning.table(runs).filter(method="vine")
    after = table.filter(kind="after", measure="exact_match").row(0, named=True)
    assert (after["value"], after["num_seeds"]) == (pytest.approx(0.5), 1)
    assert after["high"] == pytest.approx(0.5 + 1.959964 * 0.03)
    outcomes = table.filter(kind="mean", measure="outcome")
    assert outcomes["low"].null_count() == len(outcomes) > 0
    assert "vine 1. A method with fewer than three" in learning.caption(learning.table(runs))


def test_before_and_after_are_the_first_and_last_evaluation(runs):
    table = learning.table(runs).filter(method="rloo", measure="exact_match")
    ends = {
        row["kind"]: (row["tokens"], round(row["value"], 6))
        for row in table.filter(table["kind"].is_in(["before", "after"])).to_dicts()
    }
    assert ends == {"before": (0, 0.22), "after": (6000, 0.52)}


def test_means_stay_within_the_tokens_all_seeds_have(tmp_path):
    long = synthetic.train_run(tmp_path / "long", method="rloo", seed=0, steps=6)
    short = synthetic.train_run(tmp_path / "short", method="rloo", seed=1, steps=3)
    table = learning.table([long, short]).filter(kind="mean", measure="exact_match")
    assert table["tokens"].to_list() == [0, 3000]


def test_training_outcomes_are_means_of_blocks_of_steps(tmp_path):
    run = synthetic.train_run(tmp_path / "run", method="rloo", steps=48)
    table = learning.table([run]).filter(kind="seed", measure="outcome")
    assert len(table) == learning.MOST_POINTS
    assert table["value"][0] == pytest.approx((0.3 + 0.35) / 2)
    assert table["tokens"][0] == 1500


def test_each_setting_has_a_row_of_its_own(tmp_path):
    runs = [
        synthetic.train_run(
            tmp_path / f"{recipe}{parts}", method="rloo", recipe=recipe, parts=parts
        )
        for recipe, parts in (("demo", 1), ("demo", 4), ("smollm", 4))
    ]
    table = learning.table(runs)
    settings = ["demo, 1 question", "demo, 4 questions", "smollm, 4 questions"]
    assert table["setting"].unique().sort().to_list() == settings
    assert table.filter(kind="mean")["num_seeds"].unique().to_list() == [1]
    panels = learning.draw(table).axes
    assert [panel.get_title() for panel in panels[::3]] == settings
    assert [len(panel.get_legend_handles_labels()[1]) for panel in panels[::3]] == [1, 1, 1]


def test_reconstructed_methods_are_marked(tmp_path):
    table = learning.table([synthetic.train_run(tmp_path / "run", method="twice", steps=3)])
    assert learning.draw(table).axes[0].get_legend_handles_labels()[1] == ["twice*"]
    assert "* Reconstructed" in learning.caption(table)


def test_what_a_reward_of_ones_own_pays_is_a_test_outcome_below_0_too(tmp_path):
    run = synthetic.train_run(tmp_path / "run", method="rloo", reward="own:length")
    table = learning.table([run])
    assert table["setting"].unique().to_list() == ["demo, 4 questions, own:length"]
    seed = table.filter(kind="seed")
    assert seed.filter(measure="exact_match")["value"].to_list() == pytest.approx([0.2, 0.35, 0.5])
    paid = seed.filter(measure="test_outcome")
    assert paid["value"].to_list() == pytest.approx([-2.8, -2.65, -2.5])
    assert paid["low"][0] == pytest.approx(-2.8 - 1.959964 * 0.2)
    panels = learning.draw(table).axes
    names = ["test exact match", "test outcome", "training outcome", "test outcome"]
    assert [panel.get_ylabel() for panel in panels] == names
    assert panels[0].get_ylim()[0] == 0
    assert [panel.dataLim.y0 >= panel.get_ylim()[0] for panel in panels[1:]] == [True] * 3
    assert panels[3].lines[0].get_ydata().tolist() == pytest.approx([-2.8, -2.5])
    assert "own reward pays" in learning.caption(table)


def test_means_of_a_reward_of_ones_own_have_intervals_below_0(tmp_path):
    runs = [
        synthetic.train_run(tmp_path / f"{seed}", method="rloo", seed=seed, reward="own:length")
        for seed in (0, 1, 2)
    ]
    means = learning.table(runs).filter(kind="mean")
    for measure in ("test_outcome", "outcome"):
        own = means.filter(measure=measure)
        assert (own["low"] <= own["value"]).all() and (own["value"] <= own["high"]).all()


def test_a_chat_has_a_test_outcome_alone(tmp_path):
    run = synthetic.train_run(tmp_path / "run", method="rloo", reward="own:length", exact=False)
    table = learning.table([run])
    assert set(table["measure"]) == {"test_outcome", "outcome"}
    names = ["test outcome", "training outcome", "test outcome"]
    assert [panel.get_ylabel() for panel in learning.draw(table).axes] == names


def test_metrics_without_learning_are_told_from_no_metrics(tmp_path):
    run = synthetic.study_run(
        tmp_path / "retrofit", metrics=[{"name": "train/failed_count", "value": 0.0}]
    )
    lacks = "learning: no evaluations or outcomes of a run that learns in metrics in retrofit"
    with pytest.raises(logs.MissingLogs, match=lacks):
        learning.table([run])


def test_runs_that_trained_nothing_are_no_logs(runs):
    with pytest.raises(logs.MissingLogs, match="no metrics in study.*twice train"):
        learning.table(runs[-1:])
