"""BM25 search in memory: exact, and with one ranking whatever the order of insertion, k or thread.

Scores come from bm25s; the order is our own, score first, then the lowest document id, so that the
results for k are a prefix of those for k + 1. What it leaves out: stemming, and any approximate
index.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

K1 = 0.3
B = 0.75
MAX_QUERY_CHARACTERS = 512
STOP_WORDS = frozenset(
    "a an and are as at be by did do does for from had has have how in is it its of on or that the"
    " their this to was were what when where which who whom whose why will with".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document: its `text`, whom it is about (`owner`), and what it tells (`value`)."""

    id: int
    text: str
    value: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Documents found, best first, and whether the query was cut to MAX_QUERY_CHARACTERS."""

    documents: tuple[Document, ...]
    is_truncated: bool


def words(text: str) -> list[str]:
    """Search terms of a text: lower case, no accents, no apostrophes, no stop words, in order."""
    decomposed = unicodedata.normalize("NFKD", text.lower())
    bare = "".join(c for c in decomposed if not unicodedata.combining(c) and c not in "'’")
    return [word for word in re.findall(r"\w+", bare) if word not in STOP_WORDS]


class Retriever:
    """BM25 over a fixed set of documents; instances are read-only and may serve many threads."""

    is_exact = True  # the precondition for twins: an approximate index must say False

    def __init__(self, documents: Sequence[Document], *, cache_size: int = 8192) -> None:
        """Index `documents`; `cache_size` is the number of queries whose ranking is remembered.

        Raises:
            ValueError: No document has a search term, or two documents have one id.
        """
        self._documents = tuple(sorted(documents, key=lambda document: document.id))
        if len({document.id for document in documents}) != len(documents):
            raise ValueError("`documents` must have distinct ids.")
        corpus = [words(document.text) for document in self._documents]
        if not any(corpus):
            raise ValueError("`documents` must hold at least one search term.")
        self._weights = _term_weights(corpus)
        self._ranked = lru_cache(maxsize=cache_size)(self._rank)

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, query: str, k: int) -> list[Document]:
        """The `k` best documents that share a term with the query; fewer if fewer do."""
        return list(self.hits(query, k).documents)

    def hits(self, query: str, k: int) -> Hits:
        """Like `search`, and tells whether the query was too long and cut.

        Raises:
            ValueError: `k` is below 1.
        """
        if k < 1:
            raise ValueError(f"`k` must be at least 1, got {k}.")
        ranking = self._ranked(query[:MAX_QUERY_CHARACTERS])
        return Hits(
            documents=tuple(self._documents[index] for index in ranking[:k]),
            is_truncated=len(query) > MAX_QUERY_CHARACTERS,
        )

    def _rank(self, query: str) -> tuple[int, ...]:
        """Positions of all documents with a positive score: score descending, id ascending.

        Terms are added in alphabetical order, so that a score does not depend on their order.
        """
        scores = np.zeros(len(self._documents), dtype=np.float64)
        for word in sorted(words(query)):
            if word in self._weights:
                positions, weights = self._weights[word]
                scores[positions] += weights
        found = np.flatnonzero(scores > 0)
        return tuple(found[np.argsort(-scores[found], kind="stable")].tolist())


def _term_weights(corpus: list[list[str]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each term the positions of its documents, ascending, and the BM25 weight in each."""
    from bm25s import BM25

    index = BM25(k1=K1, b=B, method="lucene", dtype="float64")
    index.index(corpus, show_progress=False)
    bounds = index.scores["indptr"]
    weights: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for word, column in index.vocab_dict.items():
        part = (
            slice(bounds[column], bounds[column + 1]) if column + 1 < len(bounds) else slice(0, 0)
        )
        order = np.argsort(index.scores["indices"][part], kind="stable")
        positions = index.scores["indices"][part][order]
        weights[word] = (positions, index.scores["data"][part][order])
    return weights
