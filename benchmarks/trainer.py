"""GRPO steps of this trainer against TRL's `GRPOTrainer`, and the memory of chunked logits.

Same tiny model, float32, prompts, batch, micro-batch, reward and loss; both sample from equal laws,
so tokens are equal in the mean only, and what is compared is trained tokens per second. TRL decodes
with transformers' `generate`; its other way on a CPU, continuous batching, was slower. The two take
turns in this process. Peaks of memory cannot be told apart in one process: for these each side runs
in a process of its own, with imports and model, and what it holds at most is read from the kernel.
"""

import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.grpo_sides import STAGES, Ours, Setting, Side, Tally, Theirs
from trainer.config import ModelConfig

THREADS = 2
SPEED_GOAL, MEMORY_GOAL, CHUNK_GOAL = 1.3, 1.0, 0.5
CHUNK = 64
_MIB = 2**20
_SIDES: dict[str, Callable[[Setting], Side]] = {"ours": Ours, "theirs": Theirs}
_DEMO, _QUICK = Setting(), Setting(prompts=4, micro_rows=32)
_LARGE = Setting(model=ModelConfig(max_length=256, vocabulary=32_768))
_HUGE = ModelConfig(max_length=256, vocabulary=151_936, hidden=64)
_SETTINGS = {
    "demo": _DEMO,
    "all logits": Setting(model=_HUGE, prompts=2, micro_rows=16),
    "chunks": Setting(model=_HUGE, prompts=2, micro_rows=16, chunk_tokens=CHUNK),
}

Row = tuple[str, str, str, float, float, bool]
"""What, ours, theirs, ratio, goal, and whether the goal is a lower bound."""
Rounds = tuple[list[Tally], list[Tally]]
"""Ours and theirs, a step a round."""


def main(*, quick: bool = False) -> None:
    """Prints the tables: speed and memory with goals, then seconds by stage."""
    if importlib.util.find_spec("trl") is None:
        print("benchmarks.trainer: not run, its other side is TRL: pip install 'twinstats[trl]'.")
        return
    torch.set_num_threads(THREADS)
    rounds = _rounds(_QUICK if quick else _DEMO, count=5)
    rows = [_speed("trained tokens per second", rounds)]
    stages = [("vocabulary 3,072", rounds)]
    if not quick:
        large = _rounds(_LARGE, count=5)
        rows.append(_speed("trained tokens per second, vocabulary 32,768", large))
        stages.append(("vocabulary 32,768", large))
    rows += _memory()
    _print_rows(rows)
    for what, taken in stages:
        _print_stages(f"Seconds per 1,000 trained tokens, {what}", taken)


def _rounds(setting: Setting, *, count: int) -> Rounds:
    """A step of each side in turns; the first round warms up and is left out."""
    sides: tuple[Side, Side] = (Ours(setting), Theirs(setting))
    taken: Rounds = ([], [])
    for _ in range(count + 1):
        for tallies, side in zip(taken, sides, strict=True):
            tallies.append(side.steps(1))
    return taken[0][1:], taken[1][1:]


def _speed(what: str, rounds: Rounds) -> Row:
    ours, theirs = ([one.trained / one.seconds.total() for one in side] for side in rounds)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return what, _spread(ours), _spread(theirs), ratio, SPEED_GOAL, True


def _memory() -> list[Row]:
    ours, theirs = _peak("ours", "demo"), _peak("theirs", "demo")
    whole, chunks = _peak("ours", "all logits"), _peak("ours", "chunks")
    return [
        _mib("peak memory of the process, MiB", ours["peak"], theirs["peak"], MEMORY_GOAL),
        _mib("of it the steps, MiB", ours["grown"], theirs["grown"], MEMORY_GOAL),
        _mib(
            f"vocabulary 151,936: chunks of {CHUNK} tokens against all logits, the steps, MiB",
            chunks["grown"],
            whole["grown"],
            CHUNK_GOAL,
        ),
    ]


def _mib(what: str, ours: float, theirs: float, goal: float) -> Row:
    return what, f"{ours / _MIB:,.0f}", f"{theirs / _MIB:,.0f}", ours / theirs, goal, False


def _peak(side: str, setting: str) -> dict[str, float]:
    """Bytes that a side's process holds at most, and by how much steps raised that."""
    command = [sys.executable, "-m", "benchmarks.trainer", "--peak", side, setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure_peak(side: str, setting: str) -> dict[str, float]:
    """Two steps of a side in this process, and what they took; Linux."""
    torch.set_num_threads(THREADS)
    steps = _SIDES[side](_SETTINGS[setting]).steps
    before = _status("VmRSS")
    steps(2)
    peak = _status("VmHWM")
    return {"peak": peak, "grown": peak - before}


def _status(name: str) -> float:
    """A number of the kernel's about this process, bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return 1024.0 * int(found)


def _print_rows(rows: Sequence[Row]) -> None:
    table = Table(title="A GRPO step, ours against TRL's")
    for column in ("what", "ours", "theirs", "ratio", "goal"):
        table.add_column(column)
    met = 0
    for what, ours, theirs, ratio, goal, is_least in rows:
        met += ratio >= goal if is_least else ratio <= goal
        sign = "at least" if is_least else "at most"
        table.add_row(what, ours, theirs, f"{ratio:.2f}", f"{sign} {goal:g}")
    console = Console()
    console.print(table)
    console.print(f"{met} met, {len(rows) - met} missed")


def _print_stages(title: str, rounds: Rounds) -> None:
    table = Table(title=title)
    for column in ("stage", "ours", "theirs"):
        table.add_column(column)
    for stage in STAGES:
        table.add_row(stage, *(_spread([_rate(one, stage) for one in side]) for side in rounds))
    tokens = (_spread([float(one.trained) for one in side]) for side in rounds)
    table.add_row("trained tokens of a step", *tokens)
    Console().print(table)


def _rate(tally: Tally, stage: str) -> float:
    return 1000 * tally.seconds[stage] / tally.trained


def _spread(numbers: Sequence[float]) -> str:
    digits = 0 if min(numbers) > 10 else 3
    middle, least, most = statistics.median(numbers), min(numbers), max(numbers)
    return f"{middle:,.{digits}f} ({least:,.{digits}f}-{most:,.{digits}f})"


if __name__ == "__main__":
    if "--peak" in sys.argv[1:]:
        print(json.dumps(measure_peak(*sys.argv[-2:])))
    else:
        main(quick="--quick" in sys.argv[1:])
