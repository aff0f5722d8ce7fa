"""Documents of one fact each, questions of one or two hops over them, and their split.

A question asks one relation of a country that it names (one hop) or describes by its capital or by
one of its cities (two hops). Of the ways to reach one fact, exactly one is a test question, so
train and test share facts but no combination of fact and way.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from trainer.tasks.countries import RELATIONS, Country, countries
from trainer.tasks.retriever import Document, words

SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question: who is asked about, how it is named, which relation, and the right answers.

    `entry` is "name", "capital", "city1" or "city2"; `subject` is the name used for it in the text.
    """

    iso: str
    country: str
    relation: str
    entry: str
    subject: str
    golds: tuple[str, ...]
    split: str

    @property
    def id(self) -> str:
        """Such as "TD/currency/city1": unique over both splits."""
        return f"{self.iso}/{self.relation}/{self.entry}"

    @property
    def num_hops(self) -> int:
        """Searches needed: one for a country that is named, else two."""
        return 1 if self.entry == "name" else 2

    @property
    def text(self) -> str:
        """The question as the model reads it, without tags."""
        return f"What is the {self.relation} of {_described(self.entry, self.subject)}?"


def country_query(subject: str) -> str:
    """The well-formed search that leads from a capital or a city to its country."""
    return f"country of {subject}"


def relation_query(relation: str, country: str) -> str:
    """The well-formed search for one relation of a country."""
    return f"{relation} of {country}"


@cache
def documents() -> tuple[Document, ...]:
    """One document a fact and one a city, in order of country."""
    told: list[tuple[str, str, str]] = []
    for country in countries():
        told += [
            (value, f"{value} is the {relation} of {country.name}", country.name)
            for relation, value in country.facts.items()
        ]
        told += [
            (city, f"{city} is a city of {country.name}", country.name) for city in country.cities
        ]
    return tuple(
        Document(id=index, text=text, value=value, owner=owner)
        for index, (value, text, owner) in enumerate(told)
    )


@cache
def questions() -> tuple[Question, ...]:
    """All questions, in order of country, relation and entry; the split is checked."""
    built = tuple(
        question
        for country in countries()
        for relation in RELATIONS
        if relation in country.facts
        for question in _ask(country, relation)
    )
    assert_disjoint(built)
    return built


@cache
def split_questions(split: str) -> tuple[Question, ...]:
    """The questions of one split, in the order of `questions()`.

    Raises:
        ValueError: `split` is neither "train" nor "test".
    """
    if split not in SPLITS:
        raise ValueError(f'`split` must be "train" or "test", got {split!r}.')
    return tuple(question for question in questions() if question.split == split)


def question_by_id(question_id: str) -> Question:
    """The question with this id.

    Raises:
        ValueError: No question has it.
    """
    if question_id not in _by_id():
        raise ValueError(
            f"`question_id` must be the id of a question of facts, got {question_id!r}."
        )
    return _by_id()[question_id]


def assert_disjoint(asked: Sequence[Question]) -> None:
    """Check the split: no combination twice, one test entry for each fact with several.

    Raises:
        ValueError: A combination of country, relation and entry, or a text, occurs twice, or a
            fact has another number of test questions.
    """
    combinations = {(q.iso, q.relation, q.entry) for q in asked}
    if len(combinations) != len(asked) or len({q.text for q in asked}) != len(asked):
        raise ValueError("`asked` must hold each combination and each text once, in one split.")
    ways: dict[tuple[str, str], list[Question]] = {}
    for question in asked:
        ways.setdefault((question.iso, question.relation), []).append(question)
    for fact, same in ways.items():
        num_test = sum(question.split == "test" for question in same)
        if num_test != (1 if len(same) > 1 else 0):
            raise ValueError(f"`asked` must hold one test question for {fact}, got {num_test}.")


@cache
def _by_id() -> dict[str, Question]:
    return {question.id: question for question in questions()}


def _described(entry: str, subject: str) -> str:
    if entry == "name":
        return subject
    return f"the country {'with capital' if entry == 'capital' else 'of'} {subject}"


def _ask(country: Country, relation: str) -> list[Question]:
    entries = _entries(country, relation)
    drawn = hashlib.blake2b(f"{country.iso}/{relation}".encode(), digest_size=8).digest()
    test = int.from_bytes(drawn, "little") % len(entries) if len(entries) > 1 else None
    return [
        Question(
            iso=country.iso,
            country=country.name,
            relation=relation,
            entry=entry,
            subject=subject,
            golds=(country.facts[relation],),
            split="test" if index == test else "train",
        )
        for index, (entry, subject) in enumerate(entries)
    ]


def _entries(country: Country, relation: str) -> list[tuple[str, str]]:
    """Ways to name the country: none that is the answer itself or gives the country's name away."""
    entries = [("name", country.name)]
    capital = country.facts.get("capital")
    if capital and relation != "capital" and not set(words(country.name)) <= set(words(capital)):
        entries.append(("capital", capital))
    entries += [(f"city{index}", city) for index, city in enumerate(country.cities, start=1)]
    return entries


def data_fingerprint() -> str:
    """A digest of all questions, answers and documents: nothing made from other data fits it."""
    asked = [*split_questions("train"), *split_questions("test")]
    told = [(question.id, question.text, *question.golds) for question in asked]
    told += [(document.text,) for document in documents()]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
