"""Extraction and scores: identities, invariants, and a second, naive F1."""

import itertools

import pytest

from trainer.tasks.scoring import (
    cover_match,
    exact_match,
    extract,
    extract_answer,
    normalise,
    score,
    token_f1,
)

TEXTS = [
    "",
    "A",
    "the",
    "Paris",
    "paris.",
    "Paris, France",
    "in Paris",
    "yes",
    "yes it is",
    "1,000",
]
TEXTS += ["1000", "0,1", "01", "1990–1995", "1990-1995", "...", "🙂", "Sao Tome", "São Tomé"]


def naive_f1(ours: str, gold: str) -> float:
    left = ours.split()
    common = 0
    for token in gold.split():
        if token in left:
            left.remove(token)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = common / len(ours.split()), common / len(gold.split())
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("mode", ["squad", "unicode"])
def test_f1_equals_a_naive_count(mode):
    for ours, gold in itertools.product(TEXTS, TEXTS):
        expected = naive_f1(normalise(ours, mode), normalise(gold, mode)) if ours and gold else 0.0
        assert token_f1(ours, gold, mode=mode) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("mode", ["squad", "unicode"])
def test_a_text_matches_itself_and_normalising_twice_changes_nothing(mode):
    for text in filter(None, TEXTS):
        assert exact_match(text, text, mode=mode) == 1.0
        assert normalise(normalise(text, mode), mode) == normalise(text, mode)


def test_scores_are_ordered_exact_below_f1_and_exact_below_cover():
    for ours, gold, is_hotpot in itertools.product(TEXTS, TEXTS, (False, True)):
        scored = score(ours, [gold, "Rome"], is_hotpot=is_hotpot)
        assert scored.exact_match <= scored.f1 <= 1.0
        assert scored.exact_match <= scored.cover


def test_golds_are_a_maximum_and_never_joined():
    assert exact_match("Rome Paris", ["Rome", "Paris"]) == 0.0
    assert token_f1("Rome", ["Paris", "Rome Italy"]) == pytest.approx(2 / 3)
    assert token_f1("Rome", "Rome") == 1.0  # a single string is one gold, not its letters


def test_cover_matches_whole_words_only():
    assert cover_match("it is in Niger", "Niger") == 1.0
    assert cover_match("it is in Nigeria", "Niger") == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("115,000, and 0,1", "115000 and 0,1"),
        ("1,234,56", "1,234,56"),
        ("1234,567", "1234,567"),
        ("-1,000", "1000"),
        ("Paris, 1,000,000", "paris 1000000"),
    ],
)
def test_only_commas_between_thousands_go(text, expected):
    assert normalise(text) == expected


def test_extract_takes_the_last_tag_and_refuses_an_open_one():
    assert extract("<search>a</search> b <search> c </search>", "search") == "c"
    assert extract("<search>a</search><search>b", "search") is None
    assert extract("<answer><answer>x</answer>", "answer") == "x"
    assert extract("no tag", "answer") is None
    assert extract("<answer></answer>", "answer") == ""


def test_an_answer_does_not_reach_over_two_turns():
    assert extract_answer([("<answer>Ro", True), ("me</answer>", True)]) is None


def test_unknown_mode_and_no_gold_are_refused():
    with pytest.raises(ValueError, match=r"`mode` must be one of squad, unicode, got 'x'"):
        normalise("a", "x")
    with pytest.raises(ValueError, match="`golds` must hold at least one"):
        exact_match("a", [])
