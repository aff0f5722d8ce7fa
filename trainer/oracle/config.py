"""How much an oracle study plays, and of what: settings and the tasks of their batches."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from trainer.config import Config
from trainer.oracle.methods import KNOBS
from trainer.oracle.reference import MOST_ROLLOUTS
from trainer.tasks import ENVIRONMENTS
from trainer.tasks.choice import source_of
from twinstats.episodes import Task
from twinstats.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleConfig:
    """How much an oracle study plays.

    Attributes:
        episodes: Episodes of each setting, at least: a whole number of batches is played.
        rollouts: Fresh rollouts of every state, for the reference.
        groups: Tasks of a batch.
        group_size: Episodes of each.
        largest_knob: Methods are played at the values of `methods.KNOBS` up to this one.

    Raises:
        UsageError: A number with which nothing can be measured; the field is named.
    """

    episodes: int = 200
    rollouts: int = 64
    groups: int = 2
    group_size: int = 4
    largest_knob: int = 9

    def __post_init__(self) -> None:
        _check_counts(
            self,
            "oracle",
            least={"rollouts": 2, "group_size": 2},
            most={"rollouts": MOST_ROLLOUTS, "largest_knob": KNOBS[-1]},
        )

    @property
    def num_batches(self) -> int:
        """Batches of each setting."""
        return -(-self.episodes // (self.groups * self.group_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorConfig:
    """How much a study of the replay's floor plays: `floor.NAME=VALUE`.

    Attributes:
        episodes: Episodes of each variant, at least: a whole number of batches is played.
        twins: Twins of every turn, each with a control.
        groups: Tasks of a batch, with one episode each: episodes are independent.

    Raises:
        UsageError: A number with which nothing can be measured; the field is named.
    """

    episodes: int = 40
    twins: int = 4
    groups: int = 8

    def __post_init__(self) -> None:
        _check_counts(self, "floor", most={"twins": MOST_ROLLOUTS})

    @property
    def num_batches(self) -> int:
        """Batches of each variant."""
        return -(-self.episodes // self.groups)


def _check_counts(
    study: OracleConfig | FloorConfig,
    name: str,
    *,
    least: Mapping[str, int] = MappingProxyType({}),
    most: Mapping[str, int],
) -> None:
    """Refuses counts below `least` (1 where it has none) or above `most`."""
    for item in dataclasses.fields(study):
        value, low = getattr(study, item.name), least.get(item.name, 1)
        if value < low:
            raise UsageError(f"`{name}.{item.name}` must be at least {low}, got {value}.")
        if value > most.get(item.name, value):
            raise UsageError(
                f"`{name}.{item.name}` must be at most {most[item.name]}, got {value}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleStudy:
    """What `twice oracle` takes besides the configuration of a run: `oracle.NAME=VALUE`."""

    oracle: OracleConfig = field(default_factory=OracleConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorStudy:
    """What `twice oracle --floor` takes in its place: `floor.NAME=VALUE`."""

    floor: FloorConfig = field(default_factory=FloorConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One task that is played: its configuration and the names that rows have for it."""

    name: str
    world: str
    horizon: int
    config: Config


def settings_of(config: Config) -> list[Setting]:
    """One question an episode, and as many as `task.parts` says if these are more."""
    environment = ENVIRONMENTS[config.task.name]
    return [
        Setting(
            name=f"{config.task.name}, {count} part{'s' * (count > 1)}",
            world=config.task.name,
            horizon=environment.max_turns * count,
            config=dataclasses.replace(config, task=dataclasses.replace(config.task, parts=count)),
        )
        for count in sorted({1, config.task.parts})
    ]


def batch_tasks(setting: Setting, study: OracleConfig | FloorConfig) -> list[list[Task]]:
    """The tasks of each batch, test questions in an order that depends on the seed alone.

    Raises:
        UsageError: There are not as many.
    """
    count, config = study.num_batches * study.groups, setting.config
    rows = source_of(config.task).test(key=f"oracle/{config.seed}")
    if count > len(rows):
        name = "oracle" if isinstance(study, OracleConfig) else "floor"
        raise UsageError(
            f"`{name}.episodes` must need at most {len(rows)} tasks, which is all there are of "
            f"{setting.name}, got {study.episodes} episodes of {count} tasks."
        )
    tasks = [Task(row.id, row.info) for row in rows[:count]]
    return [tasks[start : start + study.groups] for start in range(0, count, study.groups)]
