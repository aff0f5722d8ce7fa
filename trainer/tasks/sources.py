"""Where the rows of a task come from, in one form: what a step plays, and what tests it.

Which rows those are follows from seed and step alone, so a resumed run goes on with the same ones.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol, overload

from trainer.tasks.files import FileRow, Files, file_digest, paths_in
from trainer.tasks.questions import data_fingerprint
from trainer.tasks.rows import TaskRow, task_rows
from twinstats.errors import UsageError
from twinstats.noise import generator


class Source(Protocol):
    """The rows of a task."""

    def train(self, count: int, *, seed: int, step: int) -> Sequence[TaskRow]:
        """The rows of a step, `count` of them and none twice.

        Raises:
            UsageError: There are fewer.
        """
        ...

    def test(self, *, key: str) -> Sequence[TaskRow]:
        """All test rows in an order of this key."""
        ...

    def fingerprint(self) -> str:
        """A digest of all data: nothing made from other data fits it."""
        ...


class FactRows:
    """Questions over real facts, `parts` an episode; each step draws anew from all of them.

    Args:
        parts: Questions of one episode.
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def train(self, count: int, *, seed: int, step: int) -> Sequence[TaskRow]:
        """The rows of a step, `count` of them and none twice.

        Raises:
            UsageError: There are fewer.
        """
        rows = self._rows("train", f"train/{seed}/{step}")
        if len(rows) < count:
            raise UsageError(
                f"`rollout.groups` must be at most {len(rows)}, the tasks of {self._parts} "
                f"questions that there are, got {count}."
            )
        return rows[:count]

    def test(self, *, key: str) -> Sequence[TaskRow]:
        """All test rows in an order of this key."""
        return self._rows("test", key)

    def fingerprint(self) -> str:
        """A digest of all questions, answers and documents."""
        return data_fingerprint()

    def _rows(self, split: str, key: str) -> tuple[TaskRow, ...]:
        try:
            return task_rows(split, self._parts, key=key)
        except ValueError as error:
            raise UsageError(f"`task.parts`: {error}") from error


class FileRows:
    """Rows of files, gone through in epochs: each in an order of its own, each row once at most.

    Args:
        data: Files of `task.data`, comma-separated.
        test_data: Those of `task.test_data`.
        read: What a row of a file is to the task, for a split; all are tried here.
        besides: Other files whose content matters (`task.corpus`).

    Raises:
        UsageError: Files or rows that cannot be used; the first is named.
    """

    def __init__(
        self, data: str, test_data: str, *, read: Callable[[FileRow, str], TaskRow], besides: str
    ) -> None:
        named = {"data": data, "test_data": test_data, "corpus": besides}
        self._digests = [
            [name, *map(file_digest, paths_in(f"task.{name}", paths))]
            for name, paths in named.items()
        ]
        self._train = _Picked(Files("task.data", data), read, "train")
        self._test = _Picked(Files("task.test_data", test_data), read, "test")
        for name, rows in (("data", self._train), ("test_data", self._test)):
            if not len(rows):
                raise UsageError(f"`task.{name}` must hold a row, {named[name]!r} has none.")
            rows.check()

    def train(self, count: int, *, seed: int, step: int) -> Sequence[TaskRow]:
        """The rows of a step, `count` of them and none twice; an epoch's rest is not played.

        Raises:
            UsageError: There are fewer.
        """
        steps = len(self._train) // count
        if steps < 1:
            raise UsageError(
                f"`rollout.groups` must be at most {len(self._train)}, the rows of `task.data`, "
                f"got {count}."
            )
        epoch, place = divmod(step - 1, steps)
        order = _order(len(self._train), seed, f"train/{epoch}")
        return [self._train[n] for n in order[place * count : (place + 1) * count]]

    def test(self, *, key: str) -> Sequence[TaskRow]:
        """All test rows in an order of this key."""
        return self._test.ordered(_order(len(self._test), 0, key))

    def fingerprint(self) -> str:
        """A digest of all files."""
        return hashlib.sha256(repr(self._digests).encode()).hexdigest()[:16]


class _Picked(Sequence[TaskRow]):
    """Rows of files in some order, made when they are asked for."""

    def __init__(
        self,
        files: Files,
        read: Callable[[FileRow, str], TaskRow],
        split: str,
        order: Sequence[int] | None = None,
    ) -> None:
        self._files, self._read, self._split = files, read, split
        self._order = range(len(files)) if order is None else order

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> TaskRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[TaskRow]: ...

    def __getitem__(self, index: int | slice) -> TaskRow | list[TaskRow]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        return self._read(self._files[self._order[index]], self._split)

    def ordered(self, order: Sequence[int]) -> "_Picked":
        """The same rows in another order."""
        return _Picked(self._files, self._read, self._split, order)

    def check(self) -> None:
        """Reads each row once.

        Raises:
            UsageError: One cannot be used.
        """
        for _ in self:
            pass


@lru_cache(maxsize=8)
def _order(count: int, seed: int, key: str) -> list[int]:
    return [int(number) for number in generator(seed, f"rows/{key}").permutation(count)]
