"""Credit methods: one file a method, one line here.

A method takes a `Group` and returns `Credit`, or is a generator that yields forks, gets their
episodes in the same shape, and returns `Credit`.
"""

from typing import Any

from twinstats.credit.budget import Budget, BudgetMemory, choose
from twinstats.credit.driver import assign
from twinstats.credit.grpo import grpo
from twinstats.credit.independent import independent
from twinstats.credit.registry import Entry, Memory, Method, Need
from twinstats.credit.rloo import rloo
from twinstats.credit.twice import twice
from twinstats.credit.vine import vine
from twinstats.errors import unknown


def _budget_memory(options: dict[str, Any]) -> BudgetMemory | None:
    budget = options.get("budget")
    return None if budget is None else BudgetMemory(budget)


METHODS: dict[str, Entry] = {
    "grpo": Entry(function=grpo, estimates_advantage=False, compares_members=True),
    "rloo": Entry(function=rloo, compares_members=True),
    "twice": Entry(function=twice, reconstructed=True, memory=_budget_memory),
    "independent": Entry(function=independent, memory=_budget_memory),
    "vine": Entry(function=vine),
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


__all__ = ["METHODS", "Budget", "Memory", "Method", "Need", "assign", "choose", "make", "names"]
