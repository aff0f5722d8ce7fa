"""The twin inspector: a factual beside one twin from the fork on.

Leaves out how it is shown (`page.html`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from twinstats import logged_pairs

MOST_DISCORDANT, MOST_TIED = 6, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What one world showed or wrote at one point, cut at the first word that differs.

    Attributes:
        before: Up to that word; all of it where nothing differs.
        word: The first word that differs between the two worlds; null where it is not here.
        after: The rest.
    """

    before: str
    word: str | None = None
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One observation or action in both worlds; null where a world has none.

    Attributes:
        turn: Index of the turn.
        role: "observation" or "action".
        factual: As played.
        twin: In the twin.
        is_same: Whether the two are equal, word by word.
        credit: The factual turn's credit, with the action; null where not trained or not logged.
    """

    turn: int
    role: str
    factual: Text | None
    twin: Text | None
    is_same: bool
    credit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinView:
    """A pair to look into: its row of the table `pairs`, and its moments.

    Attributes:
        pair: step, task, turn, names and outcomes, and the control's outcome where there is one.
        prefix: What both worlds share: the factual before the fork, and what it saw there.
        tail: From the fork's decision on.
        largest_credit: The largest absolute credit among the factual's turns; 0 without any.
    """

    pair: dict[str, Any]
    prefix: tuple[Moment, ...]
    tail: tuple[Moment, ...]
    largest_credit: float


def twin_views(
    pairs: pl.DataFrame | None, texts: pl.DataFrame | None, credit: pl.DataFrame | None
) -> list[TwinView]:
    """A few pairs of one run whose texts were logged, different outcomes first, over all steps."""
    if pairs is None or texts is None:
        return []
    chosen = _chosen(logged_pairs.joined(pairs), texts)
    credits = _credits(credit)
    return [_view(pair, texts, credits) for pair in chosen]


def _chosen(twins: pl.DataFrame, texts: pl.DataFrame) -> list[dict[str, Any]]:
    written = texts["episode"].unique()
    readable = twins.filter(
        pl.col("factual").is_in(written.implode()), pl.col("twin").is_in(written.implode())
    )
    other = readable.filter(~pl.col("equal").fill_null(False))
    other = other.sort("step", "factual", "turn", "alternative")
    differs = pl.col("factual_outcome") != pl.col("twin_outcome")
    return [
        *_spread(other.filter(differs), MOST_DISCORDANT),
        *_spread(other.filter(~differs), MOST_TIED),
    ]


def _spread(rows: pl.DataFrame, most: int) -> list[dict[str, Any]]:
    """At most `most` rows, evenly over all."""
    count = min(most, len(rows))
    places = [round(index * (len(rows) - 1) / max(count - 1, 1)) for index in range(count)]
    return rows[places].to_dicts() if places else []


def _credits(credit: pl.DataFrame | None) -> dict[tuple[str, int], float]:
    if credit is None:
        return {}
    rows = credit.drop_nulls("value").select("episode", "turn", "value")
    return {(str(episode), int(turn)): float(value) for episode, turn, value in rows.iter_rows()}


def _view(
    pair: dict[str, Any], texts: pl.DataFrame, credits: dict[tuple[str, int], float]
) -> TwinView:
    factual, twin = _texts_of(texts, pair["factual"]), _texts_of(texts, pair["twin"])
    own = {turn: value for (episode, turn), value in credits.items() if episode == pair["factual"]}
    fork = (int(pair["turn"]), 1)
    order = sorted(factual.keys() | twin.keys())
    prefix = [_shared(place, factual, own) for place in order if place < fork and place in factual]
    tail = _compared([place for place in order if place >= fork], factual, twin, own)
    return TwinView(
        pair=pair,
        prefix=tuple(prefix),
        tail=tuple(tail),
        largest_credit=max((abs(value) for value in own.values()), default=0.0),
    )


Place = tuple[int, int]
ROLES = ("observation", "action")


def _texts_of(texts: pl.DataFrame, episode: str) -> dict[Place, str]:
    rows = texts.filter(pl.col("episode") == episode).select("turn", "role", "text")
    return {
        (int(turn), ROLES.index(role)): text or ""
        for turn, role, text in rows.iter_rows()
        if role in ROLES
    }


def _shared(place: Place, factual: dict[Place, str], credits: dict[int, float]) -> Moment:
    turn, role = place
    return Moment(
        turn=turn,
        role=ROLES[role],
        factual=Text(before=factual[place]),
        twin=None,
        is_same=True,
        credit=credits.get(turn) if role == 1 else None,
    )


def _compared(
    places: Sequence[Place],
    factual: dict[Place, str],
    twin: dict[Place, str],
    credits: dict[int, float],
) -> list[Moment]:
    """Both worlds side by side; only the very first difference is cut out."""
    moments, is_found = [], False
    for place in places:
        left, right = factual.get(place), twin.get(place)
        is_same = left is not None and right is not None and _words(left) == _words(right)
        cut = None
        if not is_same and not is_found and left is not None and right is not None:
            cut, is_found = first_difference(left, right), True
        moments.append(
            Moment(
                turn=place[0],
                role=ROLES[place[1]],
                factual=cut[0] if cut else None if left is None else Text(before=left),
                twin=cut[1] if cut else None if right is None else Text(before=right),
                is_same=is_same,
                credit=credits.get(place[0]) if place[1] == 1 else None,
            )
        )
    return moments


def first_difference(left: str, right: str) -> tuple[Text, Text]:
    """Both texts, cut at the first word or punctuation mark in which they differ.

    Where one text ends first, its `word` is empty. Equal words: nothing is cut. White space
    between words is kept and does not count.
    """
    mine, theirs = _words(left), _words(right)
    if mine == theirs:
        return Text(before=left), Text(before=right)
    pairs = enumerate(zip(mine, theirs, strict=False))
    shorter = min(len(mine), len(theirs))
    first = next((index for index, (own, other) in pairs if own != other), shorter)
    return _cut(left, first), _cut(right, first)


WORD = re.compile(r"\w+|[^\w\s]")


def _words(text: str) -> list[str]:
    return WORD.findall(text)


def _cut(text: str, index: int) -> Text:
    """The text, cut at the word of that index; after its last one where it has fewer."""
    places = [match.span() for match in WORD.finditer(text)]
    if index == len(places):
        end = places[-1][1] if places else 0
        return Text(before=text[:end], word="", after=text[end:])
    begin, end = places[index]
    return Text(before=text[:begin], word=text[begin:end], after=text[end:])
