"""Logs: rows L01 to L06 of the case list, as they apply to parts of one step each."""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import polars as pl
import pytest

from twinstats.errors import UsageError
from twinstats.records import create_run, metric_rows, parts, read, read_run, reopen_run, write_json


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "run", command="x", configuration={}, seed=0, started="now")


def strict(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_l01_what_is_not_a_number_is_null_with_a_reason(run, tmp_path):
    values = {"rho": float("nan"), "x": float("inf")}
    run.write("metrics", 0, metric_rows(0, values))
    assert read(run.path, "metrics").collect().select("name", "value", "reason").rows() == [
        ("rho", None, "undefined"),
        ("x", None, "infinite"),
    ]
    write_json(tmp_path / "x.json", values)
    assert strict((tmp_path / "x.json").read_text()) == {"rho": None, "x": None}
    assert strict((run.path / "run.json").read_text())["finished"] is None


@pytest.mark.parametrize("cut", [0, 4, 0.3, 0.99])
def test_l02_a_torn_part_is_named_and_the_rest_is_read(run, cut):
    for step in range(3):
        run.write("texts", step, [{"episode": "0/0", "turn": 0, "text": "naïve “ü” 漢字" * 50}])
    torn = parts(run.path, "texts")[1]
    whole = torn.read_bytes()
    torn.write_bytes(whole[: cut if cut in (0, 4) else int(cut * len(whole))])
    with pytest.warns(UserWarning, match="step-00000001.parquet cannot be read and is left out"):
        table = read(run.path, "texts")
    assert table.collect()["step"].to_list() == [0, 2]
    assert run.rewind(0) == 2
    run.write("texts", 1, [{"text": "again"}])
    assert read(run.path, "texts").collect()["step"].to_list() == [0, 1]


def test_l02_a_part_that_was_never_finished_is_not_seen(run):
    run.write("metrics", 0, metric_rows(0, {"a": 1.0}))
    left = run.path / "metrics" / "step-00000001.99.tmp"
    left.write_bytes(b"PAR1 half a part")
    assert read(run.path, "metrics").collect()["step"].to_list() == [0]
    reopen_run(run.path, {}).rewind(0)
    assert not left.exists()


def test_l02_a_run_of_torn_parts_only_is_an_error_and_not_an_empty_table(run):
    run.write("metrics", 0, metric_rows(0, {"a": 1.0}))
    parts(run.path, "metrics")[0].write_bytes(b"PAR1")
    with (
        pytest.warns(UserWarning, match="cannot be read"),
        pytest.raises(UsageError, match="No table 'metrics'"),
    ):
        read(run.path, "metrics")


def test_l03_processes_write_different_steps_without_loss(run):
    """1000 records of 8 kB from four processes: each once, none torn."""
    jobs = [
        ("study", step, [{"id": 20 * step + k, "text": f"{step:04d}" * 2000} for k in range(20)])
        for step in range(50)
    ]
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(run.write, *zip(*jobs, strict=True), timeout=60, chunksize=5))
    table = read(run.path, "study").collect().sort("id")
    assert table["id"].to_list() == list(range(1000))
    assert table["text"].str.len_chars().unique().to_list() == [8000]
    assert [path.name for path in (run.path / "study").glob("*.tmp")] == []


def test_l04_a_resumed_run_has_each_step_once(run):
    for attempt, (first, last) in enumerate(((1, 212), (201, 300))):
        if attempt:
            assert reopen_run(run.path, {}).rewind(200) == 12
        for step in range(first, last + 1):
            run.write("study", step, [{"attempt": attempt}])
    table = read(run.path, "study").collect()
    assert table["step"].to_list() == list(range(1, 301))
    assert table.filter(pl.col("attempt") == 1)["step"].to_list() == list(range(201, 301))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_l06_columns_are_the_union_whatever_the_order(tmp_path, order):
    few = [{"k1": k} for k in range(150)]
    many = [{"k1": float(k), "k2": "x"} for k in range(150)]
    runs = []
    for name, rows in (("a", few), ("b", many)):
        one = create_run(tmp_path / name, command="x", configuration={}, seed=0, started="now")
        one.write("study", 0, rows)
        runs.append(one.path)
    several = read([runs[i] for i in order], "study").select("k1", "k2").collect()
    one = create_run(tmp_path / "both", command="x", configuration={}, seed=0, started="now")
    for step, i in enumerate(order):
        one.write("study", step, (few, many)[i])
    within = read(one.path, "study").select("k1", "k2").collect()
    for table in (several, within):
        assert table.shape == (300, 2)
        assert table["k2"].null_count() == 150
        assert table["k1"].sum() == 2 * sum(range(150))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_l06_a_column_without_values_takes_the_others_type(run, order):
    kinds = ([{"x": None}, {"x": None}], [{"x": "word"}])
    for step, i in enumerate(order):
        run.write("study", step, kinds[i])
    assert read(run.path, "study").collect()["x"].drop_nulls().to_list() == ["word"]


def test_a_finished_run_still_reads(run):
    run.finish("later")
    assert read_run(run.path)["finished"] == "later"
