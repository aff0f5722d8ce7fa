"""PhGPO: pheromone on the transitions between tools, here as a bonus on GRPO's advantage."""

import numpy as np

from twinstats.credit._checks import at_least_zero
from twinstats.credit._pheromones import Pheromones, edges
from twinstats.credit.baseline import group_info, outcomes, standardised, uncomparable
from twinstats.episodes import Credit, Group


def phgpo(
    group: Group,
    *,
    eta: float = 0.1,
    initial: float = 1.0,
    evaporation: float = 0.01,
    success: float = 0.5,
    failure: float = 0.03,
    local: float = 0.3,
    bounds: tuple[float, float] = (0.5, 20.0),
    memory: Pheromones | None = None,
) -> Credit:
    """Credit A + eta * b_t, with A of GRPO and b_t = log tau(a_{t-1}, a_t), centred.

    The bonus is centred over the tools seen, in earlier steps or in this group, each counted once:
    b_t = log tau(a_{t-1}, a_t) - mean over tools x of log tau(a_{t-1}, x). The published method
    shapes what is sampled, log pi + beta log tau, and leaves the advantage alone; turning the
    pheromone into credit is ours.
    After a step each known edge becomes clip((1 - evaporation) tau + deposits, bounds). An episode
    deposits on each of its edges, at every pass: success * q if it succeeded, else -failure * q;
    and local * A if A > 0, else -local |A| / 2. q is its outcome clipped to [0, 1]; it succeeded
    if `Episode.success`, or where that is null if q is at least a half.

    Inputs: outcomes, `tool`, `success`. Cost: none. Memory: tau by (tool before, tool).
    Reconstructed: the bonus, its centring, q, and that a step's deposits are added up before they
    are clipped, so that their order does not matter. Left out: the pheromone of single tasks
    (similarity of contexts) and of argument patterns.
    Degenerate: nothing observed yet, or an edge never taken: tau is `initial`. All outcomes equal:
    A is exactly 0, the bonus need not be. No success: only failures and A deposit. A group of one:
    null, with a reason; the one scored of several: 0; they deposit without A. A failed episode:
    null, deposits nothing, its tools unread. Missing tool names raise.

    Args:
        group: The rollouts of a task.
        eta: Of the bonus (our default 0.1).
        initial: tau0.
        evaporation: rho.
        success: alpha_global.
        failure: beta_penalty.
        local: alpha_local.
        bounds: Least and largest tau.
        memory: The pheromones; `make` supplies them.

    Raises:
        ValueError: An option out of range, missing tool names.

    Source: PhGPO, arXiv 2602.13691; deposits and defaults (trainer v12) from the code in
    ElevenLiy/PhGPO-Pheromone-Guided-Policy-Optimization-for-Long-Horizon-Tool-Planning.
    """
    at_least_zero(eta=eta)
    pheromones = memory or Pheromones(
        initial=initial,
        evaporation=evaporation,
        success=success,
        failure=failure,
        local=local,
        bounds=bounds,
    )
    paths = [edges(episode) for episode in group.episodes]
    if (credit := uncomparable(group)) is not None:
        return credit
    tools = sorted(pheromones.tools() | {tool for path in paths for _, tool in path})
    advantages = standardised(outcomes(group.episodes))
    values = [
        np.array([a + eta * pheromones.bonus(edge, tools) for edge in path])
        if path
        else np.full(e.num_turns, a)
        for e, a, path in zip(group.episodes, advantages, paths, strict=True)
    ]
    return Credit(episodes=group.episodes, values=values, info=group_info(group))
