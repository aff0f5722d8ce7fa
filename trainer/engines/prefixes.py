"""Keys and values of what was encoded, found again by token ids: an automatic prefix cache.

It knows nothing of episodes. A prefix is found by a chained hash of its ids, and the ids are
verified. Leaves out when states are stale: whoever changes weights clears the store.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

_ROOT = 0
_MOST_GONE = 2**20  # hashes of what had to go that are remembered


class Trace:
    """Token ids, and a hash of every prefix of them.

    Attributes:
        ids: The tokens.
        hashes: `hashes[n]` stands for the first n of them.
    """

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids: list[int] = []
        self.hashes = [_ROOT]
        self.extend(ids)

    def extend(self, ids: Iterable[int]) -> None:
        """Adds tokens."""
        for token in ids:
            self.ids.append(token)
            self.hashes.append(hash((self.hashes[-1], token)))


@dataclass(slots=True, eq=False)
class _Segment:
    """States of the tokens from `begin` to `end`; those before are its parent's and so on."""

    parent: "_Segment | None"
    begin: int
    ids: list[int]
    hashes: list[int]
    states: torch.Tensor
    hidden: torch.Tensor

    @property
    def end(self) -> int:
        return self.begin + len(self.ids)

    @property
    def num_bytes(self) -> int:
        return self.states.nbytes + self.hidden.nbytes


@dataclass(frozen=True, slots=True)
class Prefix:
    """The longest prefix that is kept.

    Attributes:
        length: Its tokens; 0 where nothing is kept.
        pieces: What is kept of it, (begin, states), from the front.
        hidden: The hidden state after its last token, where that is kept too.
    """

    length: int = 0
    pieces: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    hidden: torch.Tensor | None = None


class PrefixStore:
    """Keeps states until their bytes are too many; what was used longest ago goes first.

    States are kept in segments, each of which goes on where another one's tokens are left. Using a
    segment uses those before it, later: so the oldest is never needed by a younger one.

    Args:
        max_bytes: Of states; the index, a hash a token, comes on top.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._by_age: dict[_Segment, None] = {}
        self._holder: dict[int, _Segment] = {}
        self._gone: dict[int, None] = {}

    def clear(self) -> None:
        """Forgets everything."""
        self.num_bytes = 0
        self._by_age.clear()
        self._holder.clear()
        self._gone.clear()

    def find(self, trace: Trace) -> Prefix:
        """The longest prefix of these tokens that is kept.

        It is all of them only where the hidden state after the last one is known as well: a token
        that is drawn next needs it.
        """
        path, end = self._path(trace, len(trace.ids))
        self._use(path)
        if not path:
            return Prefix()
        is_known = end == path[-1].end
        length = end if is_known or end < len(trace.ids) else end - 1
        ends = [*(segment.begin for segment in path[1:]), length]
        pieces = [
            (segment.begin, segment.states[..., : stop - segment.begin, :])
            for segment, stop in zip(path, ends, strict=True)
            if stop > segment.begin
        ]
        return Prefix(length, pieces, path[-1].hidden if is_known else None)

    def add(
        self,
        trace: Trace,
        end: int,
        read: Callable[[int, int], torch.Tensor],
        hidden: torch.Tensor,
    ) -> None:
        """Keeps the states of the first `end` tokens, of which it copies what it lacks.

        Args:
            trace: The tokens.
            end: How many of them.
            read: A copy of the states (..., tokens, D) from one position to another.
            hidden: The hidden state after the last one; is copied.
        """
        path, begin = self._path(trace, end)
        if not path or path[-1].end != end or begin != end:
            segment = _Segment(
                path[-1] if path else None,
                begin,
                trace.ids[begin:end],
                trace.hashes[begin + 1 : end + 1] or [trace.hashes[end]],
                read(begin, end),
                hidden.clone(),
            )
            for one in segment.hashes:
                self._holder.setdefault(one, segment)
            self._holder[trace.hashes[end]] = segment  # only here is the hidden state known
            self.num_bytes += segment.num_bytes
            path.append(segment)
        self._use(path)
        while self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._by_age)))

    def count_gone(self, trace: Trace, begin: int) -> int:
        """How many of the tokens from `begin` on were kept once and had to go, as far as is known.

        At least the last 500,000 that had to go are.
        """
        return sum(one in self._gone for one in trace.hashes[begin + 1 :])

    def _path(self, trace: Trace, limit: int) -> tuple[list[_Segment], int]:
        """Segments that hold the longest kept prefix of `limit` tokens at most, and its length."""
        for end in range(limit, 0, -1):
            holder = self._holder.get(trace.hashes[end])
            if holder is not None and (path := _verified(holder, trace.ids, end)):
                return path, end
        return [], 0

    def _use(self, path: list[_Segment]) -> None:
        for segment in reversed(path):
            self._by_age.pop(segment, None)
            self._by_age[segment] = None

    def _drop(self, segment: _Segment) -> None:
        del self._by_age[segment]
        self.num_bytes -= segment.num_bytes
        self._gone.update(dict.fromkeys(segment.hashes))
        if len(self._gone) > _MOST_GONE:
            self._gone = dict.fromkeys(list(self._gone)[len(self._gone) // 2 :])
        for one in segment.hashes:
            if self._holder.get(one) is segment:
                del self._holder[one]


def _verified(segment: _Segment, ids: list[int], end: int) -> list[_Segment]:
    """The segments from the front to this one; none if they hold other ids than the first `end`."""
    path = [segment]
    while (one := path[-1]).ids[: end - one.begin] == ids[one.begin : end]:
        if one.parent is None:
            return path[::-1]
        end = one.begin
        path.append(one.parent)
    return []
