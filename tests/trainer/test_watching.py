"""Watching a run: the progress line, trackers, `twice watch`."""

import dataclasses
import sys
import types

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer.commands import watch as command
from trainer.commands.progress import note, training_progress
from trainer.commands.watch import drawing, sparkline
from trainer.config import changed
from trainer.loop.trackers import check_tracker, tracking
from trainer.loop.watch import Log
from twinstats.errors import UsageError
from twinstats.records import Run, create_run, metric_rows

METRICS = {
    "train/outcome_share": 0.25,
    "train/total_tokens": 1200.0,
    "pairs/rho_eff_ratio": float("nan"),
    "pairs/discordance_share": 0.5,
}


@pytest.fixture
def run(tmp_path, config):
    """A run that has just begun."""
    configuration = dataclasses.asdict(config)
    return create_run(
        tmp_path / "run", command="x", configuration=configuration, seed=0, started="t"
    )


def log(run, step, **metrics):
    run.write("metrics", step, metric_rows(step, METRICS | metrics))


# The progress line


def test_a_step_in_a_line_leaves_out_what_is_unknown():
    assert note(3, METRICS) == "step 3  reward .250  discordance .500  tokens 1,200"
    told = METRICS | {"pairs/rho_eff_ratio": 0.8125, "eval/exact_match_share": 1.0}
    assert "reward .250  test 1.000  rho_eff .812  discordance" in note(3, told)
    told |= {"eval/outcome_share": -2.5}
    assert "reward .250  test outcome -2.500  test exact match 1.000  rho_eff" in note(3, told)


def test_a_run_is_over_with_its_steps_or_its_tokens(config):
    assert config.length.share_done(step=1, total_tokens=9e9) == 0.25
    limited = changed(config, ["length.total_tokens=100"]).length
    told = [limited.share_done(step=1, total_tokens=tokens) for tokens in (10, 50, 200)]
    assert told == [0.25, 0.5, 1.0]


def test_outside_a_terminal_a_line_comes_at_first_and_last_and_every_ten_seconds(config, capsys):
    now = [0.0]
    long = changed(config, ["length.steps=6"])
    with training_progress(long, clock=lambda: now[0]) as on_step:
        for step in range(1, 7):
            tested = {"eval/outcome_share": 0.5} if step == 5 else {}
            on_step(step, METRICS | tested)
            now[0] += 5
    told = capsys.readouterr()
    steps = [int(line.split("step ")[1].split()[0]) for line in told.err.splitlines()]
    assert steps == [1, 3, 5, 6] and not told.out


# TensorBoard


def scalars(folder, name):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(one.step, one.value) for one in events.Scalars(name)]


def test_tensorboard_shows_every_metric_that_is_known(config, run):
    with tracking(config, run.path, -1) as track:
        track(0, {"eval/exact_match_share": 0.5})
        track(1, METRICS)
    assert scalars(run.path, "train/outcome_share") == [(1, 0.25)]
    assert scalars(run.path, "eval/exact_match_share") == [(0, 0.5)]
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert "pairs/rho_eff_ratio" not in events.Tags()["scalars"]


def test_a_resumed_run_has_no_step_twice_in_tensorboard(config, run):
    with tracking(config, run.path, -1) as track:
        for step in (1, 2, 3):
            track(step, METRICS)
    with tracking(config, run.path, 1) as track:  # killed after step 3, saved at step 1
        for step in (2, 3, 4):
            track(step, METRICS | {"train/outcome_share": 0.75})
    found = scalars(run.path, "train/outcome_share")
    assert found == [(1, 0.25), (2, 0.75), (3, 0.75), (4, 0.75)]


def test_without_trackers_nothing_is_written(config, run):
    before = sorted(run.path.rglob("*"))
    with tracking(changed(config, ["log.tensorboard=false"]), run.path, -1) as track:
        track(1, METRICS)
    assert sorted(run.path.rglob("*")) == before


# Services


class Service(types.ModuleType):
    """Stands for a tracker's module and notes its calls."""

    def __init__(self, name):
        super().__init__(name)
        self.calls = []

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *given, **named: self.calls.append((name, given, named))


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_service_gets_configuration_and_metrics_and_is_closed(config, run, monkeypatch, name):
    service = Service(name)
    monkeypatch.setitem(sys.modules, name, service)
    own = changed(config, [f"log.tracker={name}", "log.tensorboard=false"])
    with pytest.raises(ZeroDivisionError), tracking(own, run.path, -1) as track:
        track(2, METRICS)
        raise ZeroDivisionError
    (start, _, options), (log, given, at), (end, _, _) = service.calls
    assert (start, log, end) == ("init", "log", "finish")
    assert options["config"]["recipe"] == "demo" and options["name"].startswith("run-")
    assert given[0]["train/outcome_share"] == 0.25 and at == {"step": 2}
    assert "pairs/rho_eff_ratio" not in given[0]
    service.calls.clear()
    with tracking(own, run.path, 2):  # resumed: the same run of the service
        pass
    assert service.calls[0][2] == options


def test_a_tracker_that_is_not_installed_is_one_sentence(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    own = changed(config, ["log.tracker=wandb"])
    with pytest.raises(UsageError, match=r"needs the package wandb: pip install 'twinstats\[wandb"):
        check_tracker(own)
    check_tracker(config)


# Watch


def shown(view):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(drawing(view))
    return console.export_text()


def test_a_curve_is_scaled_between_its_least_and_its_largest():
    points = list(enumerate([0.0, 0.5, None, 1.0]))
    assert sparkline(points) == "▁▅ █"
    assert sparkline([(0, 2.0), (1, 2.0)]) == "▅▅"
    assert sparkline([(0, None)]) == "" and sparkline([]) == ""
    assert sparkline(list(enumerate([0.0, 0.0, 1.0, 1.0])), length=2) == "▁█"


def test_a_run_that_has_just_begun_can_be_watched(run):
    told = shown(Log(run.path).look())
    assert "Nothing is logged yet" in told and "step 0 of 4" in told


def test_a_run_is_watched_while_it_is_written(run):
    looker = Log(run.path)
    for step, reward in ((1, 0.0), (2, 1.0)):
        log(run, step, **{"train/outcome_share": reward, "time/play_seconds": 3.0})
        (run.path / "metrics" / "step-00000009.77.tmp").write_bytes(b"half")
        view = looker.look()
        assert view.step == step and view.last("train/outcome_share") == reward
    told = shown(view)
    assert "step 2 of 4" in told and "▁█" in told and "1,200 tokens" in told
    assert "play" in told and "3.00 s" in told and "rho_eff" not in told


def test_an_evaluation_is_no_part_of_the_time_of_a_step(run):
    times = {"play": 1.5, "evaluation": 7.25, "step": 1.5}
    log(run, 1, **{f"time/{name}_seconds": value for name, value in times.items()})
    told = [" ".join(line.split()) for line in shown(Log(run.path).look()).splitlines()]
    whole = next(line for line, text in enumerate(told) if "time of a step 1.50 s" in text)
    assert "play 1.50 s" in told[whole + 1]
    assert "evaluation, besides 7.25 s" in told[whole + 2]
    log(run, 2, **{"time/evaluation_seconds": 0.0, "time/step_seconds": 1.0})
    assert "evaluation" not in shown(Log(run.path).look())


def test_parts_are_read_once_and_again_where_a_resumed_run_wrote_them_anew(run, monkeypatch):
    from trainer.loop import watch

    read = []
    plain = watch._values
    monkeypatch.setattr(watch, "_values", lambda part: read.append(part.name) or plain(part))
    looker = Log(run.path)
    log(run, 1)
    log(run, 2)
    looker.look()
    looker.look()
    assert len(read) == 2
    run.rewind(1)
    assert looker.look().step == 1
    log(run, 2, **{"train/outcome_share": 0.75})
    assert looker.look().last("train/outcome_share") == 0.75 and len(read) == 3


def test_the_last_twin_that_ended_otherwise_is_shown_as_plain_text(run):
    log(run, 1)
    rows = [
        {"kind": "twin", "factual": "1/0", "twin": twin, "turn": 1, "equal": equal,
         "factual_outcome": 0.0, "twin_outcome": outcome}
        for twin, equal, outcome in (
            ("1/0/a", True, 0.0), ("1/0/b", False, 0.0), ("1/0/c", False, 1.0)
        )
    ]  # fmt: skip
    run.write("pairs", 1, rows)
    told = {"1/0": "[red]XAF\x1b[2J", "1/0/a": "equal", "1/0/b": "same end", "1/0/c": "EUR"}
    texts = [
        {"episode": episode, "turn": 1, "role": "action", "text": text}
        for episode, text in told.items()
    ]
    texts.append({"episode": "1/0", "turn": 1, "role": "observation", "text": "question"})
    run.write("texts", 1, texts)
    pair = Log(run.path).look().pair
    assert (pair.twin, pair.outcomes, pair.observation) == ("EUR", (0.0, 1.0), "question")
    shown_text = shown(Log(run.path).look())
    assert "[red]XAF" in shown_text and "\x1b[2J" not in shown_text


def test_watching_ends_with_the_run(run, monkeypatch, capsys):
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        log(run, len(looks))
        if len(looks) == 2:
            run.finish("later")

    monkeypatch.setattr(command.time, "sleep", sleep)
    command.watch(run.path, once=False, every=0.5)
    assert looks == [0.5, 0.5]
    assert "finished" in capsys.readouterr().out


def test_once_shows_and_ends(run, capsys):
    command.watch(run.path, once=True)
    assert "step 0 of 4" in capsys.readouterr().out


def test_what_is_no_run_cannot_be_watched(tmp_path):
    with pytest.raises(UsageError, match="is no run"):
        command.watch(tmp_path, once=True)


def test_a_damaged_part_is_named_and_the_rest_is_shown(run):
    log(run, 1)
    Run(run.path).part("metrics", 2).write_bytes(b"half")
    with pytest.warns(UserWarning, match="step-00000002.parquet cannot be read"):
        assert Log(run.path).look().last("train/outcome_share") == 0.25
