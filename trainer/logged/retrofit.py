"""Credit for logged episodes: they are adopted, forked like factuals, and logged as a run.

Episodes of one task are a group; a step takes `rollout.groups` tasks. Leaves out the file format
(`episode_log`) and learning: a retrofit changes no weights.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from trainer.config import Config
from trainer.logged.episode_log import LoggedEpisode
from trainer.loop.step_log import forks_of, log_step, play_metrics
from trainer.rollout import Rollout
from trainer.setup import make_method
from trainer.tasks.rows import row_by_id
from twinstats.credit import Method, assign
from twinstats.episodes import Credit, Episode, Task, group_by_task
from twinstats.errors import UsageError
from twinstats.records import Run, create_run, metric_rows
from twinstats.rows import null_disagreements

OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrofit:
    """What became of logged episodes.

    Attributes:
        failures: Those that could not be adopted: their place in the file, and why.
        num_turns: Turns of the adopted episodes.
        num_credited: Those that got credit.
        num_forks: Forks played.
        num_null: Null twins among them.
        num_disagreeing: Null twins that did not draw what their factual had.
    """

    failures: tuple[tuple[str, str], ...] = ()
    num_turns: int = 0
    num_credited: int = 0
    num_forks: int = 0
    num_null: int = 0
    num_disagreeing: int = 0

    def __add__(self, other: "Retrofit") -> "Retrofit":
        return Retrofit(
            failures=self.failures + other.failures,
            num_turns=self.num_turns + other.num_turns,
            num_credited=self.num_credited + other.num_credited,
            num_forks=self.num_forks + other.num_forks,
            num_null=self.num_null + other.num_null,
            num_disagreeing=self.num_disagreeing + other.num_disagreeing,
        )


def logged_task(task_id: str, config: Config) -> Task:
    """The task of an id, if it can be played.

    Raises:
        ValueError: No question has such an id, or there are more of them than `task.parts`.
    """
    row = row_by_id(task_id)
    if row.info["parts"] > config.task.parts:
        raise ValueError(
            f"`task` must name at most {config.task.parts} questions, which is `task.parts`, "
            f"got {row.info['parts']}."
        )
    return Task(row.id, row.info)


def retrofit(
    rollout: Rollout,
    config: Config,
    logged: Sequence[LoggedEpisode],
    out: Path,
    *,
    started: Callable[[], str],
    on_step: OnStep | None = None,
) -> Retrofit:
    """Adopts logged episodes, credits them with the configured method, and writes the run `out`.

    All episodes are replayed before anything is written; logits are held for one step at a time.

    Args:
        rollout: Of the policy that sampled them.
        config: How they were sampled, and what credits them.
        logged: The episodes.
        out: A new run folder.
        started: Tells the time, for `run.json`.
        on_step: Gets the number of steps done, and of all.

    Raises:
        UsageError: The folder exists, no episode can be adopted, or a method that compares the
            episodes of a task gets tasks of one episode.
    """
    method = make_method(config)
    steps = _steps(logged, config.rollout.groups)
    _refuse_singletons(steps, method)
    replayed = [rollout.replay(some, step) for step, some in enumerate(steps, start=1)]
    if all(episode.outcome is None for episodes in replayed for episode in episodes):
        place, reason = _failures(steps[0], replayed[0])[0]
        raise UsageError(f"No episode can be adopted; {place}: {reason}.")
    run = create_run(
        out,
        command="twice retrofit",
        configuration=asdict(config),
        seed=config.seed,
        started=started(),
    )
    total = Retrofit()
    for step, (some, episodes) in enumerate(zip(steps, replayed, strict=True), start=1):
        total += _summary(some, *_credited(rollout, method, run, config, episodes))
        if on_step is not None:
            on_step(step, len(steps))
    run.finish(started())
    return total


def _steps(logged: Sequence[LoggedEpisode], groups: int) -> list[list[LoggedEpisode]]:
    """The episodes of each step: those of one task together, in order of first appearance."""
    by_task: dict[str, list[LoggedEpisode]] = {}
    for one in logged:
        by_task.setdefault(one.task.id, []).append(one)
    tasks = list(by_task.values())
    return [
        [one for members in tasks[start : start + groups] for one in members]
        for start in range(0, len(tasks), groups)
    ]


def _refuse_singletons(steps: Sequence[Sequence[LoggedEpisode]], method: Method) -> None:
    counts = Counter(one.task.id for some in steps for one in some)
    lonely = [task for task, count in counts.items() if count == 1]
    if method.compares_members and lonely:
        raise UsageError(
            f"Method {method.name!r} compares the episodes of a task, but {len(lonely)} tasks "
            f"have one episode, such as {lonely[0]}."
        )


def _failures(
    logged: Sequence[LoggedEpisode], episodes: Sequence[Episode]
) -> tuple[tuple[str, str], ...]:
    return tuple(
        (one.place, str(episode.info["reason"]))
        for one, episode in zip(logged, episodes, strict=True)
        if episode.outcome is None
    )


def _credited(
    rollout: Rollout, method: Method, run: Run, config: Config, replayed: Sequence[Episode]
) -> tuple[list[Episode], list[Credit]]:
    """One step: adopts and credits episodes and logs them; returns them and their credit."""
    begun = time.perf_counter()
    step = replayed[0].step
    adopted = rollout.explain(replayed)
    groups = group_by_task(adopted, seed=config.seed, step=step)
    credits = assign(rollout, groups, method)
    method.observe(step, credits)
    log_step(run, step, groups, credits, policy=rollout.policy, config=config)
    metrics = play_metrics(groups, credits)
    metrics["time/step_seconds"] = time.perf_counter() - begun
    run.write("metrics", step, metric_rows(step, metrics))
    return adopted, credits


def _summary(
    logged: Sequence[LoggedEpisode], adopted: Sequence[Episode], credits: Sequence[Credit]
) -> Retrofit:
    forks = forks_of(credits)
    values = [
        own
        for credit in credits
        for episode, own in zip(credit.episodes, credit.values, strict=True)
        if episode.fork is None and episode.outcome is not None
    ]
    num_null, num_disagreeing, _ = null_disagreements(forks)
    return Retrofit(
        failures=_failures(logged, adopted),
        num_turns=sum(map(len, values)),
        num_credited=sum(int(np.isfinite(own).sum()) for own in values),
        num_forks=len(forks),
        num_null=num_null,
        num_disagreeing=num_disagreeing,
    )
