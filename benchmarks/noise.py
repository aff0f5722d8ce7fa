"""Keyed sampling against ordinary sampling: 64 rows x 151,936 logits, and the `hf` engine.

Ordinary sampling is what transformers' `generate` does: softmax, then multinomial. On a machine
with CUDA the fused kernel is measured against `argmax` over the same logits.
"""

import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch

from benchmarks.measure import Comparison, report
from trainer import noise
from trainer.config import Config, RolloutConfig, TaskConfig
from trainer.noise import sources
from trainer.noise.sources import Sampler
from trainer.setup import cache_folder, make_rollout
from trainer.supervised.warmup import warm_policy
from trainer.tasks import rows
from twinstats.episodes import Task
from twinstats.noise import KeyColumns, NoiseKey, generator

ROWS, VOCABULARY = 64, 151_936
# Bonus of one token over normal logits, and the goal of its ratio.
CASES = ((14.2, 0.10), (11.4, 0.34), (9.1, 1.04))
ENGINE_GOAL, KERNEL_GOAL = 1.08, 1.3


def main(*, quick: bool = False) -> None:
    """Prints the tables."""
    repeats = 5 if quick else 9
    report(
        f"Sampling, {ROWS} rows x {VOCABULARY}: ours against torch softmax + multinomial",
        [_sampling(*case) for case in CASES],
        repeats=repeats,
    )
    report(
        "The hf engine on the demo model: keyed noise against softmax + multinomial",
        [_engine(parts, batch) for parts, batch in ((1, 128), (4, 128), (4, 16))],
        repeats=repeats,
    )
    if torch.cuda.is_available():
        title = f"Fused kernel, {ROWS} rows x {VOCABULARY}, against argmax over the same logits"
        report(title, [_kernel(bonus) for bonus, _ in CASES], repeats=repeats)
    else:
        print("Fused kernel against argmax: not run, this machine has no CUDA device.")


def _logits(bonus: float, device: str) -> torch.Tensor:
    logits = generator(0, "benchmark").normal(size=(ROWS, VOCABULARY)).astype(np.float32)
    logits[:, 7] += bonus
    return torch.from_numpy(logits).to(device)


def _name(logits: torch.Tensor) -> str:
    return f"top probability {float(torch.softmax(logits, -1).max(-1).values.mean()):.2f}"


def _keyed(logits: torch.Tensor) -> Callable[[], torch.Tensor]:
    keys = [NoiseKey(0, 0, row, 0) for row in range(ROWS)]
    return lambda: noise.sample(logits, keys, [0] * ROWS)


def _sampling(bonus: float, goal: float) -> Comparison:
    logits = _logits(bonus, "cpu")
    return Comparison(
        what=_name(logits),
        ours=_keyed(logits),
        theirs=lambda: torch.multinomial(torch.softmax(logits, -1), 1),
        goal=goal,
    )


def _kernel(bonus: float) -> Comparison:
    logits = _logits(bonus, "cuda")

    def timed(draw: Callable[[], torch.Tensor]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(100):  # hides the launch of each
                draw()
            torch.cuda.synchronize()

        return run

    columns = KeyColumns.of([NoiseKey(0, 0, row, 0) for row in range(ROWS)])
    keys = noise.key_words(columns, "cuda")
    positions = torch.zeros(ROWS, dtype=torch.long, device="cuda")
    temperature = torch.ones(ROWS, dtype=torch.double, device="cuda")
    kernel = noise.device_sampler("cuda")
    return Comparison(
        what=_name(logits),
        ours=timed(lambda: kernel(logits, keys, positions, temperature)[0]),
        theirs=timed(lambda: logits.argmax(-1)),
        goal=KERNEL_GOAL,
    )


def _engine(parts: int, batch: int) -> Comparison:
    """Both sides decode the same tokens: the ordinary side draws, then takes the recorded ones.

    Ours draws with the engine's default, which looks for logged noise in every row.
    """
    recorded: list[torch.Tensor] = []
    replayed: Iterator[torch.Tensor] = iter(())

    def record(*arguments: object) -> torch.Tensor:
        recorded.append(sources.sample(*arguments))
        return recorded[-1]

    def ordinary(logits: torch.Tensor, *_: object) -> torch.Tensor:
        torch.multinomial(torch.softmax(logits, -1), 1)
        return next(replayed)

    def theirs() -> None:
        nonlocal replayed
        replayed = iter(recorded)
        play(ordinary)

    play = _player(parts, batch)
    play(record)
    return Comparison(
        what=f"{parts}-part episodes, {batch} rows, {sum(map(len, recorded))} tokens",
        ours=lambda: play(sources.sample),
        theirs=theirs,
        goal=ENGINE_GOAL,
    )


def _player(parts: int, batch: int) -> Callable[[Sampler], None]:
    """Plays 256 episodes of one part, or a quarter as many of four, with a sampler."""
    config = Config(
        recipe="demo", task=TaskConfig(parts=parts), rollout=RolloutConfig(max_batch=batch)
    )
    policy = warm_policy(config, cache_folder())
    tasks = [Task(*row) for row in rows.task_rows("train", parts, key="benchmark")[: 64 // parts]]

    def play(sampler: Sampler) -> None:
        make_rollout(policy, config, sampler=sampler).play(tasks, rollouts=4, step=0)

    return play


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
