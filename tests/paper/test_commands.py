import pytest
import typer
from typer.testing import CliRunner

from paper import commands
from tests.paper import synthetic
from twinstats.errors import UsageError


def call(name, *arguments):
    app = typer.Typer()
    app.command()(getattr(commands, name))
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_figures_says_what_it_drew_and_what_not(all_runs, tmp_path):
    done = call(
        "figures", all_runs / "studies", "--out", tmp_path / "out", "--figure", "leaderboard"
    )
    assert done.exit_code == 0
    assert done.output == f"leaderboard: {tmp_path / 'out' / 'leaderboard'}.pdf\n"
    assert (tmp_path / "out" / "leaderboard.pdf").is_file()


@pytest.fixture
def small(tmp_path):
    return synthetic.study_run(tmp_path / "small", leaderboard=synthetic.leaderboard_rows())


def test_missing_logs_are_said_and_no_failure(small, tmp_path):
    done = call("figures", small, "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert "not drawn, what they need is not in the logs: complexity, variance, " in done.output
    said = (tmp_path / "out" / "figures.json").read_text()
    assert "learning: no metrics in small; make it with `twice train" in said


def test_report_writes_the_page(small, tmp_path):
    done = call("report", small, "--out", tmp_path / "page.html")
    assert done.exit_code == 0
    assert done.output == f"report: {tmp_path / 'page.html'}\n"


def test_what_is_no_run_is_wrong_usage(tmp_path):
    done = call("figures", tmp_path, "--out", tmp_path / "out")
    assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize("name", ["figures", "report"])
def test_every_command_has_a_line_of_help(name):
    assert getattr(commands, name).__doc__.endswith(".")
