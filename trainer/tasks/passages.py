"""What a search brings: passages of a corpus, from an index here or from a `/retrieve` server.

The protocol is that of Search-R1's server. Every answer is kept by (query, k) for as long as the
process lives, so a replay sees what the factual saw, whatever the server would say now.
Leaves out how passages are shown (`tool_calls`).
"""

import json
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx

from trainer.tasks.environment import ToolError
from trainer.tasks.files import file_digest
from trainer.tasks.retriever import MAX_QUERY_CHARACTERS, Document, Retriever
from twinstats.errors import UsageError


class Passage(NamedTuple):
    """A passage: its id in the corpus, and its contents: the title's line, then the text."""

    id: str
    contents: str


class Search(Protocol):
    """Finds passages; one instance serves many threads."""

    def passages(self, query: str, k: int) -> Sequence[Passage]:
        """The `k` best passages, best first; none for a query without a word.

        Only the first 512 characters of a query count.

        Raises:
            ToolError: The search failed.
        """
        ...


class CorpusSearch:
    """BM25 over a file of passages, in memory: for corpora of up to some hundred thousand.

    Args:
        path: JSON lines {"id", "contents"}, as wiki-18.jsonl.

    Raises:
        UsageError: A line that is none, or no passage at all.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as lines:
            self._passages = [_passage(line, f"{path}:{n}") for n, line in enumerate(lines, 1)]
        told = enumerate(self._passages)
        try:
            self._index = Retriever([Document(id=n, text=one.contents) for n, one in told])
        except ValueError as error:
            raise UsageError(
                f"`task.corpus` must hold passages with words, {path} has none."
            ) from error

    def passages(self, query: str, k: int) -> Sequence[Passage]:
        """The `k` best passages, those that share no word with the query left out."""
        return [self._passages[found.id] for found in self._index.search(query, k)]


class ServerSearch:
    """Asks a server: POST {"queries", "topk", "return_scores": true}.

    Args:
        address: Of the server; `/retrieve` is added where it has no path.
        seconds: How long an answer may take.

    Raises:
        UsageError: The address is none.
    """

    def __init__(self, address: str, *, seconds: float) -> None:
        url = _url(address)
        self._address = str(url.copy_with(path="/retrieve") if url.path == "/" else url)
        self._http = httpx.Client(timeout=seconds, trust_env=False)
        self._kept: dict[tuple[str, int], tuple[Passage, ...]] = {}
        self._lock = threading.Lock()

    def passages(self, query: str, k: int) -> Sequence[Passage]:
        """The `k` best passages by the server's judgement, kept from the first time it is asked.

        Raises:
            ToolError: It did not answer in time, or not with passages; nothing is kept then.
        """
        asked = query.strip()[:MAX_QUERY_CHARACTERS], k
        if not asked[0]:
            return ()
        found = self._kept.get(asked)
        if found is not None:
            return found
        found = self._ask(*asked)
        with self._lock:  # of two that asked at once, both see what the first got
            return self._kept.setdefault(asked, found)

    def _ask(self, query: str, k: int) -> tuple[Passage, ...]:
        # without scores the reference server fails
        body = {"queries": [query], "topk": k, "return_scores": True}
        try:
            reply = self._http.post(self._address, json=body).raise_for_status().json()
            (hits,) = reply["result"]
            found = tuple(_found(hit["document"]) for hit in hits[:k])
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            raise ToolError(f"the search at {self._address} failed: {said}") from error
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ToolError(f"{self._address} answered no passages: {error!r}") from error
        return found


@cache
def corpus_search(path: Path, digest: str) -> CorpusSearch:
    """The index over a file of this content; made once a process."""
    assert digest
    return CorpusSearch(path)


@cache
def server_search(address: str, seconds: float) -> ServerSearch:
    """The one client of a server, so that what it said is kept for all."""
    return ServerSearch(address, seconds=seconds)


def search_of(*, corpus: str, retriever: str, seconds: float) -> Search:
    """The search that a configuration names: `task.retriever`, or else `task.corpus`.

    Raises:
        UsageError: It names neither or both, or what it names is not to be had.
    """
    if bool(corpus) == bool(retriever):
        raise UsageError(
            "Task 'search_qa' needs one search: `task.retriever` (the address of a /retrieve "
            'server) or `task.corpus` (a file of lines {"id", "contents"}, as wiki-18.jsonl), '
            f"got {'both' if corpus else 'neither'}."
        )
    if retriever:
        return server_search(retriever, seconds)
    path = Path(corpus)
    if not path.is_file():
        raise UsageError(f"`task.corpus` must name a file that exists: {path} does not.")
    return corpus_search(path, file_digest(path))


def _url(address: str) -> httpx.URL:
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise UsageError(f"`task.retriever` must be an http address, got {address!r}.") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"`task.retriever` must be an http address, got {address!r}.")
    return url


def _found(document: Any) -> Passage:
    contents = document["contents"]
    if not isinstance(contents, str):
        raise TypeError(f"`contents` is {type(contents).__name__}")
    contents.encode()  # half of a surrogate pair is no text
    return Passage(str(document.get("id", "")), contents)


def _passage(line: bytes, place: str) -> Passage:
    try:
        told = json.loads(line)
        return Passage(str(told["id"]), _found(told).contents)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UsageError(
            f'`task.corpus` must hold lines {{"id", "contents"}}: {place} does not.'
        ) from error
