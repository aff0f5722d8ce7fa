"""The study of what breaks the replay: its variants, its rows, and runs that go on."""

import dataclasses

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from trainer.commands import oracle as commands
from trainer.config import changed
from trainer.oracle import floor as module
from trainer.oracle.config import FloorConfig, batch_tasks, settings_of
from trainer.oracle.floor import NOISY_VARIANTS, VARIANTS, floor, played_rows, summary
from trainer.policy import Policy, build_model
from trainer.tasks.noisy import NoisyFacts
from twinstats import cli
from twinstats.episodes import Task
from twinstats.errors import UsageError
from twinstats.records import create_run, metric_rows, read, read_run

from .conftest import Parity, coin, scripted

SMALL = FloorConfig(episodes=4, twins=1, groups=2)
NAMES = ["exact", "bfloat16", "retokenised", "noisy tool, keyed", "noisy tool, unkeyed"]


def play_parity(patch):
    """All variants play `Parity`, whose luck turns rewards around: that of a random tool too."""
    patch.setattr("trainer.setup.make_environment", lambda name: Parity())
    noisy = [dataclasses.replace(one, environment=Parity) for one in NOISY_VARIANTS]
    patch.setattr(module, "NOISY_VARIANTS", tuple(noisy))


def played_into(out, policy, config, *settings, study=SMALL, **options):
    """Runs a study: -> (run folder, its summary)."""
    source, own = {"recipe": "demo"}, changed(config, settings)
    return out, floor(
        own, policy, out, study=study, source=source, started=lambda: "now", **options
    )


@pytest.fixture
def play(tmp_path, policy, config, monkeypatch):
    play_parity(monkeypatch)
    return lambda name, *settings, **options: played_into(
        tmp_path / name, policy, config, *settings, **options
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tokenizer, config):
    """A finished study, to be read only."""
    with pytest.MonkeyPatch.context() as patch:
        play_parity(patch)
        policy = Policy(build_model(config.model, seed=0), tokenizer)
        return played_into(tmp_path_factory.mktemp("whole") / "run", policy, config)


def frame(out, *but):
    found = read(out, "oracle_floor").collect().drop("run")
    return found.filter(~pl.col("variant").is_in(but))


# Variants


def test_the_tokens_near_a_tie_are_told_of_each_variant(whole):
    out, rows = whole
    shares = {row["variant"]: row["at_risk"] for row in rows}
    assert list(shares) == NAMES and all(0 < share < 0.5 for share in shares.values())
    counts = read(out, "metrics").filter(pl.col("name").str.starts_with("noise/")).collect()
    drawn, at_risk = (
        counts.filter(name=f"noise/{name}_count", step=0)["value"].item()
        for name in ("drawn", "at_risk")
    )
    assert drawn > at_risk > 0


def test_each_variant_changes_one_thing_and_leaves_the_policy_alone(policy, config, monkeypatch):
    monkeypatch.setattr("trainer.setup.make_environment", lambda name: Parity())
    (setting,) = settings_of(config)
    variants = module.variants_of(setting)
    assert [one.name for one in variants] == NAMES
    rollouts = [one.rollout(policy, config) for one in variants]
    dtypes = [one.policy.model.dtype for one in rollouts]
    assert dtypes == [torch.float32, torch.bfloat16, *[torch.float32] * 3]
    assert policy.model.dtype is torch.float32 and rollouts[0].policy is policy
    assert [one._setting.retokenise for one in rollouts] == [False, False, True, False, False]
    assert [one._shares_tools for one in rollouts] == [True] * 4 + [False]
    made = [type(one._setting.environment()) for one in rollouts]
    assert made == [Parity] * 3 + [NoisyFacts] * 2
    assert len({one._setting.limits for one in rollouts}) == 1


def test_a_task_without_a_noisy_tool_has_the_other_variants(config):
    (text,) = settings_of(changed(config, ["task.name=text"]))
    assert module.variants_of(text) == VARIANTS


# Rows


def rows_of(rollout, *, turns=3, twins=2):
    tasks = [Task(str(n), {"turns": turns, "right": "a."}) for n in range(3)]
    return played_rows(rollout, "facts", tasks, 0, twins=twins)


def test_forks_are_twins_with_controls_and_nulls_and_all_play_their_tails():
    rollout, _, _ = scripted(coin)
    asked = []
    play, rollout.fork = rollout.fork, lambda forks: (asked.extend(forks), play(forks))[1]
    rows = rows_of(rollout)
    assert {fork.skip_equal for fork in asked} == {False}
    kinds = [row["kind"] for row in rows if row["outcome"] == "f1"]
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
    assert counts == {"twin": 3 * 3 * 2, "control": 3 * 3 * 2, "null": 3 * 2}
    equal = [row for row in rows if row["kind"] == "twin" and row["equal"] and row["turn"] == 0]
    assert equal and all(row["same_tokens"] and row["tokens"] >= 6 for row in equal)


def test_a_null_twin_whose_engine_answers_otherwise_has_other_tokens():
    def choose(session, key, index):
        is_null = session._fork is not None and index == 1 and session._fork.turn == 0
        return "other." if is_null else "a."

    rollout, _, _ = scripted(choose)
    nulls = [row for row in rows_of(rollout) if row["kind"] == "null" and row["outcome"] == "f1"]
    told = {(row["turn"], row["same_tokens"], row["first_differing"]) for row in nulls}
    assert told == {(0, False, 2), (1, True, None)}  # the second turn of the tail is another
    assert {row["logprob_gap"] for row in nulls} == {0.0}


def test_the_gap_of_log_probabilities_is_the_largest_before_tokens_differ(monkeypatch):
    rollout, engine, _ = scripted(coin)
    run, moved = engine.run, 0.25

    def shifted(sessions, *, temperature):
        for session in sessions:
            advance = session.advance

            def other(turn, session=session, advance=advance):
                is_null = session._fork is not None and session._fork.action.value == "keep"
                logprobs = [one - moved * is_null for one in turn.logprobs]
                logprobs = (*logprobs[:-1], logprobs[-1] - is_null * moved)
                return advance(dataclasses.replace(turn, logprobs=logprobs))

            session.advance = other
        run(sessions, temperature=temperature)

    engine.run = shifted
    rows = rows_of(rollout)
    nulls = [row["logprob_gap"] for row in rows if row["kind"] == "null"]
    assert nulls == pytest.approx([2 * moved] * len(nulls))
    assert {row["logprob_gap"] for row in rows if row["kind"] != "null"} == {None}


def test_no_gap_is_told_of_turns_before_which_something_else_was_shown():
    rollout, _, _ = scripted(lambda *_: "a.", is_random=True)
    rollout._shares_tools = False
    nulls = [row for row in rows_of(rollout) if row["kind"] == "null"]
    assert {row["same_tokens"] for row in nulls} == {True}
    assert {row["logprob_gap"] for row in nulls} == {None}


def test_a_fork_that_fails_is_a_row_with_its_reason_and_no_outcome(tmp_path):
    rollout, _, _ = scripted(coin, drift=lambda turn, shown: f"{shown}{next(ticks)}")
    ticks = iter(range(10000))
    rows = [{"setting": "s", "variant": "v"} | row for row in rows_of(rollout)]
    failed = [row for row in rows if row["reason"] is not None]
    assert {row["turn"] for row in failed} == {1, 2}  # whose prefix was shown otherwise
    assert all("replay differs" in row["reason"] for row in failed)
    blank = ("fork", "equal", "same_tokens", "first_differing", "logprob_gap")
    assert {row[name] for row in failed for name in blank} == {None}
    run = create_run(tmp_path / "r", command="x", configuration={}, seed=0, started="now")
    run.write("oracle_floor", 0, rows)
    run.write("metrics", 0, metric_rows(0, {"time/batch_seconds": 1.0}))
    (told,) = [row for row in summary(run) if row["outcome"] == "f1"]
    assert (told["num_nulls"], told["num_failed"]) == (6, 3) and told["num_differing"] >= 3
    assert told["at_risk"] is None  # no engine told how near its tokens were


# Whole studies


def test_null_twins_are_exact_where_luck_is_keyed_and_are_not_where_a_tool_is_not(whole):
    out, rows = whole
    forks = frame(out)
    assert forks["variant"].unique(maintain_order=True).to_list() == NAMES
    assert forks.unique(["variant", "episode"])["variant"].value_counts()["count"].to_list() == [
        SMALL.episodes
    ] * len(NAMES)
    told = {row["variant"]: row for row in rows if row["outcome"] == "exact_match"}
    for name in ("exact", "noisy tool, keyed"):
        assert (told[name]["num_differing"], told[name]["floor"]) == (0, 0.0)
        assert told[name]["num_nulls"] > 0
    assert set(forks["fork"].is_null()) == {False}


def test_a_tool_with_luck_of_its_own_moves_outcomes_of_null_twins(policy, config, monkeypatch):
    """The reward `Parity` pays is the environment's luck; tokens do not see it."""
    play_parity(monkeypatch)
    monkeypatch.setattr(module, "outcome_of", lambda episode, name: episode.outcome)
    (setting,) = settings_of(changed(config, ["task.parts=2"]))[1:]
    tasks = batch_tasks(setting, SMALL)[0]
    for variant in module.NOISY_VARIANTS:
        rows = played_rows(variant.rollout(policy, setting.config), "facts", tasks, 0, twins=1)
        gaps = [row["factual"] - row["fork"] for row in rows if row["kind"] == "null"]
        assert len(gaps) > 8 and any(gaps) == (not variant.shares_tools)


def test_variants_share_their_factuals(whole):
    """Of tokens alone: a variant in bfloat16 may draw others."""
    forks = frame(whole[0], "bfloat16").select("variant", "episode", "turn", "slot", "tail_tokens")
    first, *others = forks.unique().sort("variant", "episode", "turn").partition_by("variant")
    for other in others:
        assert_frame_equal(first.drop("variant"), other.drop("variant"))
    assert first["tail_tokens"].n_unique() > 2


def test_a_study_has_the_same_numbers_however_the_engine_batches(whole, play):
    slow = ("rollout.max_batch=3", "engine.drafts=false", "engine.cache_mib=0")
    out, _ = play("slow", *slow)
    one, other = (frame(path, "bfloat16").drop("logprob_gap") for path in (whole[0], out))
    assert_frame_equal(one, other)
    largest = frame(out).group_by("variant").agg(pl.col("logprob_gap").max())
    gaps = dict(largest.iter_rows())
    assert gaps["exact"] < 1e-5 < gaps["retokenised"]  # rounding, and another prefix


class KilledError(Exception):
    pass


def test_a_killed_study_goes_on_with_its_first_unfinished_batch(whole, play, tmp_path):
    def killed(done, total, variant):
        if done == 3:
            raise KilledError

    with pytest.raises(KilledError):
        play("killed", on_batch=killed)
    out, played = tmp_path / "killed", []
    (out / "metrics" / "step-00000003.parquet").write_bytes(b"half")
    play("killed", resume=True, on_batch=lambda done, total, variant: played.append(done))
    assert played == list(range(3, 10))
    assert_frame_equal(frame(whole[0]).drop("logprob_gap"), frame(out).drop("logprob_gap"))
    assert read_run(out)["finished"] == "now"
    with pytest.raises(UsageError, match=r"floor.twins \(1 -> 2\)"):
        play("killed", resume=True, study=dataclasses.replace(SMALL, twins=2))


@pytest.mark.parametrize("field", ["episodes", "twins", "groups"])
def test_what_cannot_be_measured_is_refused(field):
    with pytest.raises(UsageError, match=f"`floor.{field}` must be at least 1, got 0"):
        FloorConfig(**{field: 0})


# The command


@pytest.fixture
def called(monkeypatch, capsys, policy, config):
    play_parity(monkeypatch)
    monkeypatch.setattr(commands, "recipe", lambda name: config)
    monkeypatch.setattr(commands, "warmed", lambda config: policy)

    def call(*arguments):
        with pytest.raises(SystemExit) as done:
            cli.main(["oracle", "demo", "--floor", *map(str, arguments)])
        told = capsys.readouterr()
        return done.value.code, told.out, told.err

    return call


def test_the_command_plays_the_variants_and_tells_what_null_twins_did(called, tmp_path):
    settings = ["--set", "floor.episodes=2", "--set", "floor.groups=2", "--set", "floor.twins=1"]
    code, told, error = called("--out", tmp_path / "o", *settings)
    assert (code, error) == (0, "")
    lines = told.splitlines()
    assert len(lines) == 2 * len(NAMES) and lines[0].startswith("facts, 1 part, exact, exact_match")
    assert lines[0].endswith("% of tokens near a tie")
    assert "0 drew other tokens or failed; floor 0.0000; " in lines[0]
    kept = read_run(tmp_path / "o")["configuration"]
    assert kept["floor"] == {"episodes": 2, "twins": 1, "groups": 2} and "oracle" not in kept


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["oracle.episodes=3"], "Unknown configuration key 'oracle.episodes'"),
        (["floor.twin=3"], "Did you mean 'floor.twins'"),
        (["floor.episodes=99999"], "`floor.episodes` must need at most"),
    ],
)
def test_wrong_usage_is_one_sentence(called, tmp_path, settings, message):
    given = [part for one in settings for part in ("--set", one)]
    code, _, error = called("--out", tmp_path / "o", *given)
    assert code == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "o").exists()
