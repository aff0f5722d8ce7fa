"""Credit methods: one file a method, one line here.

A method takes a `Group` and returns `Credit`, or is a generator that yields forks, gets their
episodes in the same shape, and returns `Credit`.
"""

from typing import Any

from twinstats.credit._budget_model import BudgetModel
from twinstats.credit._checks import MOST_FORKS
from twinstats.credit._context import Context
from twinstats.credit._pheromones import Pheromones
from twinstats.credit._tokens import whitened
from twinstats.credit._twin_credit import finish as _finish_twins
from twinstats.credit._twin_forks import choose
from twinstats.credit.arpo import arpo
from twinstats.credit.at2po import at2po
from twinstats.credit.budget import Budget, BudgetMemory
from twinstats.credit.budget_gate import budget_gate
from twinstats.credit.craft import craft
from twinstats.credit.dars import dars
from twinstats.credit.dr_grpo import dr_grpo
from twinstats.credit.driver import assign
from twinstats.credit.factor import factor
from twinstats.credit.factor import option_needs as _factor_needs
from twinstats.credit.gigpo import gigpo
from twinstats.credit.graft import graft
from twinstats.credit.graphgpo import graphgpo
from twinstats.credit.grpo import grpo
from twinstats.credit.hcapo import hcapo
from twinstats.credit.hgpo import hgpo
from twinstats.credit.igpo import igpo
from twinstats.credit.independent import independent
from twinstats.credit.mt_grpo import mt_grpo
from twinstats.credit.phgpo import phgpo
from twinstats.credit.ppo import ppo
from twinstats.credit.prover import prover
from twinstats.credit.registry import Entry, Memory, Method, Need, remembers
from twinstats.credit.reinforce_pp import finish as _finish_reinforce_pp
from twinstats.credit.reinforce_pp import reinforce_pp
from twinstats.credit.rloo import rloo
from twinstats.credit.rtmc import rtmc
from twinstats.credit.sharpo import sharpo
from twinstats.credit.spader import spader
from twinstats.credit.t2spo import finish as _finish_t2spo
from twinstats.credit.t2spo import t2spo
from twinstats.credit.tree_grpo import tree_grpo
from twinstats.credit.treerl import treerl
from twinstats.credit.turn_credit import turn_credit
from twinstats.credit.twice import twice
from twinstats.credit.vine import vine
from twinstats.credit.vine_coupled import vine_coupled
from twinstats.errors import unknown


def _budget_memory(options: dict[str, Any]) -> BudgetMemory | None:
    budget = options.get("budget")
    return None if budget is None else BudgetMemory(budget)


METHODS: dict[str, Entry] = {
    "grpo": Entry(function=grpo, estimates_advantage=False, compares_members=True),
    "dr_grpo": Entry(function=dr_grpo, compares_members=True),
    "rloo": Entry(function=rloo, compares_members=True),
    "reinforce_pp": Entry(
        function=reinforce_pp, estimates_advantage=False, finish=_finish_reinforce_pp
    ),
    "ppo": Entry(function=ppo, needs=(Need("value"),), finish=whitened),
    "twice": Entry(
        function=twice,
        reconstructed=True,
        memory=_budget_memory,
        finish=_finish_twins,
        knob="twins",
        unbiased=True,
    ),
    "independent": Entry(
        function=independent,
        memory=_budget_memory,
        finish=_finish_twins,
        knob="twins",
        unbiased=True,
    ),
    "vine": Entry(function=vine, knob="rollouts", unbiased=True),
    "vine_coupled": Entry(function=vine_coupled, knob="rollouts", unbiased=True),
    "tree_grpo": Entry(function=tree_grpo, estimates_advantage=False, knob="expansions"),
    "at2po": Entry(function=at2po, estimates_advantage=False, knob="rounds"),
    "rtmc": Entry(
        function=rtmc,
        needs=(Need("signature", forks=True),),
        reconstructed=True,
        compares_members=True,
    ),
    "arpo": Entry(
        function=arpo,
        needs=(Need("first_entropy", forks=True),),
        estimates_advantage=False,
        knob="leaves",
        knob_unit=8,  # leaves count the group's own episodes: nothing branches below its size
    ),
    "treerl": Entry(
        function=treerl, reconstructed=True, estimates_advantage=False, knob="branches"
    ),
    "craft": Entry(
        function=craft,
        needs=(Need("teacher_gap"),),
        reconstructed=True,
        estimates_advantage=False,
        compares_members=True,
    ),
    "spader": Entry(
        function=spader,
        needs=(Need("entities"),),
        estimates_advantage=False,
        compares_members=True,
    ),
    "t2spo": Entry(
        function=t2spo,
        needs=(Need("features"),),
        reconstructed=True,
        estimates_advantage=False,
        compares_members=True,
        memory=remembers(Context),
        finish=_finish_t2spo,
    ),
    "sharpo": Entry(
        function=sharpo,
        needs=(Need("teacher_gap"),),
        reconstructed=True,
        estimates_advantage=False,
        compares_members=True,
    ),
    "phgpo": Entry(
        function=phgpo,
        needs=(Need("tool"),),
        reconstructed=True,
        estimates_advantage=False,
        compares_members=True,
        memory=remembers(Pheromones),
    ),
    "prover": Entry(
        function=prover,
        needs=(Need("segments"),),
        reconstructed=True,
        estimates_advantage=False,
        compares_members=True,
        knob="rollouts",
        knob_unit=2,  # a test needs a standard error, so two rollouts
    ),
    "dars": Entry(
        function=dars,
        needs=(Need("predicates"),),
        reconstructed=True,
        estimates_advantage=False,
        compares_members=True,
    ),
    "gigpo": Entry(function=gigpo, estimates_advantage=False, compares_members=True),
    "hgpo": Entry(function=hgpo, estimates_advantage=False, compares_members=True),
    "graphgpo": Entry(function=graphgpo, estimates_advantage=False, compares_members=True),
    "graft": Entry(
        function=graft, reconstructed=True, estimates_advantage=False, compares_members=True
    ),
    "factor": Entry(
        function=factor,
        needs=(Need("teacher_gap"),),
        reconstructed=True,
        compares_members=True,
        option_needs=_factor_needs,
        knob="rollouts",
    ),
    "budget_gate": Entry(
        function=budget_gate,
        needs=(Need("teacher_gap"),),
        reconstructed=True,
        estimates_advantage=False,
        compares_members=True,
        memory=remembers(BudgetModel),
        observes_ratios=True,
    ),
    "hcapo": Entry(
        function=hcapo,
        needs=(Need("hindsight_logprob"),),
        estimates_advantage=False,
        compares_members=True,
    ),
    "igpo": Entry(
        function=igpo,
        needs=(Need("gold_logprob"),),
        estimates_advantage=False,
        compares_members=True,
    ),
    "mt_grpo": Entry(
        function=mt_grpo,
        needs=(Need("turn_reward"),),
        estimates_advantage=False,
        compares_members=True,
    ),
    "turn_credit": Entry(
        function=turn_credit, needs=(Need("state_score"),), estimates_advantage=False
    ),
}


def names() -> list[str]:
    """The names of all credit methods."""
    return list(METHODS)


def make(name: str, **options: Any) -> Method:
    """A credit method by name, with its options.

    Raises:
        UsageError: An unknown name or option; the nearest right one is named.
    """
    if name not in METHODS:
        raise unknown("credit method", name, METHODS)
    return Method(name, METHODS[name], options)


__all__ = [
    "METHODS",
    "MOST_FORKS",
    "Budget",
    "Memory",
    "Method",
    "Need",
    "assign",
    "choose",
    "make",
    "names",
]
