"""The table of what training achieved: its numbers by hand, its differences, what it leaves out."""

import numpy as np
import polars as pl
import pytest
from scipy import stats

from paper import logs
from paper.tables import training
from twinstats.records import create_run, metric_rows

SCORES = {"rloo": (0.40, 0.50, 0.45), "twice": (0.50, 0.58, 0.60), "vine": (0.41, 0.48, 0.46)}


def score(decoding, metric, value, kind="all"):
    return {"decoding": decoding, "metric": metric, "kind": kind, "group": "", "value": value}


def a_run(folder, method, seed, end, *, parts=4, finished=True, rate=1e-4, tells=True):
    configuration = {
        "recipe": "demo",
        "seed": seed,
        "task": {"parts": parts},
        "credit": {"method": method},
        "optimizer": {"learning_rate": rate},
    }
    run = create_run(
        folder, command="twice train demo", configuration=configuration, seed=seed, started="then"
    )
    for step, value in ((0, 0.3), (2, end)):
        rows = [score("sampled", "exact_match", value), score("sampled", "f1", value + 0.1)]
        rows += [score("sampled", "exact_match", 0.9, kind="relation")]
        rows = [*rows, score("greedy", "exact_match", value - 0.1)]
        run.write("scores", step, rows if tells else [score("sampled", "outcome", -2.5)])
    for step in (1, 2):
        spent = {"train/auxiliary_tokens": 25 * step, "train/total_tokens": 100 * step}
        run.write("metrics", step, metric_rows(step, spent))
    if finished:
        run.finish("later")
    return folder


@pytest.fixture
def runs(tmp_path):
    found = [
        a_run(tmp_path / f"{method}-{seed}", method, seed, value)
        for method, values in SCORES.items()
        for seed, value in enumerate(values)
    ]
    found.append(a_run(tmp_path / "unfinished", "grpo", 0, 0.9, finished=False))
    found.append(a_run(tmp_path / "measuring", "grpo", 1, 0.9, rate=0))
    return found


def cell(table, method, decoding="sampled", metric="exact_match", against=None):
    (row,) = table.filter(
        pl.col("decoding").eq_missing(decoding),
        pl.col("against").eq_missing(against),
        method=method,
        metric=metric,
    ).to_dicts()
    return row


def test_scores_are_means_over_seeds_with_t_intervals(runs):
    table = training.table(runs)
    own, expected = cell(table, "twice"), np.array(SCORES["twice"])
    interval = stats.t.interval(0.95, 2, expected.mean(), stats.sem(expected))
    assert own["value"] == pytest.approx(expected.mean()) and own["num_seeds"] == 3
    assert (own["low"], own["high"]) == pytest.approx(interval)
    assert cell(table, "twice", metric="f1")["value"] == pytest.approx(expected.mean() + 0.1)
    assert cell(table, "twice", "greedy")["value"] == pytest.approx(expected.mean() - 0.1)
    assert cell(table, "(before)")["value"] == pytest.approx(0.3)
    assert set(table["method"]) == {*SCORES, "(before)"}
    assert table["setting"].unique().to_list() == ["demo, 4 questions"]


def test_differences_are_paired_by_seed_and_corrected_over_all_pairs(runs):
    table = training.table(runs)
    pairs = [("rloo", "twice"), ("rloo", "vine"), ("twice", "vine")]
    pvalues = [stats.ttest_rel(SCORES[a], SCORES[b]).pvalue for a, b in pairs]
    ranked = sorted(range(3), key=lambda index: pvalues[index])
    holm = np.maximum.accumulate([(3 - k) * pvalues[index] for k, index in enumerate(ranked)])
    for corrected, index in zip(np.minimum(holm, 1), ranked, strict=True):
        one, other = pairs[index]
        here, back = cell(table, one, against=other), cell(table, other, against=one)
        assert here["pvalue"] == pytest.approx(pvalues[index])
        assert here["pvalue_holm"] == back["pvalue_holm"] == pytest.approx(corrected)
        assert here["value"] == pytest.approx(np.mean(SCORES[one]) - np.mean(SCORES[other]))
        assert back["value"] == pytest.approx(-here["value"])


def test_what_whole_runs_spent(runs):
    table = training.table(runs)
    assert cell(table, "rloo", None, "updates")["value"] == 2
    assert cell(table, "rloo", None, "total_tokens")["value"] == 200
    assert cell(table, "rloo", None, "auxiliary_share")["value"] == pytest.approx(75 / 200)


def test_one_seed_has_neither_interval_nor_difference(tmp_path):
    runs = [a_run(tmp_path / name, name, 0, 0.4) for name in ("rloo", "twice")]
    table = training.table(runs)
    own = cell(table, "twice")
    assert (own["low"], own["reason"]) == (None, "one seed has no interval")
    row = cell(table, "twice", against="rloo")
    assert (row["value"], row["reason"]) == (None, "fewer than two seeds in common")
    shown = training.show(table).filter(method="twice*").to_dicts()[0]
    assert shown["EM"] == "0.400" and shown["EM - rloo's"] == shown["p (Holm)"] == ""


def test_what_is_shown_by_hand(runs):
    shown = training.show(training.table(runs))
    assert shown["method"].to_list() == ["twice*", "rloo", "vine", "(before)"]
    first = shown.row(0, named=True)
    assert first["EM"].startswith("0.560 [0.4") and first["auxiliary"] == "0.38"
    assert first["EM - rloo's"].startswith("0.110 [") and first["p (Holm)"] != ""
    assert "Reconstructed" in training.caption(training.table(runs))


def test_without_a_finished_run_the_command_is_named(tmp_path):
    run = a_run(tmp_path / "run", "rloo", 0, 0.4, finished=False)
    with pytest.raises(logs.MissingLogs, match="no finished run that learns.*twice results"):
        training.table([run])


def test_a_task_that_tells_no_exact_match_is_named(runs, tmp_path):
    chat = a_run(tmp_path / "chat", "rloo", 0, 0.5, parts=1, tells=False)
    table = training.table([*runs, chat])
    assert "No EM or F1 of demo, 1 question: the task does not tell" in training.caption(table)
    assert "No EM" not in training.caption(training.table(runs))
    assert training.show(table).filter(setting="demo, 1 question")["EM"].to_list() == [""]
