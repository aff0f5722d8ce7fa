"""What the demo's closing table says of its runs."""

import io

import pytest
from rich.console import Console

from twinstats import demo_summary as module
from twinstats.records import create_run, metric_rows

STEPS = {"independent-0": 2, "independent-1": 2, "rloo-0": 3, "rloo-1": 4}


@pytest.fixture
def runs(tmp_path):
    """Two runs each of two methods: 20,000 tokens a step, half of them auxiliary with twins."""
    return [logged(tmp_path / name, steps) for name, steps in STEPS.items()]


def logged(path, steps):
    method = path.name.split("-")[0]
    configuration = {"credit": {"method": method}}
    run = create_run(path, command="x", configuration=configuration, seed=0, started="t")
    auxiliary = 10_000 if method == "independent" else 0
    for step in range(1, steps + 1):
        sampled = {
            "train/sampled_tokens": 20_000 - auxiliary,
            "train/auxiliary_tokens": auxiliary,
        }
        run.write("metrics", step, metric_rows(step, sampled))
    for step, right in ((0, 8), (steps, 4)):
        rows = [
            {"task": str(task), "sample": 0, "decoding": "sampled", "outcome": float(task < right)}
            for task in range(20)
        ]
        run.write("evaluations", step, rows)
    return path


def printed(table):
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text().splitlines()


def test_steps_and_tokens_are_told_of_a_run_beside_the_sums(runs):
    independent, rloo = module._training(runs)
    assert (rloo["steps"], rloo["sampled_tokens"], rloo["auxiliary_tokens"]) == (7, 140_000, 0)
    assert rloo["mean_of_a_run"] == {
        "steps": 3.5,
        "factual_tokens": 70_000,
        "auxiliary_tokens": 0,
        "total_tokens": 70_000,
    }
    assert independent["mean_of_a_run"]["factual_tokens"] == 20_000
    assert independent["mean_of_a_run"]["total_tokens"] == 40_000


def test_a_method_is_one_line_of_the_closing_table(runs):
    lines = printed(module._training_table(module._training(runs)))
    told = [line for line in lines if line.startswith("│")]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in told]
    assert [row[0] for row in cells] == ["independent", "rloo"]
    before, after, change = cells[0][1:4]
    assert before.startswith(".400 [.") and after.startswith(".200 [.")
    assert change.startswith("-.200 [-.") and len(change) == len("-.200 [-.000, -.000]")
    assert cells[0][4:] == ["2.0", "20,000", "20,000", "40,000"]
    assert cells[1][4:] == ["3.5", "70,000", "0", "70,000"]
    assert "Runs a method: 2." in lines[-1] and max(map(len, lines)) < 120


def test_numbers_of_one_kind_have_equal_digits():
    row = {"value": 2.0, "interval": [1.84, 12.0]}
    assert module._with_interval(row, 1) == "2.0 [1.8, 12.0]"
    assert module._fixed(-0.0001, 3) == "0.000" and module._fixed(None, 3) == "undefined"


def test_an_interval_that_is_not_known_is_not_swallowed_as_markup():
    rows = [{"regime": "smooth", "coupling": "fresh", "reading": "stopping"}]
    rows[0] |= {"slope": None, "low": None, "high": None}
    assert printed(module._exponent_table(rows))[-2].split("│")[-3:-1] == [
        " undefined ",
        " undefined    ",
    ]
