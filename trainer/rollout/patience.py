"""Calls that may hang: they are waited for as long as patience lasts, then left alone.

A call runs on a thread that is kept for the next one; Python cannot end a thread, so one that
hangs is abandoned with whatever it holds, and does not keep the program from ending.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], Any], Future]


class _Worker(threading.Thread):
    """Runs jobs one after another, until it gets none."""

    def __init__(self) -> None:
        super().__init__(name="patience", daemon=True)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            function, future = job
            try:
                future.set_result(function())
            # whatever the call raises, SystemExit too, is its caller's to judge
            except BaseException as error:
                future.set_exception(error)
            del job, function, future  # an idle worker holds nothing


_idle: list[_Worker] = []


def outcome_within(
    seconds: float, function: Callable[[], Any], *, progress: Callable[[], int] = lambda: 0
) -> Future:
    """The finished call of a function: its result, or the exception it raised.

    May be used from several threads. A caller that is interrupted abandons the call as well.

    Args:
        seconds: How long is waited.
        function: What is called.
        progress: A number that grows as the call gets on. Where it has grown in the meantime, the
            same time is waited again: a part of the call that hangs is left within twice of it.

    Raises:
        TimeoutError: The call takes longer than that; it goes on, and nobody waits for it.
    """
    worker = _rested() or _Worker()
    future: Future = Future()
    worker.jobs.put((function, future))
    try:
        _wait(future, min(seconds, threading.TIMEOUT_MAX), progress)
    except BaseException:
        worker.jobs.put(None)
        raise
    _idle.append(worker)
    return future


def _wait(future: Future, seconds: float, progress: Callable[[], int]) -> None:
    before = progress()
    while True:
        try:
            future.exception(timeout=seconds)
            return
        except TimeoutError:
            now = progress()
            if now == before:
                raise
            before = now


def _rested() -> _Worker | None:
    """A worker that has nothing to do; those of another process (after a fork) are let go."""
    while _idle:
        try:
            worker = _idle.pop()
        except IndexError:  # another thread was faster
            break
        if worker.is_alive():
            return worker
    return None
