"""Turns grouped by the state they were taken in: what GiGPO and its relatives share.

The anchor of a turn is `Turn.state`, what the environment showed before the action. Leaves out
how a group of turns is turned into credit beyond centring and scaling it.
"""

from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher
from functools import partial
from typing import Any, Literal

import numpy as np

from twinstats.credit._checks import at_least_zero
from twinstats.credit.baseline import centred, group_info, outcomes, standardised
from twinstats.episodes import Credit, Episode, Group
from twinstats.errors import unknown

Mode = Literal["mean_norm", "mean_std_norm"]
Norm = Callable[[np.ndarray], np.ndarray]


def norm(mode: Mode, *, ddof: int = 1, epsilon: float = 1e-6) -> Norm:
    """What centres a group of values ("mean_norm") or also scales it ("mean_std_norm").

    Raises:
        UsageError: An unknown mode.
        ValueError: A negative epsilon.
    """
    if mode not in ("mean_norm", "mean_std_norm"):
        raise unknown("mode", mode, ("mean_norm", "mean_std_norm"))
    at_least_zero(epsilon=epsilon)
    return centred if mode == "mean_norm" else partial(standardised, ddof=ddof, epsilon=epsilon)


def by_row(group: Group) -> list[Episode]:
    """The scored episodes, by row so that the group's order changes no bit."""
    played = [episode for episode in group.episodes if episode.outcome is not None]
    return sorted(played, key=lambda episode: (episode.row, episode.path))


def anchors(
    method: str, episodes: Sequence[Episode], similarity: float | None = None
) -> list[Hashable]:
    """The state of every turn, episode by episode; similar texts share one with `similarity`.

    Greedy clusters: a text joins the first cluster whose first member it resembles (difflib ratio
    at least `similarity`), else it opens one.

    Raises:
        ValueError: A null state, or one that is no text where texts are compared.
    """
    states = [turn.state for episode in episodes for turn in episode.turns]
    if None in states:
        raise ValueError(
            f"Method {method!r} needs anchor states (`Turn.state`, what the environment showed "
            f"before the action), which the world left null in task {episodes[0].task.id!r}."
        )
    if similarity is None:
        return states
    heads: list[str] = []
    known: dict[Hashable, str] = {}
    for state in states:
        if not isinstance(state, str):
            raise ValueError(f"`similarity` compares texts, got a state {state!r}.")
        if state not in known:
            known[state] = _head(state, heads, similarity)
    return [known[state] for state in states]


def _head(text: str, heads: list[str], similarity: float) -> str:
    for head in heads:
        if SequenceMatcher(None, text, head).ratio() >= similarity:
            return head
    heads.append(text)
    return text


def within(labels: Sequence[Hashable], values: np.ndarray, norm: Norm) -> np.ndarray:
    """Each value against those with its label; 0 for one that is alone, or among equals.

    >>> within(["a", "b", "a"], np.array([1.0, 5.0, 0.0]), centred).tolist()
    [0.5, 0.0, -0.5]
    """
    result, plain = np.zeros(len(values)), values.tolist()
    for members in positions(labels).values():
        if len({plain[member] for member in members}) > 1:
            result[members] = norm(values[members])
    return result


def positions(labels: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Where each label stands, labels in order of first appearance."""
    found: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        found.setdefault(label, []).append(index)
    return found


def episode_term(group: Group, norm: Norm, *, cross_steps: bool) -> dict[int, float]:
    """Each episode's outcome against the group's, by `id(episode)`.

    `cross_steps` counts an outcome once for every turn of its episode, so that long episodes
    weigh more in mean and deviation.
    """
    values = outcomes(group.episodes)
    lengths = [max(e.num_turns, 1) if cross_steps else 1 for e in group.episodes]
    normed = norm(np.repeat(values, lengths))[np.cumsum([0, *lengths[:-1]])]
    return {id(e): float(value) for e, value in zip(group.episodes, normed, strict=True)}


def per_turn(episodes: Sequence[Episode], values: dict[int, float]) -> np.ndarray:
    """Values of episodes, repeated for every turn."""
    return np.array([values[id(e)] for e in episodes for _ in e.turns], np.float64)


def credit_of_turns(
    group: Group,
    episodes: Sequence[Episode],
    values: np.ndarray,
    labels: Sequence[Hashable],
) -> Credit:
    """Credit from the values of all turns of `episodes`; null for the group's other members."""
    ends = np.cumsum([episode.num_turns for episode in episodes])
    parts = np.split(values, ends[:-1])
    found = {id(episode): part for episode, part in zip(episodes, parts, strict=True)}
    credits = [found.get(id(e), np.full(e.num_turns, np.nan)) for e in group.episodes]
    info = group_info(group) | _state_info(labels)
    return Credit(episodes=group.episodes, values=credits, info=info)


def _state_info(labels: Sequence[Hashable]) -> dict[str, Any]:
    """How often states came again: without that, grouping by state compares nothing."""
    sizes = [len(members) for members in positions(labels).values()]
    return {"num_states": len(sizes), "num_shared_turns": sum(size for size in sizes if size > 1)}
