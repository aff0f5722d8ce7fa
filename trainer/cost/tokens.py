"""How many tokens a step is expected to sample, show and train, and how many twins that buys.

Leaves out what tokens cost (`memory`, `seconds`).
"""

import inspect
from dataclasses import dataclass

from trainer.config import Config
from trainer.tasks import ENVIRONMENTS, names
from twinstats.credit import METHODS
from twinstats.episodes import Credit
from twinstats.errors import unknown

FILL = 0.5
"""Assumed: a turn has so much of `rollout.max_turn_tokens`, a context of `model.max_length`."""

_BUDGETED = "budget"
_EVERY_TURN = {  # the option that says how many forks each turn gets
    "twice": "twins",
    "independent": "twins",
    "vine": "rollouts",
    "vine_coupled": "rollouts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """What a step is expected to hold.

    Attributes:
        rows: Factual episodes.
        turns: Turns of an episode.
        row_sampled: Sampled tokens of an episode.
        row_length: All its tokens, what the environment shows included.
        most_length: The most tokens that it can have.
        most_sampled: The most sampled tokens that it can have.
        auxiliary: Sampled tokens of forks; null where the method's own course decides.
        fork_tokens: Sampled tokens of one fork: a turn and the tail after it.
        reason: Why `auxiliary` is null.
    """

    rows: int
    turns: int
    row_sampled: float
    row_length: float
    most_length: int
    most_sampled: int
    auxiliary: float | None
    fork_tokens: float
    reason: str | None = None

    @property
    def sampled(self) -> float:
        """Sampled tokens of the factual episodes: those that are trained."""
        return self.rows * self.row_sampled

    @property
    def shown(self) -> float:
        """Tokens that the environment shows in the factual episodes."""
        return self.rows * (self.row_length - self.row_sampled)

    @property
    def forks(self) -> float | None:
        """Forks: twins, their controls, rollouts from a turn."""
        return None if self.auxiliary is None else self.auxiliary / self.fork_tokens


def step_tokens(config: Config) -> StepTokens:
    """The expected tokens of a step.

    An episode is assumed to take all turns that its task allows, each `FILL` of its limit. A fork
    samples its turn and all later ones: with T turns (T + 1) / 2 of them in the mean, over turns
    that are forked equally often. That no fork ends early, as one with an equal decision does,
    makes these tokens an upper bound, and the forks that a budget buys a lower one.

    Raises:
        UsageError: No such task.
    """
    task, rollout = config.task, config.rollout
    if task.name not in names():
        raise unknown("task", task.name, names())
    turns = ENVIRONMENTS[task.name].max_turns * task.parts
    most_length = config.model.max_length
    most_sampled = min(turns * rollout.max_turn_tokens, most_length - 1)
    row_sampled, row_length = FILL * most_sampled, FILL * most_length
    rows = rollout.groups * rollout.group_size
    fork_tokens = row_sampled * (turns + 1) / (2 * turns)
    auxiliary, reason = _auxiliary(config, rows * row_sampled, rows * turns * fork_tokens)
    return StepTokens(
        rows=rows,
        turns=turns,
        row_sampled=row_sampled,
        row_length=max(row_length, row_sampled),
        most_length=most_length,
        most_sampled=most_sampled,
        auxiliary=auxiliary,
        fork_tokens=fork_tokens,
        reason=reason,
    )


def _auxiliary(
    config: Config, factual: float, every_turn: float
) -> tuple[float | None, str | None]:
    """Sampled tokens of forks, or why they are not known.

    Args:
        config: The run's.
        factual: Sampled tokens of the factual episodes.
        every_turn: Sampled tokens of one fork of every turn.
    """
    credit = config.credit
    if credit.method not in METHODS:
        raise unknown("credit method", credit.method, METHODS)
    function = METHODS[credit.method].function
    options = inspect.signature(function).parameters
    if _BUDGETED in options and credit.budget is not None:
        return credit.budget * factual, None
    if credit.method in _EVERY_TURN:
        return getattr(credit, _EVERY_TURN[credit.method]) * every_turn, None
    if inspect.signature(function).return_annotation is Credit:
        return 0.0, None
    return None, f"{credit.method} decides while it plays how many forks it takes"
