import shutil

import polars as pl
import pytest

from paper import logs
from tests.paper import synthetic
from twinstats.errors import UsageError


def test_a_folder_of_runs_is_expanded_once_each(tmp_path):
    for name in ("b", "a"):
        synthetic.study_run(tmp_path / "all" / name, complexity=synthetic.complexity_rows())
    (tmp_path / "all" / "notes").mkdir()
    found = logs.expand([tmp_path / "all", tmp_path / "all" / "a"])
    assert [run.name for run in found] == ["a", "b"]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds none"):
        logs.expand([tmp_path])
    with pytest.raises(UsageError, match="at least one run"):
        logs.expand([])


def test_labels_are_as_short_as_tells_runs_apart(tmp_path):
    runs = [tmp_path / "x" / "seed-0", tmp_path / "y" / "seed-0", tmp_path / "z"]
    assert list(logs.labels(runs).values()) == ["x/seed-0", "y/seed-0", "z"]


def test_runs_of_one_name_stay_apart(tmp_path):
    runs = [tmp_path / name / "run" for name in ("x", "y")]
    for run in runs:
        synthetic.train_run(run, method="rloo", steps=2)
    assert sorted(logs.read(runs, "metrics")["run"].unique()) == ["x/run", "y/run"]


def test_a_table_nobody_has_is_null(tmp_path):
    assert (
        logs.read([synthetic.study_run(tmp_path / "run", complexity=[{"effect": 1}])], "no") is None
    )


def test_a_table_that_is_there_is_not_called_missing(tmp_path):
    run = synthetic.study_run(tmp_path / "run", pairs=[{"kind": "null"}])
    told = str(logs.missing("f", ("pairs", "other"), [run], "make it", rows="twins"))
    assert told == "f: no other and no twins in pairs in run; make it with `make it`."
    assert str(logs.missing("f", ("pairs",), [run], "m", rows="twins")).startswith(
        "f: no twins in pairs in run"
    )
    assert str(logs.missing("f", ("other", "more"), [run], "m")).startswith(
        "f: no other or more in run;"
    )


def test_a_cut_part_is_named_and_the_rest_is_read(tmp_path):
    run = synthetic.train_run(tmp_path / "run", method="rloo", steps=4)
    whole = len(logs.read([run], "metrics"))
    part = run / "metrics" / "step-00000002.parquet"
    lost = len(pl.read_parquet(part))
    part.write_bytes(part.read_bytes()[:200])
    with pytest.warns(UserWarning, match="step-00000002.parquet cannot be read"):
        assert len(logs.read([run], "metrics")) == whole - lost
    assert "run/metrics/step-00000002.parquet" not in logs.digests([run], ["metrics"])


def test_digests_change_with_a_part_and_with_nothing_else(tmp_path):
    run = synthetic.train_run(tmp_path / "run", method="rloo", steps=3)
    before = logs.digests([run], ["metrics"])
    assert set(before) == {
        "run/run.json",
        *(f"run/metrics/step-{step:08d}.parquet" for step in range(4)),
    }
    part = run / "metrics" / "step-00000001.parquet"
    pl.read_parquet(part).with_columns(pl.col("value") + 1).write_parquet(part)
    after = logs.digests([run], ["metrics"])
    assert [name for name in before if before[name] != after[name]] == [
        "run/metrics/step-00000001.parquet"
    ]
    copy = tmp_path / "elsewhere" / "run"
    shutil.copytree(run, copy)
    assert logs.digests([copy], ["metrics"]) == after
