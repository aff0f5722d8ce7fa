import json
import shutil

import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

import simulations.sweep as sweep
from simulations.commands import run_studies, simulate, study_list
from simulations.studies import STUDIES, leaderboard, learning, load_study, settings_of
from simulations.studies._leaderboard_entrants import Sweep
from simulations.worlds.errand_model import ErrandSetting
from twinstats.credit import METHODS
from twinstats.errors import UsageError
from twinstats.records import Run, parts, read

NAMES = ["variance", "complexity"]


def tables(path):
    return {p.name: read(path, p.name).drop("run").collect() for p in path.iterdir() if p.is_dir()}


def played(names, out, **options):
    given = {"which": "quick", "seed": 3, "workers": 1} | options
    return run_studies(names, out, **given)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return played(NAMES, tmp_path_factory.mktemp("sweep") / "run")


def test_results_do_not_depend_on_the_number_of_workers(reference, tmp_path):
    other = played(NAMES, tmp_path / "run", workers=2)
    first, second = tables(reference), tables(other)
    assert first.keys() == second.keys() == {"variance", "complexity", "complexity_fit"}
    for name in first:
        assert_frame_equal(first[name], second[name], check_exact=True)


def test_every_method_has_the_same_numbers_whatever_the_number_of_workers(tmp_path, monkeypatch):
    """Both studies of credit, with all entrants, in the world that shows sets and texts.

    Workers hash with a seed of their own, so that an order which hangs on it would show.
    """
    world = ErrandSetting(name="errand", horizon=6, is_locked=False, skill=2.0)
    sweep_ = Sweep(groups=(4,), knobs=(1,), ratios=(1,))
    board = leaderboard.Setting(world=world, sweep=sweep_, num_tasks=2, num_steps=1, num_burned=1)
    course = learning.Setting(world=world, total_tokens=100, step_sizes=(4.0,))
    for study, setting in ((leaderboard, board), (learning, course)):
        monkeypatch.setattr(study, "DEMO", (setting,))
        monkeypatch.setitem(study.SEEDS, "demo", 2)
    names = ["leaderboard", "learning"]
    one, two = (
        tables(played(names, tmp_path / str(workers), which="demo", workers=workers))
        for workers in (1, 2)
    )
    assert one.keys() == two.keys() >= {"leaderboard_points", "leaderboard", "learning"}
    assert set(METHODS) <= set(one["leaderboard"]["method"]) & set(one["learning"]["method"])
    for name in one:
        assert_frame_equal(one[name], two[name], check_exact=True)


def test_a_killed_sweep_goes_on_where_it_stopped(reference, tmp_path, monkeypatch):
    out, done = tmp_path / "run", []

    def killed(job):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(job)
        return original(job)

    original = sweep.play
    monkeypatch.setattr(sweep, "play", killed)
    with pytest.raises(KeyboardInterrupt):
        played(NAMES, out)
    assert len(parts(out, "variance")) == 3
    monkeypatch.setattr(sweep, "play", lambda job: done.append(job) or original(job))
    played(NAMES, out, resume=True)
    total = sum(len(sweep.study_jobs(name, "quick", 3)) for name in NAMES)
    assert len(done) == total and len({(t.table, t.step) for t in done}) == total
    first, second = tables(reference), tables(out)
    for name in first:
        assert_frame_equal(first[name], second[name], check_exact=True)


def test_a_lost_part_is_played_again(reference, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(reference, out)
    parts(out, "variance")[1].unlink()
    played(NAMES, out, resume=True)
    assert_frame_equal(tables(reference)["variance"], tables(out)["variance"], check_exact=True)


def test_a_part_that_was_cut_short_is_played_again(reference, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(reference, out)
    cut = parts(out, "variance")[1]
    cut.write_bytes(cut.read_bytes()[:500])
    with pytest.warns(UserWarning, match=f"{cut.name} cannot be read"):
        played(NAMES, out, resume=True)
    assert_frame_equal(tables(reference)["variance"], tables(out)["variance"], check_exact=True)


def test_what_a_study_summarises_does_not_name_the_folder(reference):
    rows = [row for part in sweep._in_order(Run(reference), "variance") for row in part]
    assert rows and "run" not in rows[0]


def test_a_full_folder_is_refused_without_resume(reference):
    with pytest.raises(UsageError, match="already exists"):
        played(NAMES, reference)


def test_resume_refuses_another_configuration(reference):
    with pytest.raises(UsageError, match="another configuration: seed"):
        played(NAMES, reference, resume=True, seed=4)


def test_run_json_says_what_was_played(reference):
    description = json.loads((reference / "run.json").read_text())
    assert description["command"] == "simulate variance complexity"
    assert description["started"] and description["finished"]
    assert description["configuration"]["which"] == "quick"
    assert set(description["configuration"]["studies"]) == set(NAMES)


def test_seeds_of_two_runs_never_overlap():
    first = {job.seed for job in sweep.study_jobs("unbiased", "full", 0)}
    assert not first & {job.seed for job in sweep.study_jobs("unbiased", "full", 1)}


def test_settings_have_names_of_their_own():
    for name in STUDIES:
        study = load_study(name)
        for which in ("full", "quick", "demo"):
            names = [setting.name for setting in settings_of(study, which)]
            assert len(set(names)) == len(names) and study.SEEDS[which] >= 1


def app():
    import typer

    program = typer.Typer()
    program.command()(simulate)
    return program


def test_without_a_study_the_studies_are_listed():
    result = CliRunner().invoke(app(), [])
    assert result.exit_code == 0 and result.stdout.strip() == study_list()
    assert [line.split()[0] for line in study_list().splitlines()] == list(STUDIES)


def test_wrong_usage_is_one_sentence():
    for arguments, message in (
        (["varience", "--out", "x"], "Did you mean 'variance'"),
        (["variance"], "`--out` is missing"),
        (["variance", "--ray", "auto"], "not in this version"),
    ):
        result = CliRunner().invoke(app(), arguments)
        assert isinstance(result.exception, UsageError) and message in str(result.exception)
        assert "\n" not in str(result.exception)


def test_the_command_runs(tmp_path):
    arguments = ["complexity", "--quick", "--workers", "1", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app(), arguments)
    assert result.exit_code == 0, result.exception
    assert read(tmp_path / "run", "complexity_fit").collect().height == 4
