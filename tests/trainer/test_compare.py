"""Runs compared on the same questions."""

import subprocess
import sys

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from trainer.commands.compare import compare as command
from trainer.evaluation.compare import compare
from twinstats.errors import UsageError
from twinstats.pairs import paired
from twinstats.records import Run, create_run


@pytest.fixture
def evaluated(tmp_path):
    """Writes an evaluation of one-part tasks: evaluated(name, {task: success a sample})."""

    def evaluated(name, right, *, step=0, f1=None, decoding="sampled"):
        run = create_run(tmp_path / name, command="x", configuration={}, seed=0, started="now")
        own = [
            {"task": task, "decoding": decoding, "sample": sample, "success": one}
            for task, samples in right.items()
            for sample, one in enumerate(samples)
        ]
        plays = [
            row | {"outcome": None if row["success"] is None else float(row["success"])}
            for row in own
        ]
        run.write("evaluations", step, plays)
        answers = [
            {k: row[k] for k in ("task", "decoding", "sample")}
            | {"part": 0, "f1": None if f1 is None else f1[row["task"]]}
            for row in plays
        ]
        run.write("answers", step, answers)
        return run.path

    return evaluated


def drawn(seed, rate=0.5, size=40):
    rng = np.random.default_rng(seed)
    return {f"t{k}": [bool(rng.random() < rate)] for k in range(size)}


def by_metric(found):
    return {one.metric: one for one in found}


def test_a_comparison_is_the_paired_test_of_the_shared_questions(evaluated):
    one, other = drawn(1), drawn(2)
    extra = {"only here": [True]}
    found = by_metric(compare([evaluated("a", one | extra), evaluated("b", other)]))
    expected = paired([one[t][0] for t in one], [other[t][0] for t in one])
    assert found["success"].result == expected and expected.method == "exact"
    assert found["success"].means == pytest.approx(
        (np.mean([v[0] for v in one.values()]), np.mean([v[0] for v in other.values()]))
    )
    assert set(found) == {"outcome", "success"}
    assert found["success"].holm == found["success"].result.pvalue


def test_the_difference_is_first_minus_second(evaluated):
    right, wrong = {f"t{k}": [True] for k in range(9)}, {f"t{k}": [False] for k in range(9)}
    found = by_metric(compare([evaluated("a", right), evaluated("b", wrong)]))["success"]
    assert found.result.estimate == 1.0 and found.result.discordant == (9, 0)


def test_the_order_of_rows_does_not_matter(evaluated):
    one, other = drawn(1), drawn(2)
    plain = compare([evaluated("a", one), evaluated("b", other)])
    mixed = dict(sorted(other.items(), reverse=True))
    again = compare([evaluated("c", one), evaluated("d", mixed)])
    assert [x.result for x in plain] == [x.result for x in again]


def test_samples_of_a_question_are_averaged_first(evaluated):
    one = {"t": [True, False], "u": [True, True], "v": [False, False]}
    other = {"t": [False], "u": [True], "v": [False]}
    found = by_metric(compare([evaluated("a", one), evaluated("b", other)]))["success"]
    assert found.result.estimate == pytest.approx(0.5 / 3) and found.result.num_pairs == 3


def test_a_question_that_failed_is_left_out_and_counted(evaluated):
    one = {"t": [True], "u": [None], "v": [True]}
    other = {"t": [False], "u": [True], "v": [True]}
    found = by_metric(compare([evaluated("a", one), evaluated("b", other)]))["success"]
    assert (found.result.num_pairs, found.result.num_missing) == (2, 1)


def test_scores_of_answers_are_compared_too(evaluated):
    right = {"t": [True], "u": [True]}
    one = evaluated("a", right, f1={"t": 0.5, "u": 0.75})
    other = evaluated("b", right, f1={"t": 0.25, "u": 0.25})
    assert by_metric(compare([one, other]))["f1"].result.estimate == pytest.approx(0.375)


def test_several_runs_are_all_compared_with_holms_correction(evaluated):
    rates = {"a": 0.2, "b": 0.5, "c": 0.9}
    runs = [evaluated(name, drawn(k, rate)) for k, (name, rate) in enumerate(rates.items())]
    found = [one for one in compare(runs) if one.metric == "success"]
    assert [(one.first, one.second) for one in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    plain = [one.result.pvalue for one in found]
    corrected = [one.holm for one in found]
    assert corrected == pytest.approx(multipletests(plain, method="holm")[1])
    assert min(corrected) == pytest.approx(3 * min(plain)) and max(corrected) < 3 * max(plain)


def test_the_last_evaluation_counts_unless_a_step_is_named(evaluated):
    one, other = evaluated("a", drawn(1)), evaluated("b", drawn(2))
    Run(one).write("evaluations", 7, [{"task": "t0", "decoding": "sampled", "success": True}])
    Run(one).write("answers", 7, [{"task": "t0", "decoding": "sampled", "part": 0}])
    assert by_metric(compare([one, other]))["success"].result.num_pairs == 1
    assert by_metric(compare([one, other], step=0))["success"].result.num_pairs == 40
    with pytest.raises(UsageError, match="b has no evaluation at step 7; it has: 0"):
        compare([one, other], step=7)


def test_nothing_shared_is_refused(evaluated):
    one, other = evaluated("a", {"t": [True]}), evaluated("b", {"u": [True]})
    with pytest.raises(UsageError, match="a and b share no test question"):
        compare([one, other])


def test_one_run_alone_is_refused(evaluated):
    one = evaluated("a", {"t": [True]})
    for runs in ([one], [one, one]):
        with pytest.raises(UsageError, match="at least two different runs"):
            compare(runs)


def test_the_command_shows_difference_interval_and_p(evaluated, capsys):
    right, wrong = {f"t{k}": [True] for k in range(9)}, {f"t{k}": [False] for k in range(9)}
    command([evaluated("a", right), evaluated("b", wrong)], None)
    told = capsys.readouterr().out
    assert "a - b" in told
    line = next(line for line in told.splitlines() if "success, sampled" in line)
    assert all(word in line for word in ("1.000 [", ".0039", " 9, 0 "))


def test_comparing_and_watching_load_no_torch():
    code = "import sys, trainer.commands.compare, trainer.commands.watch; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout.split() and "trainer.evaluation.compare" in done.stdout
