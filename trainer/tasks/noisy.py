"""The task `facts` with a search that is sometimes off by one: a tool that is random.

For studies of what random tools do to twins: whether a fork meets the same luck is the rollout's
choice (`shares_tools`). Leaves out everything that the plain task does.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from trainer.tasks.environment import Row, Step
from trainer.tasks.facts import Facts, read_action, render_information, retriever
from twinstats.noise import uniform


class NoisyFacts:
    """Facts whose search returns the runner-up with a probability, by the environment's luck.

    Args:
        probability: Of the second-best document, where there is one, instead of the best.
        options: Those of `Facts`.

    Raises:
        ValueError: A probability outside 0..1, or an option that `Facts` refuses.
    """

    stop: ClassVar[tuple[str, ...]] = Facts.stop
    max_turns: ClassVar[int] = Facts.max_turns
    can_hang: ClassVar[bool] = Facts.can_hang

    def __init__(self, *, probability: float, **options: Any) -> None:
        if not 0 <= probability <= 1:
            raise ValueError(f"`probability` must be in 0..1, got {probability}.")
        self._facts = Facts(**options)
        self._probability = probability

    def reset(self, row: Row, noise: Any) -> str:
        """Start `row`; return its first question."""
        return self._facts.reset(row, noise)

    def step(self, text: str, noise: Any) -> Step:
        """Play one turn as `Facts` does; `info["is_runner_up"]` tells whether search was off."""
        step = self._facts.step(text, noise)
        step.info["is_runner_up"] = False
        action = read_action(text)
        is_shown = action.kind == "search" and "exact_match" not in step.info  # the part goes on
        if not is_shown or float(uniform(noise, 0)) >= self._probability:
            return step
        found = retriever().hits(action.content, 2).documents
        if len(found) < 2:
            return step
        info = step.info | {"document": found[1].id, "is_runner_up": True}
        return step._replace(observation=render_information(found[1].text), info=info)

    def slot(self, history: Sequence[str]) -> int:
        """As in `Facts`."""
        return self._facts.slot(history)
