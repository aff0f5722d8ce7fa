"""What a step costs: seconds by stage, tokens a second, and the most memory held.

Names under `time/` and `memory/` are the only ones that differ between two runs of one seed.
"""

import contextlib
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

_STAGES = ("play", "credit", "update", "sync", "log", "evaluation")
_STATUS = Path("/proc/self/status")  # where there is one, its peak is of this process alone


class Stopwatch:
    """Seconds of each stage of a step; a stage that was not entered took 0.

    - play: factual episodes. credit: forks, and what the method makes of them.
    - update: all passes of the learner, and what providers of needs learn.
    - sync: the engine takes up the new weights.
    - log: the tables of the step. evaluation: on test questions, in steps that have one.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(_STAGES, 0.0)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds what happens inside to a stage; work that a GPU was given is waited for."""
        begun = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[name] += time.perf_counter() - begun

    def metrics(self, *, sampled: float, trained: float) -> dict[str, float]:
        """By name: seconds of each stage, of the step without evaluation, and tokens a second.

        Args:
            sampled: Tokens that were sampled, forks included: in the stages play and credit.
            trained: Tokens that were trained: in the stage update.
        """
        own = self.seconds
        return {
            **{f"time/{name}_seconds": value for name, value in own.items()},
            "time/step_seconds": sum(own.values()) - own["evaluation"],
            "time/sampled_tokens_per_second": _rate(sampled, own["play"] + own["credit"]),
            "time/trained_tokens_per_second": _rate(trained, own["update"]),
        }


def memory() -> dict[str, float]:
    """By name: the most memory that this process has held so far, bytes; on a GPU what it took.

    A peak never falls: what another setting needs is told by another run.
    """
    found: dict[str, float] = {"memory/peak_bytes": _peak_bytes()}
    if torch.cuda.is_available():
        found["memory/peak_cuda_bytes"] = torch.cuda.max_memory_allocated()
    return found


def _peak_bytes() -> float:
    """The largest resident size so far.

    On Linux `ru_maxrss` would begin with what the process held that started this one.
    """
    if _STATUS.exists():
        told = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return float(told["VmHWM"].removesuffix("kB")) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def _rate(amount: float, seconds: float) -> float:
    """A rate; NaN where no time has passed."""
    return amount / seconds if seconds > 0 else float("nan")
