"""Demonstrations for the supervised warm-up: legible, and wrong often enough to leave head-room.

A demonstrator knows the right chain of searches and spoils it: each flaw is drawn, independently,
where it can occur. All its turns are played through the environment, so a demonstration holds
exactly the text that a model would see. Only questions of the train split are asked.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trainer.tasks.countries import RELATIONS, countries
from trainer.tasks.facts import Facts, render_answer, render_search, retriever
from trainer.tasks.questions import (
    Question,
    country_query,
    question_by_id,
    relation_query,
    split_questions,
)
from trainer.tasks.rows import TaskRow, row_of


class Segment(NamedTuple):
    """A piece of an episode's text; `is_sampled` where the model is to have written it."""

    text: str
    is_sampled: bool


class Demonstration(NamedTuple):
    """A played episode: its row, its text from the first question to the last turn, its outcome."""

    row: TaskRow
    segments: tuple[Segment, ...]
    outcome: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaws:
    """Probability of each flaw, given that the demonstrator has come to where it can occur.

    Attributes:
        guess: Answers at once with some value of the relation asked for.
        stop_early: After the first of two searches, answers with what it brought (the country).
        wrong_relation: The search for the fact names another relation; its value is the answer.
        name_only: The search for the fact gives the country's name alone, if not the former.
        second_document: Answers with the value of the document that ranks second, which the
            environment does not show: an error that cannot be predicted from the text.
    """

    guess: float = 0.20
    stop_early: float = 0.55
    wrong_relation: float = 0.12
    name_only: float = 0.06
    second_document: float = 0.08


NO_FLAWS = Flaws(guess=0, stop_early=0, wrong_relation=0, name_only=0, second_document=0)


def demonstrate(
    row: TaskRow, *, rng: np.random.Generator, flaws: Flaws | None = None
) -> Demonstration:
    """Play one row with the demonstrator.

    Args:
        row: Its question ids say what is asked; any split (the tests look at both).
        rng: Source of the flaws.
        flaws: Their probabilities; the default mixture if None.
    """
    environment = Facts()
    segments = [Segment(environment.reset(row.info), False)]
    outcome = 0.0
    for question_id in row.info["question_ids"]:
        for turn in _turns(question_by_id(question_id), flaws or Flaws(), rng):
            step = environment.step(turn)
            outcome += step.reward
            segments.append(Segment(turn, True))
            if step.observation:
                segments.append(Segment(step.observation, False))
    return Demonstration(row, tuple(segments), outcome)


def demonstrations(
    num_episodes: int, *, num_parts: int, rng: np.random.Generator, flaws: Flaws | None = None
) -> list[Demonstration]:
    """Episodes over train questions; within one episode no question comes twice.

    Raises:
        ValueError: `num_parts` is not between 1 and the number of train questions.
    """
    asked = split_questions("train")
    if not 1 <= num_parts <= len(asked):
        raise ValueError(f"`num_parts` must be from 1 to {len(asked)}, got {num_parts}.")
    chosen = (rng.choice(len(asked), num_parts, replace=False) for _ in range(num_episodes))
    rows = (row_of([asked[index] for index in indices]) for indices in chosen)
    return [demonstrate(row, rng=rng, flaws=flaws) for row in rows]


def text_of(segments: Iterable[Segment]) -> str:
    """The whole text of an episode, for a tokenizer's training."""
    return "".join(segment.text for segment in segments)


def _turns(question: Question, flaws: Flaws, rng: np.random.Generator) -> list[str]:
    """Turns for one question; the last is always an answer."""
    if rng.random() < flaws.guess:
        return [render_answer(_guess(question.relation, rng))]
    turns = []
    if question.num_hops == 2:
        turns.append(render_search(country_query(question.subject)))
        if rng.random() < flaws.stop_early:
            return [*turns, render_answer(question.country)]
    query = _fact_query(question, flaws, rng)
    rank = 1 if rng.random() < flaws.second_document else 0
    found = retriever().search(query, 2)
    answer = found[min(rank, len(found) - 1)].value
    return [*turns, render_search(query), render_answer(answer)]


def _fact_query(question: Question, flaws: Flaws, rng: np.random.Generator) -> str:
    if rng.random() < flaws.wrong_relation:
        others = [relation for relation in RELATIONS if relation != question.relation]
        return relation_query(others[rng.integers(len(others))], question.country)
    if rng.random() < flaws.name_only:
        return question.country
    return relation_query(question.relation, question.country)


def _guess(relation: str, rng: np.random.Generator) -> str:
    values = [country.facts[relation] for country in countries() if relation in country.facts]
    return values[rng.integers(len(values))]
