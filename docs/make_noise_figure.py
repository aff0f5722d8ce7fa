"""Draws the figure of docs/noise.md: `python docs/make_noise_figure.py`, minutes on a CPU.

Twins of the demo's agent on four-part episodes, forked at the first turn, under five ways of
naming the noise of a token. Only pairs whose first turns differ in length count: there the names
part.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainer import noise
from trainer.config import Config, TaskConfig
from trainer.engines import Engine, SampledTurn, Session
from trainer.policy import Policy
from trainer.rollout import Rollout
from trainer.setup import cache_folder, make_rollout
from trainer.supervised.warmup import warm_policy
from trainer.tasks import rows
from twinstats import paired
from twinstats.episodes import FRESH, SHARED, SLOTS_PER_PART, Episode, Fork, Task
from twinstats.noise import NoiseKey

FOLDER = Path(__file__).parent
CONFIG = Config(recipe="demo", task=TaskConfig(parts=4))
TASKS, ROLLOUTS = 150, 4
COLOURS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#555555")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a turn stands: its slot, its number, and what came before it."""

    slot: int
    turn: int
    num_tokens: int
    num_sampled: int


# Name of a turn and of its first token, from where it stands.
SCHEMES: dict[str, Callable[[Place], tuple[int, int]]] = {
    "slot, position in turn": lambda at: (at.slot, 0),
    "turn number, position in turn": lambda at: (at.turn, 0),
    "position in the sequence": lambda at: (0, at.num_tokens),
    "running generator": lambda at: (0, at.num_sampled),
}
FRESH_LUCK = "fresh luck"


class Renamed:
    """A session whose noise has another name."""

    def __init__(self, session: Session, scheme: Callable[[Place], tuple[int, int]]) -> None:
        self._session, self._scheme = session, scheme
        self._turn = self._num_tokens = self._num_sampled = 0

    def start(self) -> list[int]:
        """The tokens before the first turn."""
        shown = self._session.start()
        self._num_tokens = len(shown)
        return shown

    def key(self) -> tuple[NoiseKey, int]:
        """The key of the turn, and where its positions start."""
        key = self._session.key()
        at = Place(key.turn, self._turn, self._num_tokens, self._num_sampled)
        turn, start = self._scheme(at)
        return dataclasses.replace(key, turn=turn), start

    def advance(self, turn: SampledTurn) -> list[int] | None:
        """Counts the turn and hands it on."""
        shown = self._session.advance(turn)
        self._turn += 1
        self._num_sampled += len(turn.tokens)
        self._num_tokens += len(turn.tokens) + len(shown or ())
        return shown


@dataclasses.dataclass(frozen=True)
class Renaming:
    """An engine whose sessions' noise has another name."""

    engine: Engine
    scheme: Callable[[Place], tuple[int, int]]

    def run(self, sessions: Sequence[Session], *, temperature: float) -> None:
        """Plays all sessions to their ends."""
        renamed = [Renamed(session, self.scheme) for session in sessions]
        self.engine.run(renamed, temperature=temperature)


def draw_token(
    logits: torch.Tensor,
    keys: Sequence[tuple[NoiseKey, int]],
    positions: Sequence[int],
    temperature: float,
) -> torch.Tensor:
    """Keyed noise whose positions start where the key says."""
    at = [start + position for (_, start), position in zip(keys, positions, strict=True)]
    return noise.sample(logits, [key for key, _ in keys], at, temperature)


def world(policy: Policy, scheme: Callable[[Place], tuple[int, int]]) -> Rollout:
    """The demo's rollout with renamed noise."""
    rollout = make_rollout(policy, CONFIG, sampler=draw_token)
    rollout.engine = Renaming(rollout.engine, scheme)
    return rollout


def twins(rollout: Rollout, luck: object) -> list[tuple[Episode, Episode]]:
    """Factuals and twins of their first turn, where the two first turns differ in length."""
    tasks = [Task(*row) for row in rows.task_rows("train", 4, key="noise figure")[:TASKS]]
    factuals = rollout.play(tasks, ROLLOUTS, 0)
    forks = [Fork(episode, 0, luck=luck) for episode in factuals]
    pairs = zip(factuals, rollout.fork(forks), strict=True)
    return [(f, t) for f, t in pairs if f.turns[0].num_tokens != t.turns[0].num_tokens]


def same_turns(pairs: Sequence[tuple[Episode, Episode]]) -> dict[int, list[bool]]:
    """For each slot after the first: is the twin's turn there, token by token, the factual's?"""
    found: dict[int, list[bool]] = {}
    for factual, twin in pairs:
        said = {twin.slot(number): turn.action for number, turn in enumerate(twin.turns)}
        for number, turn in enumerate(factual.turns):
            if number:
                found.setdefault(factual.slot(number), []).append(
                    said.get(factual.slot(number)) == turn.action
                )
    return found


def draw_raster(axes: Axes, pairs: Sequence[tuple[Episode, Episode]], slots: list[int]) -> None:
    """One row a pair, one column a slot: the same turn, another, or none."""
    cells = np.full((len(pairs), len(slots)), np.nan)
    for row, pair in enumerate(pairs):
        for slot, same in same_turns([pair]).items():
            if slot in slots:
                cells[row, slots.index(slot)] = float(same[0])
    order = np.argsort(-np.nanmean(np.where(np.isnan(cells), 0, cells), axis=1), kind="stable")
    colours = matplotlib.colors.ListedColormap(["#E8A06B", "#2C7FB8"])
    axes.imshow(cells[order], aspect="auto", cmap=colours, vmin=0, vmax=1, interpolation="none")
    axes.set_xticks([])
    axes.set_yticks([])


def label(slot: int) -> str:
    """A slot as a reader counts: part, then turn within it."""
    return f"{slot // SLOTS_PER_PART + 1}.{slot % SLOTS_PER_PART + 1}"


def draw_shares(axes: Axes, found: dict[str, dict[int, list[bool]]], slots: list[int]) -> None:
    """How often the twin's turn is the factual's, slot by slot, with 95% intervals."""
    for number, (name, same) in enumerate(found.items()):
        results = [paired(same[slot], [0] * len(same[slot])) for slot in slots]
        middle = np.array([result.estimate for result in results])
        ends = np.array([result.confidence_interval() for result in results]).T
        axes.errorbar(
            np.arange(len(slots)) + 0.06 * (number - 2),
            middle,
            yerr=np.abs(ends - middle),
            color=COLOURS[number],
            marker="o",
            capsize=2,
            label=name,
        )
    axes.set_xticks(range(len(slots)), [label(slot) for slot in slots])
    axes.set(
        xlabel="part.turn after the fork at 1.1",
        ylabel="twin's turn is the factual's",
        ylim=(-0.02, 1.02),
    )
    axes.spines[["top", "right"]].set_visible(False)


def draw(played: dict[str, list[tuple[Episode, Episode]]]) -> Figure:
    """A raster of pairs a scheme, and below them the shares; prints the shares of all slots."""
    found = {name: same_turns(pairs) for name, pairs in played.items()}
    common = [{slot for slot, same in one.items() if len(same) >= 40} for one in found.values()]
    slots = sorted(set.intersection(*common))
    figure = plt.figure(figsize=(11, 7), layout="constrained")
    grid = figure.add_gridspec(2, len(played), height_ratios=(2, 3))
    for number, (name, pairs) in enumerate(played.items()):
        raster = figure.add_subplot(grid[0, number])
        draw_raster(raster, pairs[:60], slots)
        share = np.mean([same for slot in slots for same in found[name][slot]])
        raster.set_title(name, fontsize=9)
        raster.set_xlabel(f"{share:.0%} of later turns the same", fontsize=9)
        print(f"{name}: {len(pairs)} pairs, {share:.3f} of later turns the same")
    lines = figure.add_subplot(grid[1, :])
    draw_shares(lines, found, slots)
    handles, names = lines.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    figure.suptitle(
        "Later turns of a twin: the factual's tokens (blue), others (orange), no such turn (white)",
        fontsize=11,
    )
    return figure


def main() -> None:
    """Plays, prints the shares, and writes docs/resynchronisation.png."""
    policy = warm_policy(CONFIG, cache_folder())
    played = {name: twins(world(policy, scheme), SHARED) for name, scheme in SCHEMES.items()}
    played[FRESH_LUCK] = twins(world(policy, next(iter(SCHEMES.values()))), FRESH)
    draw(played).savefig(FOLDER / "resynchronisation.png", dpi=150)


if __name__ == "__main__":
    main()
