"""Recipes: functions that return the whole configuration of a run."""

from collections.abc import Callable

from trainer.config import Config
from twinstats.errors import unknown


def demo() -> Config:
    """A tiny Qwen2-architecture agent that searches real facts; minutes on a CPU."""
    return Config(recipe="demo")


RECIPES: dict[str, Callable[[], Config]] = {"demo": demo}


def recipe(name: str) -> Config:
    """The configuration of a recipe.

    Raises:
        UsageError: An unknown name; the nearest right one is named.
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]()
