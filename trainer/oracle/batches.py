"""The batches of a study of a fixed policy: the run they are written to, and which are still due.

A batch is a step of the log; it is finished once the study's last table has it, and a killed study
goes on with the first that is not. Leaves out what is played (`study`, `floor`).
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.config import MACHINE, from_dict
from twinstats.records import Run, create_run, parts, reopen_run

OnBatch = Callable[[int, int, str], None]
"""Gets the number of batches done, that of all, and the name of the part that is played."""


def open_run(
    out: Path, configuration: Mapping[str, Any], *, started: Callable[[], str], resume: bool
) -> Run:
    """The run folder of a study: a new one, or with `resume` one to go on with.

    Fields of `MACHINE` may have changed.

    Raises:
        UsageError: The folder exists, or was made with another configuration.
    """
    if resume:
        understood = functools.partial(_understood, where=str(out))
        return reopen_run(out, configuration, understood=understood, free=MACHINE)
    seed = configuration["seed"]
    return create_run(
        out, command="twice oracle", configuration=configuration, seed=seed, started=started()
    )


def _understood(stored: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """What a study's configuration means to this version: fields that it lacks have defaults."""
    own = {name: stored[name] for name in ("oracle", "floor", "policy") if name in stored}
    trained = {name: value for name, value in stored.items() if name not in own}
    return asdict(from_dict(trained, where=where)) | own


def unfinished(
    run: Run, names: Sequence[str], num_batches: int, *, table: str, on_batch: OnBatch | None
) -> Iterator[tuple[int, int, int]]:
    """The (step, part, batch) that are to be played, in order; what is left of them is removed.

    Args:
        run: Where they are written.
        names: Of the parts of the study, each of which has all batches.
        num_batches: Of each part.
        table: The last that a batch writes.
        on_batch: Is told before each.
    """
    total = len(names) * num_batches
    done = num_finished(run, total, table=table)
    run.rewind(done - 1)
    for step in range(done, total):
        part, batch = divmod(step, num_batches)
        if on_batch is not None:
            on_batch(step, total, names[part])
        yield step, part, batch


def num_finished(run: Run, total: int, *, table: str) -> int:
    """How many batches from the first on are finished."""
    written = set(parts(run.path, table))
    return next((s for s in range(total) if run.part(table, s) not in written), total)
