"""Files of episodes that were sampled elsewhere: JSON lines, one episode a line.

    {"task": "TD/currency/name+FR/capital/city1",
     "turns": ["<search>currency of Chad</search>", [17, 301, 9], ...],
     "observations": ["<question>What is the currency of Chad?</question>", null, ...]}

`task` is the id of a task: those of its questions joined by `+`. A turn is the list of the token
ids as they were sampled, stop token included, or its text, which is exact only if the policy's
tokenizer gives back the ids that were sampled. `observations` may be left out: of each turn what
was shown before it, or null; it is checked against what the environment shows now.

Leaves out playing them (`rollout.adoption`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.json_lines import json_object, numbered_lines
from twinstats.episodes import Task
from twinstats.errors import UsageError, unknown

_SHOWN = 300  # letters of a foreign line that a message shows
_KEYS = ("task", "turns", "observations")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEpisode:
    """An episode that was sampled elsewhere.

    Attributes:
        task: What was played.
        turns: Of each turn its token ids as they were sampled, or its text.
        observations: Of each turn what was shown before it, null where that is not known; empty
            if none is.
        place: Where it was logged, for messages.

    Raises:
        ValueError: No turn, an empty one, an id that is none, a text that is not Unicode, or
            another number of observations than of turns.
    """

    task: Task
    turns: tuple[tuple[int, ...] | str, ...]
    observations: tuple[str | None, ...] = ()
    place: str = ""

    def __post_init__(self) -> None:
        if not self.turns or not all(self.turns):
            raise ValueError("`turns` must hold at least one turn, and none that is empty.")
        for index, turn in enumerate(self.turns):
            if isinstance(turn, str):
                _check_text(f"turns[{index}]", turn)
            for token in () if isinstance(turn, str) else turn:
                if not _is_id(token):
                    raise ValueError(
                        "`turns` must hold texts or lists of token ids, "
                        f"got {token!r:.{_SHOWN}} in turn {index}."
                    )
        for index, text in enumerate(self.observations):
            _check_text(f"observations[{index}]", text or "")
        if self.observations and len(self.observations) != len(self.turns):
            raise ValueError(
                f"`observations` must have one entry a turn ({len(self.turns)}), "
                f"got {len(self.observations)}."
            )


def read_episodes(path: Path, task: Callable[[str], Task], vocabulary: int) -> list[LoggedEpisode]:
    """The episodes of a file in its order; all lines are checked.

    Args:
        path: A file of JSON lines; empty lines are skipped.
        task: The task of an id; raises a ValueError for one that does not exist.
        vocabulary: Token ids are below it.

    Raises:
        UsageError: No such file, no episode in it, or a line that is none: file and line are named.
    """
    found = []
    for number, line in numbered_lines(path):
        place = f"{path}:{number}"
        try:
            found.append(_episode(json_object(line), task, place))
            refuse_unknown_ids(found[-1], vocabulary)
        except ValueError as error:
            raise UsageError(f"{place}: {error!s:.{_SHOWN}}") from error
    if not found:
        raise UsageError(f"{path} must hold at least one episode, a JSON object a line.")
    return found


def turns_of(row: Mapping[str, Any], task: Task, place: str) -> LoggedEpisode:
    """The episode in a line's `turns` and `observations`.

    Raises:
        ValueError: They are not of the form above.
    """
    turns, observations = row.get("turns"), row.get("observations")
    if not isinstance(turns, list) or not all(isinstance(turn, (list, str)) for turn in turns):
        raise ValueError("`turns` must be a list of texts or of lists of token ids.")
    shown = [] if observations is None else observations
    if not isinstance(shown, list) or not all(one is None or isinstance(one, str) for one in shown):
        raise ValueError("`observations` must be a list of texts or nulls.")
    return LoggedEpisode(
        task=task,
        turns=tuple(turn if isinstance(turn, str) else tuple(turn) for turn in turns),
        observations=tuple(shown),
        place=place,
    )


def refuse_unknown_ids(logged: LoggedEpisode, vocabulary: int) -> None:
    """Does nothing if all token ids are below `vocabulary`.

    Raises:
        ValueError: One is not.
    """
    ids = (token for turn in logged.turns if not isinstance(turn, str) for token in turn)
    largest = max(ids, default=0)
    if largest >= vocabulary:
        raise ValueError(f"`turns` must hold token ids below {vocabulary}, got {largest}.")


def _episode(row: dict[str, Any], task: Callable[[str], Task], place: str) -> LoggedEpisode:
    for name in row:
        if name not in _KEYS:
            raise unknown("key of an episode", name, _KEYS)
    if not isinstance(row.get("task"), str):
        raise ValueError(f"`task` must be the id of a task, as text, got {row.get('task')!r}.")
    return turns_of(row, task(row["task"]), place)


def _check_text(name: str, text: str) -> None:
    """Refuses half a surrogate pair, which JSON can write and no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"`{name}` must be Unicode text, but {error}.") from None


def _is_id(token: Any) -> bool:
    return isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**32
