"""Budget and gate: how much of the advantage a turn gets is learned; where it goes is sparse."""

import math
from typing import Literal, get_args

import numpy as np
from scipy.special import expit

from twinstats.credit._budget_model import BudgetModel, turn_features
from twinstats.credit._checks import count, positive, probability
from twinstats.credit._gate import sparsemax_weights, top_weights
from twinstats.credit._teacher import token_gaps, unit_weights
from twinstats.credit.baseline import group_info, outcomes, standardised, uncomparable
from twinstats.episodes import Credit, Group
from twinstats.errors import unknown

Gate = Literal["topk", "sparsemax"]


def budget_gate(
    group: Group,
    *,
    gate: Gate = "topk",
    top: int | None = None,
    temperature: float = 1.0,
    floor: float = 0.2,
    rare: float = 0.1,
    target: float = 0.4,
    regulariser: float = 0.1,
    decay: float = 0.99,
    rate: float = 0.1,
    memory: BudgetModel | None = None,
) -> Credit:
    """Credit b_t * A where A > 0, and A where not, with A of GRPO and b_t a learned budget.

    b_t = sigmoid(w x_t), x_t features of the history and the policy's entropy there, w 0 at first
    but for its constant, so that b = `target`. After a step w climbs, by `rate`, the gradient of
    mean_t b_t A_t r_t - lambda (mean_t b_t - target)^2, r_t the turn's likelihood ratio after the
    update (1 if unknown), lambda = `regulariser` * decay^(steps so far).
    Within a turn of positive credit the gate opens k = ceil(b n) of its n tokens, or `top`: those
    of largest importance sigmoid(gap / temperature), which share the credit in proportion to it
    ("topk"; ties to the earlier token); or the weights are n sparsemax(gap / temperature). The
    gate is passed straight through: b's gradient takes it as fixed.
    Rare turns, whose tokens have a mean probability (geometric) below `rare`, get b >= floor, and
    weights floor + (1 - floor) w, so that exploration survives. Negative credit is
    never gated: budget 1, weights 1. Value functions train on outcomes, which stay as they are.

    Inputs: outcomes, `teacher_gap`, entropy and log-probability of turns where known. Cost: none
    besides the teacher's pass. Memory: w and the number of steps.
    Reconstructed: the features, importance by the teacher's gap, k, what is rare, the mean where
    the seed has a sum, and that b's gradient runs over all turns, though b acts on praise only.
    Degenerate: all outcomes equal (no success, say): exactly 0, weights 1. A group of one: null,
    with a reason; the one scored of several: 0. A failed episode: null, in nobody's statistics,
    its gap unread. Entropy unknown: a feature says so. Log-probability unknown: not rare, counted
    in `info`. A missing or misshapen gap raises.

    Args:
        group: The rollouts of a task.
        gate: "topk" or "sparsemax".
        top: Tokens that the gate opens, in place of k.
        temperature: Of the importance (our default 1).
        floor: Least budget and weight of a rare turn (our default 0.2).
        rare: Mean token probability below which a turn is rare (our default 0.1); 0 for none.
        target: Mean budget that the regulariser pulls to (the seed's .3 to .5).
        regulariser: First lambda (our default 0.1).
        decay: Of lambda, a step (our default 0.99).
        rate: Of learning (our default 0.1).
        memory: The budget model; `make` supplies it.

    Raises:
        ValueError: An option out of range; no gap for each token.

    Source: seeds/004 of this project, a page on FACTOR (arXiv 2608.07118) that says more than it.
    """
    if gate not in get_args(Gate):
        raise unknown("gate", gate, get_args(Gate))
    if top is not None:
        count(top=top)
    positive(temperature=temperature)
    probability(floor=floor, rare=rare)
    gaps = [token_gaps("budget_gate", episode) for episode in group.episodes]
    model = memory or BudgetModel(target=target, regulariser=regulariser, decay=decay, rate=rate)
    if (credit := uncomparable(group)) is not None:
        return credit
    advantages = standardised(outcomes(group.episodes))
    values, weights, budgets, unknown_logprobs = [], [], [], 0
    for episode, advantage, own in zip(group.episodes, advantages, gaps, strict=True):
        chance = np.exp(episode.column("logprob") / np.maximum(episode.column("num_tokens"), 1))
        unknown_logprobs += int(np.isnan(chance).sum())
        least = np.where(chance < rare, floor, 0.0)
        budget = np.maximum(model.coefficient(turn_features(episode)), least)
        budgets.append(budget)
        values.append(advantage * (budget if advantage > 0 else np.ones(len(budget))))
        if not advantage > 0:
            weights.append(unit_weights(episode))
            continue
        open_ = [_weights(g / temperature, b, gate, top) for g, b in zip(own, budget, strict=True)]
        weights.append([f + (1 - f) * w for w, f in zip(open_, least, strict=True)])
    info = group_info(group) | {"budgets": budgets, "unknown_logprobs": unknown_logprobs}
    return Credit(episodes=group.episodes, values=values, weights=weights, info=info)


def _weights(scores: np.ndarray, budget: float, gate: Gate, top: int | None) -> np.ndarray:
    if gate == "sparsemax":
        return sparsemax_weights(scores)
    num_open = math.ceil(budget * len(scores)) if top is None else top
    return top_weights(expit(scores), num_open)
