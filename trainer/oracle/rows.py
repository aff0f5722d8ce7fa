"""Rows of the tables of an oracle study: `oracle_points`, `oracle_turns` and `oracle_forks`.

`oracle_points`, one row a (setting, outcome, batch, method, knob): how far a method's credit is
from the reference, as sums over the turns that it credits. `error_square` is the sum of squared
differences; minus `truth_noise`, the reference's own squared standard errors, it estimates without
bias the sum of squared errors. `truth_square` holds that noise as well; `credit_truth` does not.
Numbers that cannot be told are null, and `reason` says why.
`oracle_turns`, one row a (setting, outcome, episode, turn): the reference itself.
`oracle_forks`, one row a (setting, outcome, fork): factuals beside their twins.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trainer.oracle.reference import Reference
from twinstats.episodes import (
    FRESH,
    KEEP,
    RESAMPLE,
    SHARED,
    SLOTS_PER_PART,
    Credit,
    Episode,
    Fork,
    Luck,
)
from twinstats.rows import is_equal_decision

Row = dict[str, Any]

NUMBERS = (
    "tokens",
    "auxiliary_tokens",
    "base_tokens",
    "num_turns",
    "num_groups",
    "error",
    "error_square",
    "credit_square",
    "credit_truth",
    "truth_square",
    "truth_noise",
)
"""The columns of `oracle_points` that are null where a method was not played or not measured."""


def point_numbers(credits: Sequence[Credit], known: dict[Episode, Reference]) -> Row:
    """What a method came to on a batch, and the `reason` why that cannot be said, mostly null.

    Without a turn that has a reference and the method's credit all numbers are null.

    Args:
        credits: Its credit of each group.
        known: The reference of each factual that did not fail.
    """
    own = [
        (values, known[episode])
        for credit in credits
        for episode, values in zip(credit.episodes, credit.values, strict=True)
        if episode in known
    ]
    value = np.concatenate([values for values, _ in own])
    truth = np.concatenate([one.advantage for _, one in own])
    noise = np.concatenate([one.stderr for _, one in own]) ** 2
    kept = ~np.isnan(value) & ~np.isnan(truth)
    if not kept.any():
        lacking = "reference" if np.isnan(truth).all() else "reference and this method's credit"
        return {"reason": f"no turn of the batch has a {lacking}"} | dict.fromkeys(NUMBERS)
    value, truth, noise = value[kept], truth[kept], noise[kept]
    error = value - truth
    factual = sum(e.sampled for credit in credits for e in credit.episodes if e.fork is None)
    auxiliary = sum(fork.sampled for credit in credits for fork in credit.info["forks"])
    return {
        "reason": None,
        "tokens": float(factual + auxiliary),
        "auxiliary_tokens": float(auxiliary),
        "base_tokens": float(factual),
        "num_turns": float(len(value)),
        "num_groups": float(len(credits)),
        "error": float(error.sum()),
        "error_square": float(error @ error),
        "credit_square": float(value @ value),
        "credit_truth": float(value @ truth),
        "truth_square": float(truth @ truth),
        "truth_noise": float(noise.sum()),
    }


def reference_rows(episode: Episode, reference: Reference) -> list[Row]:
    """Rows of `oracle_turns`: an episode with one of its outcomes, and its reference."""
    return [
        {
            "episode": episode.name,
            "turn": turn,
            "slot": episode.slot(turn),
            "part": episode.slot(turn) // SLOTS_PER_PART,
            "tail_tokens": tail_tokens(episode, turn),
            "factual": episode.outcome,
            "reference": reference.advantage[turn],
            "reference_stderr": reference.stderr[turn],
            "num_rollouts": int(reference.num_rollouts[turn]),
            "value": reference.value[turn],
            "value_stderr": reference.value_stderr[turn],
        }
        for turn in range(episode.num_turns)
    ]


def coupling_forks(episode: Episode, alternatives: int, coupling: str) -> list[Fork]:
    """The forks that show how luck couples: every one at every turn.

    For "gumbel" the twins, their controls (the same decisions with fresh luck) and a null twin of
    each turn that has a tail; for "maximal" the twins.
    """
    found = []
    for turn in range(episode.num_turns):
        for k in range(alternatives):
            if coupling == "maximal":
                found.append(
                    Fork(episode, turn, RESAMPLE, SHARED, alternative=k, coupling="maximal")
                )
            else:
                found += [Fork(episode, turn, RESAMPLE, luck, k) for luck in (SHARED, FRESH)]
        if coupling == "gumbel" and turn + 1 < episode.num_turns:
            found.append(Fork(episode, turn, KEEP, SHARED))
    return found


def fork_row(twin: Episode) -> Row:
    """A row of `oracle_forks`: a fork beside its factual; null what a failed one does not tell.

    `first_differing` counts the tokens that the two tails have in common at their beginning, null
    where they are the same; `agree_turns` is the share of the factual's later turns that the fork
    has too, in the same slot with the same tokens, null where there are none.
    """
    fork = twin.fork
    assert fork is not None
    factual, turn = fork.episode, fork.turn
    assert isinstance(fork.luck, Luck)
    is_played = twin.outcome is not None
    return {
        "factual": factual.outcome,
        "fork": twin.outcome,
        "episode": factual.name,
        "turn": turn,
        "slot": factual.slot(turn),
        "tail_tokens": tail_tokens(factual, turn),
        "kind": _kind(fork),
        "alternative": fork.alternative,
        "equal": is_equal_decision(twin) if is_played else None,
        "tokens": twin.sampled,
        "first_differing": _first_differing(factual, twin, turn) if is_played else None,
        "agree_turns": _agree_turns(factual, twin, turn) if is_played else None,
        "luck": fork.luck.value,
    }


def tail_tokens(episode: Episode, turn: int) -> int:
    """Tokens sampled after a turn."""
    return sum(later.num_tokens for later in episode.turns[turn + 1 :])


def _kind(fork: Fork) -> str:
    if fork.action is KEEP:
        return "null"
    if fork.luck is FRESH:
        return "control"
    return "maximal" if fork.coupling == "maximal" else "twin"


def _tail(episode: Episode, turn: int) -> list[int]:
    return [token for later in episode.turns[turn + 1 :] for token in later.action]


def _first_differing(factual: Episode, twin: Episode, turn: int) -> int | None:
    one, other = _tail(factual, turn), _tail(twin, turn)
    if one == other:
        return None
    return next(_differing(one, other), min(len(one), len(other)))


def _differing(one: Sequence[int], other: Sequence[int]) -> Iterator[int]:
    pairs = zip(one, other, strict=False)
    return (place for place, (a, b) in enumerate(pairs) if a != b)


def _agree_turns(factual: Episode, twin: Episode, turn: int) -> float | None:
    later = {factual.slot(t): factual.turns[t].action for t in range(turn + 1, factual.num_turns)}
    if not later:
        return None
    own = {twin.slot(t): twin.turns[t].action for t in range(turn + 1, twin.num_turns)}
    return sum(own.get(slot) == action for slot, action in later.items()) / len(later)
