"""What the task `facts` knows of an episode besides its outcome, by need of the credit methods.

All of it follows from the row and the `Step.info` of the turns: which documents were shown, which
parts were answered right. A part's targets are the document that names its country, where the
question describes it, and the document that tells the fact; then the right answer. What was shown
stays known for the rest of the episode. Leaves out what needs tokens or a model (`trainer.needs`).
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from trainer.tasks.environment import Row, Steps, Tell
from trainer.tasks.questions import Question, documents, question_by_id
from trainer.tasks.retriever import Document
from trainer.tasks.scoring import normalise

FEATURES = ("part", "turn", "hops", "targets_shown", "right", "illegible", "nothing_found")
"""Columns of `features`: the part and the turn in it, its hops and how many of its targets were
shown, the parts that were right, and how many turns were illegible or found nothing so far."""


class Target(NamedTuple):
    """Something a part needs to see: what tells it (`country` or `fact`), its name, who has it."""

    stage: str
    entity: str
    documents: frozenset[int]


class _State(NamedTuple):
    """What an episode has come to before a turn, or at its end."""

    part: int
    turn: int
    shown: frozenset[int]
    right: frozenset[int]


def constants(asked: Sequence[Question]) -> dict[str, Any]:
    """The constants of a task that asks these questions, as plain JSON.

    `entities` are the names to be found, `predicate_graph` pairs (u, v) of predicates, u a
    precondition of v, and `goal` the predicates of a task that is solved.
    """
    chains = [
        [*(_predicate(part, target.stage) for target in targets(one.id)), _predicate(part, "right")]
        for part, one in enumerate(asked)
    ]
    return {
        "entities": sorted({target.entity for one in asked for target in targets(one.id)}),
        "predicate_graph": [list(pair) for chain in chains for pair in pairwise(chain)],
        "goal": [chain[-1] for chain in chains],
    }


@cache
def targets(question_id: str) -> tuple[Target, ...]:
    """What has to be seen before a question is answered, in order."""
    asked = question_by_id(question_id)
    told = _told_of().get(asked.country, ())
    texts = {f"{gold} is the {asked.relation} of {asked.country}" for gold in asked.golds}
    fact = Target("fact", asked.golds[0], frozenset(d.id for d in told if d.text in texts))
    if asked.num_hops == 1:
        return (fact,)
    named = frozenset(document.id for document in told if document.value == asked.subject)
    return (Target("country", asked.country, named), fact)


def predicates(row: Row, steps: Steps) -> list[frozenset[str]]:
    """What holds in each state: targets that were shown, parts that were answered right."""
    return [_held(row, state) for state in _states(steps)]


def entities(row: Row, steps: Steps) -> list[frozenset[str]]:
    """The names found so far, in each state: one of their documents was shown."""
    wanted = [target for own in _targets(row) for target in own]
    return [
        frozenset(target.entity for target in wanted if target.documents & state.shown)
        for state in _states(steps)
    ]


def calls(row: Row, steps: Steps) -> list[int]:
    """How often each turn searched: once or never."""
    return [int(step["action"] == "search") for step in steps]


def tool(row: Row, steps: Steps) -> list[str]:
    """What each turn did: search, answer or illegible."""
    return [step["action"] for step in steps]


def state_score(row: Row, steps: Steps) -> list[float]:
    """The share of all predicates that hold in each state."""
    total = sum(len(own) + 1 for own in _targets(row))
    return [len(held) / total for held in predicates(row, steps)]


def turn_reward(row: Row, steps: Steps) -> list[float]:
    """The growth of `state_score` by each turn."""
    return [after - before for before, after in pairwise(state_score(row, steps))]


def signature(row: Row, steps: Steps) -> list[tuple[Any, Any]]:
    """Of each turn where it was taken and what it came to.

    A state is the part, the turn in it and what holds. An action is what it did with the document
    found or the normalised answer: two queries that find one document are one action.
    """
    before = _states(steps)[:-1]
    return [
        ((state.part, state.turn, _held(row, state)), _effect(step))
        for state, step in zip(before, steps, strict=True)
    ]


def features(row: Row, steps: Steps) -> list[list[float]]:
    """A row of `FEATURES` for each state, from the turns before it."""
    illegible = nothing = 0
    rows = [_features(row, _State(0, 0, frozenset(), frozenset()), illegible, nothing)]
    for state, step in zip(_states(steps)[1:], steps, strict=True):
        illegible += step["is_illegible"]
        nothing += step["action"] == "search" and step["document"] is None
        rows.append(_features(row, state, illegible, nothing))
    return rows


NEEDS: Mapping[str, Tell] = MappingProxyType(
    {
        "calls": calls,
        "entities": entities,
        "features": features,
        "predicates": predicates,
        "signature": signature,
        "state_score": state_score,
        "tool": tool,
        "turn_reward": turn_reward,
    }
)
"""What tells each need."""


@cache
def _told_of() -> Mapping[str, list[Document]]:
    """The documents about each country."""
    found: dict[str, list[Document]] = {}
    for document in documents():
        found.setdefault(document.owner, []).append(document)
    return found


def _targets(row: Row) -> list[tuple[Target, ...]]:
    return [targets(question_id) for question_id in row["question_ids"]]


def _states(steps: Steps) -> list[_State]:
    """One more than there are steps."""
    state = _State(0, 0, frozenset(), frozenset())
    found = [state]
    for step in steps:
        shown, right = state.shown, state.right
        if step.get("document") is not None:
            shown |= {step["document"]}
        if "exact_match" not in step:
            state = _State(state.part, state.turn + 1, shown, right)
        else:
            right |= {state.part} if step["exact_match"] == 1.0 else set()
            state = _State(state.part + 1, 0, shown, right)
        found.append(state)
    return found


def _predicate(part: int, stage: str) -> str:
    return f"part {part} {stage}"


def _held(row: Row, state: _State) -> frozenset[str]:
    shown = {
        _predicate(part, target.stage)
        for part, own in enumerate(_targets(row))
        for target in own
        if target.documents & state.shown
    }
    return frozenset(shown | {_predicate(part, "right") for part in state.right})


def _effect(step: Mapping[str, Any]) -> tuple[str, Any]:
    if step["action"] == "answer":
        return "answer", normalise(step["answer"])
    return step["action"], step.get("document")


def _features(row: Row, state: _State, illegible: int, nothing: int) -> list[float]:
    own = _targets(row)[state.part] if state.part < len(row["question_ids"]) else ()
    shown = sum(bool(target.documents & state.shown) for target in own)
    counts = state.part, state.turn, len(own), shown, len(state.right), illegible, nothing
    return [float(count) for count in counts]
