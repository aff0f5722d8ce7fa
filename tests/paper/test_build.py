import json
import shutil

import polars as pl
import pytest

from paper import logs
from paper.build import build_figures
from paper.figures import FIGURES
from paper.tables import TABLES
from tests.paper import oracle_logs, synthetic
from twinstats.errors import UsageError


@pytest.fixture(scope="module")
def built(all_runs, tmp_path_factory):
    return build_figures([all_runs], tmp_path_factory.mktemp("built") / "figures")


def test_every_figure_has_its_files_and_no_other(built):
    assert built.figures == tuple(FIGURES)
    kinds = ("csv", "pdf", "png", "txt")
    expected = {f"{name}.{kind}" for name in FIGURES for kind in kinds} | {"figures.json"}
    expected |= {f"table_{name}.{kind}" for name in TABLES for kind in ("csv", "md", "tex")}
    assert {file.name for file in built.out.iterdir()} == expected
    assert not list(built.out.parent.glob(".*"))


def test_the_csv_is_the_table(built, all_runs):
    table = FIGURES["complexity"].table(logs.expand([all_runs]))
    assert pl.read_csv(built.out / "complexity.csv").equals(table)


def test_every_log_part_and_file_has_its_digest(built, all_runs):
    content = json.loads((built.out / "figures.json").read_text())
    runs = logs.expand([all_runs])
    for name, module in FIGURES.items():
        assert content["figures"][name]["logs"] == logs.digests(runs, module.NEEDS)
        for file, digest in content["figures"][name]["files"].items():
            assert logs.digest((built.out / file).read_bytes()) == digest
    for name, module in TABLES.items():
        assert content["tables"][name]["logs"] == logs.digests(runs, module.NEEDS)
        for file, digest in content["tables"][name]["files"].items():
            assert logs.digest((built.out / file).read_bytes()) == digest
    used = content["figures"]["variance"]["logs"]
    assert "studies/variance/step-00000000.parquet" in used
    assert "twice-0/pairs/step-00000003.parquet" in used
    assert not any("/texts/" in name or "/metrics/" in name for name in used)


def test_another_place_and_order_give_the_same_bytes(built, all_runs, tmp_path):
    copy = tmp_path / "moved"
    shutil.copytree(all_runs, copy)
    again = build_figures([copy / "twice-0", copy / "studies"], tmp_path / "figures")
    for file in built.out.iterdir():
        assert file.read_bytes() == (again.out / file.name).read_bytes(), file.name


def test_another_number_gives_other_digests_and_bytes(built, all_runs, tmp_path):
    copy = tmp_path / "moved"
    shutil.copytree(all_runs, copy)
    part = copy / "studies" / "leaderboard" / "step-00000000.parquet"
    pl.read_parquet(part).with_columns(pl.col("value") * 2).write_parquet(part)
    again = build_figures([copy], tmp_path / "figures", names=["leaderboard"])
    old, new = (
        json.loads((folder / "figures.json").read_text())["figures"]["leaderboard"]
        for folder in (built.out, again.out)
    )
    name = "studies/leaderboard/step-00000000.parquet"
    assert old["logs"][name] != new["logs"][name]
    assert old["files"]["leaderboard.csv"] != new["files"]["leaderboard.csv"]
    assert old["files"]["leaderboard.png"] != new["files"]["leaderboard.png"]


def test_figures_without_logs_are_listed_and_the_rest_is_drawn(tmp_path):
    run = synthetic.study_run(tmp_path / "run", leaderboard=synthetic.leaderboard_rows())
    built = build_figures([run], tmp_path / "figures")
    assert built.figures == ("leaderboard",)
    assert built.missing["learning"] == (
        "learning: no metrics in run; make it with `twice train RECIPE --out runs/NAME`."
    )
    absent = set(FIGURES) - {"leaderboard"} | {f"table_{name}" for name in TABLES}
    assert set(built.missing) == absent
    assert built.missing["table_leaderboard"] == (
        "table leaderboard: no leaderboard_tokens or leaderboard_differences in run; "
        "make it with `twice simulate leaderboard --out runs/leaderboard`."
    )


def test_a_study_too_small_for_a_figure_has_its_others(tmp_path):
    tables = oracle_logs.tables(("facts",), ("f1",), num_episodes=2)
    del tables["oracle_floor"]
    run = synthetic.study_run(tmp_path / "run", **tables)
    built = build_figures([run], tmp_path / "figures")
    assert (built.figures, built.tables) == (("oracle",), ("table_oracle",))
    assert "more oracle.episodes give them" in built.missing["twins"]


def test_a_figure_asked_for_by_name_needs_its_logs(tmp_path):
    run = synthetic.study_run(tmp_path / "run", leaderboard=synthetic.leaderboard_rows())
    with pytest.raises(UsageError, match="no complexity in run; make it with `twice simulate"):
        build_figures([run], tmp_path / "figures", names=["leaderboard", "complexity"])
    assert not (tmp_path / "figures").exists()


def test_a_table_is_asked_for_by_the_name_of_its_files(all_runs, tmp_path):
    built = build_figures([all_runs], tmp_path / "figures", names=["table_training"])
    assert (built.figures, built.tables, built.missing) == ((), ("table_training",), {})
    names = {file.name for file in built.out.iterdir()}
    assert names == {f"table_training.{kind}" for kind in ("csv", "md", "tex")} | {"figures.json"}
    run = synthetic.study_run(tmp_path / "run", other=[{"x": 1}])
    with pytest.raises(UsageError, match="table training: no scores or metrics in run"):
        build_figures([run], tmp_path / "none", names=["table_training"])


def test_nothing_to_draw_is_refused(tmp_path):
    run = synthetic.study_run(tmp_path / "run", other=[{"x": 1}])
    with pytest.raises(UsageError, match="no leaderboard in run"):
        build_figures([run], tmp_path / "figures")


def test_an_unknown_figure_is_refused_with_the_nearest(all_runs, tmp_path):
    with pytest.raises(UsageError, match="Unknown figure 'varience'. Did you mean 'variance'"):
        build_figures([all_runs], tmp_path / "figures", names=["varience"])


def test_a_folder_that_holds_something_is_refused(all_runs, tmp_path):
    out = tmp_path / "figures"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="already exists"):
        build_figures([all_runs], out)
    assert [file.name for file in out.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_taken(tmp_path):
    run = synthetic.study_run(tmp_path / "run", leaderboard=synthetic.leaderboard_rows())
    out = tmp_path / "figures"
    out.mkdir()
    assert build_figures([run], out).figures == ("leaderboard",)


def test_a_failed_build_leaves_nothing(tmp_path):
    rows = [
        row | {"setting": "world \N{HANGUL SYLLABLE GA}"} for row in synthetic.leaderboard_rows()
    ]
    run = synthetic.study_run(tmp_path / "runs" / "run", leaderboard=rows)
    with pytest.raises(ValueError, match="cannot be drawn: Glyph"):
        build_figures([run], tmp_path / "out" / "figures")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_cut_part_is_named_and_the_rest_is_drawn(tmp_path):
    run = synthetic.train_run(tmp_path / "run", method="rloo", steps=6)
    part = run / "metrics" / "step-00000003.parquet"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.warns(UserWarning, match="step-00000003.parquet cannot be read"):
        built = build_figures([run], tmp_path / "figures", names=["learning"])
    content = json.loads((built.out / "figures.json").read_text())
    assert "run/metrics/step-00000003.parquet" not in content["figures"]["learning"]["logs"]
    own = pl.read_csv(built.out / "learning.csv").filter(kind="seed", measure="exact_match")
    assert own["tokens"].to_list() == [0, 6000]
