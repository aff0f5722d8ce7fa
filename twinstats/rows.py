"""From episodes and credit to rows of the log (`records`), the same for every world.

Leaves out texts, which only a world with text can write.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from twinstats.episodes import FRESH, KEEP, SHARED, Credit, Episode, Luck, action_word

Row = dict[str, Any]


def episode_rows(episodes: Iterable[Episode], purpose: str = "train") -> list[Row]:
    """Rows of the table `episodes`, factuals and forks alike."""
    return [_episode_row(episode, purpose) for episode in episodes]


def _episode_row(episode: Episode, purpose: str) -> Row:
    row = {
        "episode": episode.name,
        "task": episode.task.id,
        "row": episode.row,
        "purpose": purpose,
        "outcome": episode.outcome,
        "success": episode.success,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "num_turns": episode.num_turns,
        "sampled": episode.sampled,
        "reason": episode.info.get("reason"),
    }
    if episode.fork is not None:
        fork = episode.fork
        row |= {
            "parent": fork.episode.name,
            "fork_turn": fork.turn,
            "action": action_word(fork.action),
            "luck": fork.luck.value if isinstance(fork.luck, Luck) else str(fork.luck),
            "alternative": fork.alternative,
        }
    return row


def turn_rows(episodes: Iterable[Episode]) -> list[Row]:
    """Rows of the table `turns`: of a fork only the turns it decided itself."""
    return [
        {
            "episode": episode.name,
            "turn": index,
            "slot": episode.slot(index),
            "num_tokens": turn.num_tokens,
            "logprob": turn.logprob,
            "entropy": turn.entropy,
            "reward": turn.reward,
            "state_class": str(turn.info.get("state_class", "")),
        }
        for episode in episodes
        for index, turn in enumerate(episode.turns)
        if episode.owner(index) is episode
    ]


def pair_rows(forks: Iterable[Episode]) -> list[Row]:
    """Rows of the table `pairs`: each fork beside its parent, failed ones with a reason.

    Join "twin" and "control" on (factual, turn, alternative) to compare shared and fresh luck on
    the same decision.
    """
    return [_pair_row(fork) for fork in forks]


def _pair_row(twin: Episode) -> Row:
    fork = twin.fork
    assert fork is not None
    factual = fork.episode
    failed = twin.outcome is None
    return {
        "kind": _kind(twin),
        "factual": factual.name,
        "twin": twin.name,
        "task": factual.task.id,
        "turn": fork.turn,
        "slot": factual.slot(fork.turn),
        "alternative": fork.alternative,
        "factual_outcome": factual.outcome,
        "twin_outcome": twin.outcome,
        "equal": None if failed else is_equal_decision(twin),
        "same_tokens": None if failed else is_same_play(twin),
        "sampled": twin.sampled,
        "reason": twin.info.get("reason"),
    }


def _kind(twin: Episode) -> str:
    assert twin.fork is not None
    if twin.fork.action is KEEP and twin.fork.luck is SHARED:
        return "null"
    if twin.fork.luck is SHARED:
        return "twin"
    return "control" if twin.fork.luck is FRESH else "draw"


def is_equal_decision(twin: Episode) -> bool:
    """Whether the fork's turn came out as its parent's did."""
    assert twin.fork is not None
    turn = twin.fork.turn
    return bool(twin.turns[turn].action == twin.fork.episode.turns[turn].action)


def is_same_play(twin: Episode) -> bool:
    """Whether every turn from the fork on came out as its parent's did."""
    assert twin.fork is not None
    own = [turn.action for turn in twin.turns[twin.fork.turn :]]
    parent = [turn.action for turn in twin.fork.episode.turns[twin.fork.turn :]]
    return own == parent


def is_null_that_differs(twin: Episode) -> bool:
    """Whether a fork is a null twin that went otherwise than its factual.

    It came to other tokens or another outcome, or its world says `info["replay_differs"]`: the
    prefix was not what it had been. One that failed for another reason tells nothing of the replay.
    """
    if _kind(twin) != "null":
        return False
    if twin.outcome is None:
        return bool(twin.info.get("replay_differs", False))
    assert twin.fork is not None
    return not is_same_play(twin) or twin.outcome != twin.fork.episode.outcome


def credit_rows(
    credits: Iterable[Credit],
    method: str,
    truth: Callable[[Episode], np.ndarray] | None = None,
) -> list[Row]:
    """Rows of the table `credit`; `truth` gives the exact advantages where a world knows them."""
    rows = []
    for credit in credits:
        for index, (episode, values) in enumerate(zip(credit.episodes, credit.values, strict=True)):
            exact = None if truth is None else truth(episode)
            for turn, value in enumerate(values):
                rows.append(
                    {
                        "method": method,
                        "episode": episode.name,
                        "turn": turn,
                        "value": value,
                        "share": None if credit.share is None else credit.share[index][turn],
                        "truth": None if exact is None else exact[turn],
                    }
                )
    return rows


def null_disagreements(forks: Sequence[Episode]) -> tuple[int, int, int]:
    """Null twins, and how many disagreed with their factual: by token and by outcome.

    One that failed, for whatever reason, counts as disagreeing in both: it did not show the same.
    Whether the replay is to blame `is_null_that_differs` tells.
    """
    nulls = [fork for fork in forks if _kind(fork) == "null"]
    by_token = sum(twin.outcome is None or not is_same_play(twin) for twin in nulls)
    by_outcome = sum(
        twin.outcome != twin.fork.episode.outcome for twin in nulls if twin.fork is not None
    )
    return len(nulls), by_token, by_outcome
