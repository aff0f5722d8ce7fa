"""What the twins of a step came to, in numbers: what coupling saved, what they cost, the budget.

Estimates are of one step's pairs, with standard errors clustered by task; reports over many steps
have intervals. What a step does not identify (no control, no variance) is NaN, null in the log.
Leaves out the pairs themselves (the tables `pairs` and `allocations`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from twinstats import logged_pairs
from twinstats.episodes import DIFFERENT, RESAMPLE, Credit, Episode
from twinstats.rows import Row, null_disagreements, pair_rows
from twinstats.tables import SCHEMAS

_ESTIMATES = {
    "coupling_gain": ("coupling_gain", "ratio"),
    "coupling_gain_deduplicated": ("deduplicated_gain", "ratio"),
    "rho_eff": ("rho_eff", "ratio"),
    "discordance": ("discordance", "share"),
}
"""Statistics of `variance_account`: what the log calls them, and their unit."""

_PURPOSES = ("twin", "equal_twin", "control", "null", "other")
_PLAN = ("planned_tokens", "expected_twins_count", "planned_twins_count", "price_sqrt_tokens")
_DRAWN = (RESAMPLE, DIFFERENT)  # actions whose decision is sampled; others are given


def twin_metrics(
    episodes: Sequence[Episode], forks: Sequence[Episode], credits: Sequence[Credit]
) -> dict[str, float]:
    """What a step's forks say of coupling and cost, by name; NaN where undefined.

    - pairs/coupling_gain_ratio, pairs/deduplicated_gain_ratio: Var(F - C) / Var(F - T) over twins
      with a control, raw and with equal decisions taken as difference 0.
    - pairs/rho_eff_ratio, pairs/discordance_share: over all twins. Each of these has its standard
      error under NAME_stderr_UNIT.
    - pairs/twins_count, pairs/controls_count: twins with both outcomes, and those with a control.
    - pairs/equal_share: equal decisions among all that were resampled.
    - pairs/null_floor_squared_reward: mean (factual - null twin)^2; pairs/null_count, among them
      pairs/null_failed_count without an outcome, for whatever reason, and the two
      pairs/null_..._disagreements_count, in both of which the failed ones are.
    - pairs/factual_tails_count, pairs/shared_tails_count: forks that took a tail without sampling
      it, after an equal decision the factual's, else that of another fork with the same decision.
    - tokens/PURPOSE_tokens of factual, twin, equal_twin (twins whose decision came out as the
      factual's), control (fresh luck, the decision of a twin), null (kept, shared luck) and other:
      they add up to all that was sampled. Beside them tokens/saved_tokens: of tails taken over.
    - budget/planned_tokens: the sum over turns of the expected number of twins times the factual's
      tokens from that turn on: what twins with such tails, none of them equal, would take.
      budget/spent_tokens: of all forks, controls and null twins included.
    - budget/expected_twins_count, budget/planned_twins_count: before and after the plan's coins.
      budget/price_sqrt_tokens: of the square-root rule; null where none was in force, as in a
      run's first step.

    Args:
        episodes: The factuals.
        forks: Every fork that was played.
        credits: The step's credit; under `info["plan"]` what a budget planned.
    """
    rows = pair_rows(forks)
    saved = [_saved_tokens(fork) for fork in forks]
    return {
        **_estimates(rows),
        **_decisions(forks, rows, saved),
        **_null_twins(forks, rows),
        **_tokens(rows),
        "tokens/factual_tokens": sum(episode.sampled for episode in episodes),
        "tokens/saved_tokens": sum(saved),
        "budget/spent_tokens": sum(fork.sampled for fork in forks),
        **_plan(credits),
    }


def _estimates(rows: Sequence[Row]) -> dict[str, float]:
    """Points and standard errors of the account, and how many pairs they rest on."""
    pairs = pl.DataFrame(rows, schema=SCHEMAS["pairs"]).with_columns(run=pl.lit(""))
    twins = logged_pairs.joined(pairs)
    account = logged_pairs.account(twins, confidence=None)
    found: dict[str, float] = {
        "pairs/twins_count": len(twins),
        "pairs/controls_count": twins["control_outcome"].count(),
    }
    for name, (word, unit) in _ESTIMATES.items():
        value = None if account is None else getattr(account, name)
        stderr = None if account is None or value is None else account.stderr.get(name)
        found[f"pairs/{word}_{unit}"] = math.nan if value is None else value
        found[f"pairs/{word}_stderr_{unit}"] = math.nan if stderr is None else stderr
    return found


def _decisions(
    forks: Sequence[Episode], rows: Sequence[Row], saved: Sequence[int]
) -> dict[str, float]:
    """The share of equal decisions, and the tails that were not sampled."""
    equal = [
        row["equal"]
        for fork, row in zip(forks, rows, strict=True)
        if row["equal"] is not None and fork.fork is not None and fork.fork.action is RESAMPLE
    ]
    taken = [row["equal"] for row, tokens in zip(rows, saved, strict=True) if tokens]
    return {
        "pairs/equal_share": float(np.mean(equal)) if equal else math.nan,
        "pairs/factual_tails_count": sum(taken),
        "pairs/shared_tails_count": len(taken) - sum(taken),
    }


def _saved_tokens(fork: Episode) -> int:
    """Tokens of the fork's turns that were not sampled for it, its own given decision aside."""
    assert fork.fork is not None
    if fork.outcome is None:
        return 0
    first = fork.fork.turn + (fork.fork.action not in _DRAWN)
    return max(0, sum(turn.num_tokens for turn in fork.turns[first:]) - fork.sampled)


def _null_twins(forks: Sequence[Episode], rows: Iterable[Row]) -> dict[str, float]:
    """Their mean squared difference, and how many disagreed; a failed one disagrees."""
    squares = [
        (row["factual_outcome"] - row["twin_outcome"]) ** 2
        for row in rows
        if row["kind"] == "null" and row["twin_outcome"] is not None
    ]
    count, by_token, by_outcome = null_disagreements(forks)
    return {
        "pairs/null_count": count,
        "pairs/null_failed_count": count - len(squares),
        "pairs/null_floor_squared_reward": float(np.mean(squares)) if squares else math.nan,
        "pairs/null_token_disagreements_count": by_token,
        "pairs/null_outcome_disagreements_count": by_outcome,
    }


def _tokens(rows: Sequence[Row]) -> dict[str, float]:
    """Tokens of the forks by purpose."""
    spent = dict.fromkeys(_PURPOSES, 0)
    twins = {_decision(row) for row in rows if row["kind"] == "twin"}
    for row in rows:
        spent[_purpose(row, twins)] += row["sampled"]
    return {f"tokens/{purpose}_tokens": tokens for purpose, tokens in spent.items()}


def _decision(row: Row) -> tuple[str, int, int]:
    return row["factual"], row["turn"], row["alternative"]


def _purpose(row: Row, twins: set[tuple[str, int, int]]) -> str:
    if row["kind"] == "twin":
        return "equal_twin" if row["equal"] else "twin"
    if row["kind"] == "control" and _decision(row) in twins:
        return "control"
    return "null" if row["kind"] == "null" else "other"


def _plan(credits: Sequence[Credit]) -> dict[str, float]:
    """What the step's plan comes to; all NaN for a method that makes none."""
    plan = [planned for credit in credits for planned in credit.info.get("plan", ())]
    if not plan:
        return {f"budget/{name}": math.nan for name in _PLAN}
    tails = _tails(planned.episode for planned in plan)
    values = (
        sum(one.expected * float(tails[id(one.episode)][one.turn]) for one in plan),
        sum(one.expected for one in plan),
        sum(one.count for one in plan),
        plan[0].price,  # all groups of a step have one
    )
    return {f"budget/{name}": value for name, value in zip(_PLAN, values, strict=True)}


def _tails(episodes: Iterable[Episode]) -> Mapping[int, np.ndarray]:
    """Each episode's tokens from each turn on, by its identity."""
    own = {id(episode): episode for episode in episodes}
    return {
        key: np.cumsum(episode.column("num_tokens")[::-1])[::-1] for key, episode in own.items()
    }
