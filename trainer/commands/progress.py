"""How training goes on, on the error stream: a bar on a terminal, elsewhere a line now and then."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console

from trainer.commands.score_tables import share
from trainer.commands.shared import progress_bar
from trainer.config import Config
from trainer.evaluation.scores import EXACT_MATCH, OUTCOME, score_of

_SECONDS = 10.0  # between two lines, at least

OnStep = Callable[[int, Mapping[str, float]], None]


@contextmanager
def training_progress(
    config: Config, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[OnStep]:
    """What is to be told of every step: its number and metrics."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(config, console, clock)
        return
    with progress_bar() as bar:
        task = bar.add_task(config.credit.method, total=1.0, note="")

        def on_step(step: int, metrics: Mapping[str, float]) -> None:
            done = _share_done(config, step, metrics)
            bar.update(task, completed=done, note=note(step, metrics))

        yield on_step


def _share_done(config: Config, step: int, metrics: Mapping[str, float]) -> float:
    return config.length.share_done(step=step, total_tokens=metrics["train/total_tokens"])


def note(step: int, metrics: Mapping[str, float]) -> str:
    """A step in a line: reward, test score, rho_eff, discordance, tokens; what is unknown is not.

    >>> note(3, {"train/outcome_share": 0.25, "train/total_tokens": 1200})
    'step 3  reward .250  tokens 1,200'
    """
    told = [f"step {step}"]
    for word, name in (
        ("reward", "train/outcome_share"),
        ("test outcome", OUTCOME),
        ("test exact match" if OUTCOME in metrics else "test", EXACT_MATCH),
        ("rho_eff", "pairs/rho_eff_ratio"),
        ("discordance", "pairs/discordance_share"),
    ):
        value = metrics.get(name, math.nan)
        if math.isfinite(value):
            told.append(f"{word} {share(value)}")
    return "  ".join([*told, f"tokens {metrics['train/total_tokens']:,.0f}"])


def _lines(config: Config, console: Console, clock: Callable[[], float]) -> OnStep:
    """Prints the first and the last step, every one with an evaluation, and one in ten seconds."""
    last = -math.inf

    def on_step(step: int, metrics: Mapping[str, float]) -> None:
        nonlocal last
        is_over = _share_done(config, step, metrics) == 1.0
        is_due = is_over or score_of(metrics) is not None or clock() - last >= _SECONDS
        if is_due:
            last = clock()
            console.print(
                f"{config.credit.method}: {note(step, metrics)}",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )

    return on_step
