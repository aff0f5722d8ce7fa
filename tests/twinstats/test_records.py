import json
import math
import os

import numpy as np
import polars as pl
import pytest

from twinstats.errors import UsageError
from twinstats.records import (
    SCHEMA_VERSION,
    SCHEMAS,
    Run,
    create_run,
    flatten,
    metric_rows,
    parts,
    read,
    read_run,
    reopen_run,
    write_json,
)

CONFIGURATION = {"credit": {"method": "twice", "budget": 0.5}, "rows": (1, 2), "x": None}


def start(folder, **changes):
    fields = {"command": "train demo", "configuration": CONFIGURATION, "seed": 3, "started": "now"}
    return create_run(folder, **(fields | changes))


def test_a_run_says_how_it_was_made(tmp_path):
    run = start(tmp_path / "a" / "run")
    found = read_run(run.path)
    assert found["schema"] == SCHEMA_VERSION
    assert found["configuration"] == CONFIGURATION | {"rows": [1, 2]}
    assert (found["command"], found["seed"], found["started"]) == ("train demo", 3, "now")
    assert found["noise"] == "philox4x32-10/block256/u52"
    assert found["finished"] is None
    assert {"commit", "versions"} < found.keys()
    assert found["versions"]["numpy"] == np.__version__
    run.finish("later")
    assert read_run(run.path) == found | {"finished": "later"}


def test_a_folder_that_holds_something_is_not_written_into(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="already exists: name another folder, or give --resume"):
        start(tmp_path)
    with pytest.raises(UsageError, match="already exists"):
        start(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    start(tmp_path / "empty")


def test_rows_come_back_as_they_were_written(tmp_path):
    run = start(tmp_path / "run")
    run.write("credit", 2, [{"method": "vine", "episode": "2/0", "turn": 0, "value": 1.5}])
    run.write("credit", 1, [{"method": "vine", "episode": "1/0", "turn": 3, "value": np.nan}])
    table = read(run.path, "credit").collect()
    assert table.columns == [*SCHEMAS["credit"], "run"]
    assert table.sort("step").select("step", "turn", "value", "share", "run").rows() == [
        (1, 3, None, None, "run"),
        (2, 0, 1.5, None, "run"),
    ]
    assert [part.name for part in parts(run.path, "credit")] == [
        "step-00000001.parquet",
        "step-00000002.parquet",
    ]


def test_the_step_of_a_part_is_the_step_of_its_rows(tmp_path):
    run = start(tmp_path / "run")
    run.write("metrics", 5, metric_rows(4, {"a": 1.0}))
    run.write("study", 6, [{"step": 4, "x": 1}])
    assert read(run.path, "metrics").collect()["step"].to_list() == [5]
    assert read(run.path, "study").collect()["step"].to_list() == [6]


def test_every_shared_table_takes_a_row_of_nulls_and_integers_for_reals(tmp_path):
    run = start(tmp_path / "run")
    for table, schema in SCHEMAS.items():
        numbers = {name: 1 for name, kind in schema.items() if kind == pl.Float64}
        run.write(table, 0, [{}, numbers, dict.fromkeys(numbers, np.float32(0.5))])
        assert read(run.path, table).collect().height == 3


def test_other_tables_bring_their_own_columns(tmp_path):
    run = start(tmp_path / "run")
    run.write("unbiased", 0, [{"name": "vine", "bias": 1}, {"bias": 0.5, "extra": [1, 2]}])
    table = read(run.path, "unbiased").collect()
    assert table.select("name", "bias", "extra", "step").rows() == [
        ("vine", 1.0, None, 0),
        (None, 0.5, [1, 2], 0),
    ]
    assert "reason" not in table.columns


def test_no_rows_make_no_part(tmp_path):
    run = start(tmp_path / "run")
    run.write("metrics", 0, [])
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("table", ["Metrics", "../x", "a/b", "", "1a"])
def test_a_table_name_that_could_leave_the_run_is_refused(tmp_path, table):
    with pytest.raises(ValueError, match="`table` must be lower-case"):
        start(tmp_path / "run").write(table, 0, [{"x": 1}])


def test_a_column_that_the_table_does_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Table 'turns' has no column tokens; it has"):
        start(tmp_path / "run").write("turns", 0, [{"tokens": 1}])


def test_a_step_is_written_once(tmp_path):
    run = start(tmp_path / "run")
    run.write("metrics", 1, metric_rows(1, {"a": 1.0}))
    with pytest.raises(ValueError, match="`step` 1 of table 'metrics' is already written"):
        run.write("metrics", 1, metric_rows(1, {"a": 2.0}))
    assert read(run.path, "metrics").collect()["value"].to_list() == [1.0]


def test_a_crash_while_writing_leaves_no_part(tmp_path, monkeypatch):
    run = start(tmp_path / "run")
    run.write("metrics", 1, metric_rows(1, {"a": 1.0}))

    def full_disk(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full_disk)
        run.write("metrics", 2, metric_rows(2, {"a": 2.0}))
    assert read(run.path, "metrics").collect()["step"].to_list() == [1]
    assert run.rewind(1) == 0
    assert [path.name for path in (run.path / "metrics").iterdir()] == ["step-00000001.parquet"]


def test_a_crash_while_writing_json_leaves_the_old_file(tmp_path, monkeypatch):
    write_json(tmp_path / "x.json", {"a": 1})
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        write_json(tmp_path / "x.json", {"a": 2})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}


def test_rewind_removes_what_came_after_in_all_tables(tmp_path):
    run = start(tmp_path / "run")
    for step in range(5):
        run.write("metrics", step, metric_rows(step, {"a": 1.0}))
        run.write("study", step, [{"x": step}])
    assert run.rewind(2) == 4
    for table in ("metrics", "study"):
        assert sorted(read(run.path, table).collect()["step"]) == [0, 1, 2]
    assert run.rewind(2) == 0


def test_a_resume_with_another_configuration_names_the_fields(tmp_path):
    run = start(tmp_path / "run")
    assert reopen_run(run.path, CONFIGURATION) == run
    changed = {"credit": {"method": "vine", "budget": 0.5}, "rows": (1, 2), "y": 1, "x": None}
    with pytest.raises(UsageError, match=r"credit.method \(twice -> vine\), y \(None -> 1\)"):
        reopen_run(run.path, changed)
    with pytest.raises(UsageError, match="is no run: it has no run.json"):
        reopen_run(tmp_path, CONFIGURATION)


def test_flatten_names_leaves_by_their_path():
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {
        "a.b": 1,
        "a.c.d": [2],
        "e": None,
    }


def test_a_broken_run_json_is_an_error_and_not_an_empty_run(tmp_path):
    run = start(tmp_path / "run")
    for text in ("[" * 100_000, '{"schema": 1, "comm'):
        (run.path / "run.json").write_text(text)
        with pytest.raises(UsageError, match="run.json is not readable JSON"):
            read_run(run.path)


def test_a_newer_schema_is_refused_by_name(tmp_path):
    run = start(tmp_path / "run")
    run.write("metrics", 0, metric_rows(0, {"a": 1.0}))
    newer = pl.DataFrame({"step": [1]})
    newer.write_parquet(run.path / "metrics" / "step-00000001.parquet", metadata={"schema": "2"})
    with pytest.raises(UsageError, match=r"step-00000001.parquet has schema 2; this version reads"):
        read(run.path, "metrics")
    write_json(run.path / "run.json", read_run(run.path) | {"schema": 9})
    with pytest.raises(UsageError, match="run.json has schema 9"):
        read_run(run.path)


def test_a_table_that_is_not_there_is_named_with_those_that_are(tmp_path):
    run = start(tmp_path / "run")
    with pytest.raises(UsageError, match="No table 'pairs'.*there are: none"):
        read(run.path, "pairs")
    run.write("study", 0, [{"x": 1}])
    with pytest.raises(UsageError, match="No table 'pairs' in .*run; there are: study"):
        read([run.path], "pairs")
    with pytest.raises(UsageError, match="is no run"):
        read(tmp_path, "pairs")


def test_several_runs_read_as_one(tmp_path):
    one, other = start(tmp_path / "one"), start(tmp_path / "other")
    one.write("study", 0, [{"x": 1, "y": 2.0}])
    other.write("study", 0, [{"z": "a", "x": 3}])
    for order in ([one, other], [other, one]):
        table = read([run.path for run in order], "study").collect().sort("run")
        assert table.select("run", "x", "y", "z").rows() == [
            ("one", 1, 2.0, None),
            ("other", 3, None, "a"),
        ]


def test_metrics_say_why_they_have_no_value(tmp_path):
    run = start(tmp_path / "run")
    rows = metric_rows(0, {"a": 1, "b": None, "c": math.nan, "d": -math.inf, "e": np.float32(2)})
    run.write("metrics", 0, [*rows, {"name": "f", "value": None, "reason": "no pairs"}])
    assert read(run.path, "metrics").collect().select("name", "value", "reason").rows() == [
        ("a", 1.0, None),
        ("b", None, "undefined"),
        ("c", None, "undefined"),
        ("d", None, "infinite"),
        ("e", 2.0, None),
        ("f", None, "no pairs"),
    ]


@pytest.mark.parametrize("content", ["[]", "{}", "null", '{"schema": "x"}', '{"schema": 1}'])
def test_a_run_json_of_another_kind_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UsageError, match="must hold an object with `schema` and `configuration`"):
        read_run(tmp_path)


def test_a_part_with_damaged_pages_is_named_and_the_rest_read(tmp_path):
    run = create_run(tmp_path / "run", command="x", configuration={}, seed=0, started="now")
    for step in range(2):
        run.write("metrics", step, metric_rows(step, {f"n{i}": i / 7 for i in range(500)}))
    part = parts(run.path, "metrics")[0]
    content = part.read_bytes()
    middle = len(content) // 4
    part.write_bytes(content[:middle] + b"\0" * middle + content[2 * middle :])
    with pytest.warns(UserWarning, match="step-00000000.parquet cannot be read and is left out"):
        assert read(run.path, "metrics").collect()["step"].unique().to_list() == [1]


@pytest.mark.parametrize("step", [-1, -100])
def test_a_step_that_is_no_number_of_steps_is_refused(tmp_path, step):
    with pytest.raises(ValueError, match="`step` must be a whole number"):
        Run(tmp_path).write("metrics", step, [{"name": "a", "value": 1.0}])


def test_a_value_of_another_type_than_its_column_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Table 'metrics' has columns"):
        Run(tmp_path).write("metrics", 1, [{"name": "a", "value": "x"}])
    assert not list(tmp_path.iterdir())


def test_a_configuration_that_json_cannot_hold_leaves_no_folder(tmp_path):
    with pytest.raises(TypeError, match="has no JSON form"):
        create_run(
            tmp_path / "run", command="x", configuration={"a": object()}, seed=0, started="now"
        )
    assert not (tmp_path / "run").exists()


def test_a_changed_configuration_is_named_in_few_words(tmp_path):
    fields = {f"field{i}": i for i in range(20)}
    create_run(tmp_path / "run", command="x", configuration=fields, seed=0, started="now")
    with pytest.raises(UsageError, match=r"field0 \(0 -> None\).*, 4 more\.$"):
        reopen_run(tmp_path / "run", {})


def test_what_a_killed_writer_left_is_gone_once_the_run_goes_on(tmp_path):
    run = create_run(tmp_path / "run", command="x", configuration={}, seed=0, started="now")
    left = run.path / "metrics" / "step-00000000.7.tmp"
    left.parent.mkdir()
    left.write_bytes(b"half")
    reopen_run(run.path, {})
    assert not left.exists()


def test_half_a_run_json_of_a_killed_writer_is_no_run(tmp_path):
    (tmp_path / "run.4711.tmp").write_text('{"schema"')
    run = create_run(tmp_path, command="c", configuration={}, seed=0, started="now")
    assert [path.name for path in run.path.iterdir()] == ["run.json"]
    (tmp_path / "run.4712.tmp").write_text("half an end")
    reopen_run(tmp_path, {})
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_fields_that_may_change_and_what_a_configuration_means_now(tmp_path):
    create_run(tmp_path, command="c", configuration={"a": {"b": 1}}, seed=0, started="now")
    with pytest.raises(UsageError, match=r"another configuration: a.b \(1 -> 2\)"):
        reopen_run(tmp_path, {"a": {"b": 2}})
    reopen_run(tmp_path, {"a": {"b": 2}}, free=["a.b"])
    reopen_run(tmp_path, {"a": {"b": 2}}, understood=lambda stored: {"a": {"b": 2}})
