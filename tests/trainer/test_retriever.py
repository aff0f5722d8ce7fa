"""BM25: a formula written out, recall on the real documents, refusals."""

import math
from itertools import permutations

import numpy as np
import pytest

from trainer.tasks.countries import countries
from trainer.tasks.facts import retriever
from trainer.tasks.questions import country_query, documents, relation_query
from trainer.tasks.retriever import K1, MAX_QUERY_CHARACTERS, B, Document, Retriever, words

TEXTS = ["red fox", "red fox runs far", "blue fox fox", "a green bird", "bird of red red red"]


def naive_scores(query: str) -> list[float]:
    """Lucene's BM25, straight from its formula."""
    corpus = [words(text) for text in TEXTS]
    mean = sum(map(len, corpus)) / len(corpus)
    scores = []
    for document in corpus:
        total = 0.0
        for word in words(query):
            holding = sum(word in other for other in corpus)
            idf = math.log(1 + (len(corpus) - holding + 0.5) / (holding + 0.5))
            count = document.count(word)
            total += idf * count / (count + K1 * (1 - B + B * len(document) / mean))
        scores.append(total)
    return scores


@pytest.mark.parametrize(
    "query", ["red", "fox", "red fox", "bird red", "blue bird far", "fox fox bird"]
)
def test_ranking_follows_the_formula(query):
    index = Retriever([Document(id=i, text=text) for i, text in enumerate(TEXTS)])
    scores = np.array(naive_scores(query))
    expected = [i for i in np.argsort(-scores, kind="stable") if scores[i] > 0]
    assert [document.id for document in index.search(query, len(TEXTS))] == expected


def test_word_order_of_the_query_does_not_matter():
    counts = list(permutations((1, 2, 3, 5)))  # sums that differ by rounding alone
    texts = ["red " * a + "fox " * b + "bird " * c + "far " * d for a, b, c, d in counts]
    index = Retriever([Document(id=i, text=text) for i, text in enumerate(texts)])
    rankings = {
        tuple(document.id for document in index.search(" ".join(order), len(texts)))
        for order in permutations(["red", "fox", "bird", "far"])
    }
    assert len(rankings) == 1


def test_well_formed_queries_find_their_document_first():
    index = retriever()
    wanted = {
        relation_query(relation, country.name): f"{value} is the {relation} of {country.name}"
        for country in countries()
        for relation, value in country.facts.items()
    }
    found = [index.search(query, 1)[0].text == text for query, text in wanted.items()]
    places = [(city, country.name) for country in countries() for city in country.cities]
    places += [(c.facts["capital"], c.name) for c in countries() if "capital" in c.facts]
    found += [index.search(country_query(place), 1)[0].owner == name for place, name in places]
    assert np.mean(found) >= 0.999


def test_the_bare_name_seldom_finds_the_fact():
    index = retriever()
    found = [
        index.search(country.name, 1)[0].text.startswith(f"{value} is the {relation} of")
        for country in countries()
        for relation, value in country.facts.items()
    ]
    assert 0.1 < np.mean(found) < 0.25


def test_accents_apostrophes_and_case_do_not_matter():
    index = retriever()
    assert index.search("country of n'djamena", 1) == index.search("COUNTRY OF NDJAMÉNA", 1)


def test_a_query_within_the_limit_is_not_flagged():
    index = retriever()
    assert not index.hits("currency of Chad", 1).is_truncated
    assert not index.hits("x" * MAX_QUERY_CHARACTERS, 1).is_truncated
    assert index.hits("x" * (MAX_QUERY_CHARACTERS + 1), 1).is_truncated


def test_bad_arguments_are_refused():
    document = Document(id=0, text="red fox")
    with pytest.raises(ValueError, match="`documents` must have distinct ids"):
        Retriever([document, document])
    with pytest.raises(ValueError, match="`documents` must hold at least one search term"):
        Retriever([Document(id=0, text="of the")])
    with pytest.raises(ValueError, match="`k` must be at least 1, got 0"):
        retriever().search("Chad", 0)


def test_every_document_is_found_under_its_own_text():
    index = retriever()
    assert len(index) == len(documents())
    assert all(document in index.search(document.text, 2) for document in documents())
