"""T2SPO: GRPO's advantage plus the steps of an outcome that a regressor predicts along the way."""

import dataclasses
from functools import partial
from typing import Literal, NamedTuple, get_args

import numpy as np

from twinstats.credit._checks import at_least_zero
from twinstats.credit._context import Context, decision_features
from twinstats.credit._neighbours import Neighbours, Regressor
from twinstats.credit._states import within
from twinstats.credit.baseline import broadcast, outcomes, standardised, uncomparable
from twinstats.episodes import Credit, Group
from twinstats.errors import unknown

Scope = Literal["group", "turn"]


def t2spo(
    group: Group,
    *,
    weight: float = 1.0,
    scope: Scope = "group",
    regressor: Regressor | None = None,
    context: int = 10_000,
    epsilon: float = 1e-6,
    memory: Context | None = None,
) -> Credit:
    """Credit A + weight * norm(c_t), with A of GRPO and c_t = p_{t+1} - p_t, p after the end = R.

    p_t is what a regressor predicts from the features of h_t, fitted (for TabPFN: shown, without
    training) to a context of (features, outcome): the newest turns of earlier steps, and all turns
    of this step's other groups. A group is never in its own context. norm is the standardisation
    over the group's turns, or over the members that have a turn of this index.

    Inputs: outcomes, `features`. Cost: no tokens; one fit a group. The second term comes with
    `finish`, when all groups of the step are there.
    Reconstructed: all but the idea of a tabular regressor in context.
    Degenerate: an empty context (first step and one group): the second term is 0 and
    `info["reason"]` says so. All outcomes equal (no success, say): A is exactly 0, the second term
    need not be. All c equal, or a turn index that one member reached: second term 0. A group of
    one: null, with a reason; the one scored of several: 0. A failed episode: null, in nobody's
    context or statistics, its features unread. An unseen state gets what the regressor says, by
    default its nearest neighbours' mean. Missing or misshapen features raise.

    Args:
        group: The rollouts of a task.
        weight: Of the second term (our default 1).
        scope: What c is standardised over, "group" or "turn".
        regressor: With fit(X, y) and predict(X), as scikit-learn and TabPFN have them; null is
            `Neighbours()`, 16 nearest turns.
        context: Most turns kept from earlier steps.
        epsilon: Added to standard deviations.
        memory: The context of earlier steps; `make` supplies it.

    Raises:
        ValueError: An option out of range, missing or misshapen features.

    Source: no public text found (30 Sep 2026). Cousin: SPA-RL, arXiv 2505.20732.
    """
    if scope not in get_args(Scope):
        raise unknown("scope", scope, get_args(Scope))
    at_least_zero(weight=weight, epsilon=epsilon)
    regressor = Neighbours() if regressor is None else regressor
    if not isinstance(regressor, Regressor):
        raise ValueError(f"`regressor` must have fit(X, y) and predict(X), got {regressor!r}.")
    for episode in group.episodes:
        if episode.outcome is not None:
            decision_features(episode)
    if (lonely := uncomparable(group)) is not None:
        return lonely
    credit = broadcast(group, standardised(outcomes(group.episodes), epsilon=epsilon))
    credit.info["pending"] = _Pending(weight, scope, regressor, epsilon)
    return credit


def finish(credits: list[Credit], *, memory: Context) -> list[Credit]:
    """The credits with their second term."""
    return [
        _with_steps(credit, memory.without(credit, credits)) if "pending" in credit.info else credit
        for credit in credits
    ]


class _Pending(NamedTuple):
    weight: float
    scope: Scope
    regressor: Regressor
    epsilon: float


def _with_steps(credit: Credit, context: tuple[np.ndarray, np.ndarray] | None) -> Credit:
    info = dict(credit.info)
    pending: _Pending = info.pop("pending")
    info["context_turns"] = 0 if context is None else len(context[1])
    if context is None:
        info["reason"] = "no turn of another group is known yet: predictions are left out"
        return dataclasses.replace(credit, info=info)
    pending.regressor.fit(*context)
    steps = [
        np.full(e.num_turns, np.nan)
        if e.outcome is None
        else np.diff(pending.regressor.predict(decision_features(e)), append=float(e.outcome))
        for e in credit.episodes
    ]
    terms = _normed(steps, pending)
    values = [a + pending.weight * term for a, term in zip(credit.values, terms, strict=True)]
    return dataclasses.replace(credit, values=values, info=info)


def _normed(steps: list[np.ndarray], pending: _Pending) -> list[np.ndarray]:
    labels = [turn * (pending.scope == "turn") for own in steps for turn in range(len(own))]
    norm = partial(standardised, epsilon=pending.epsilon)
    normed = within(labels, np.concatenate(steps), norm)
    return np.split(normed, np.cumsum([len(own) for own in steps])[:-1])
