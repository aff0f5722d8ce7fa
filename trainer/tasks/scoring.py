"""What a model answered, and how well: extraction, exact match, token F1, cover match.

Only text that the model sampled is read for an answer: prompts and observations may hold tags too.
Two normalisations. "squad" is the usual one (lower case, ASCII punctuation and articles out), which
leaves an en dash in place. "unicode" also composes (NFKC) and drops all punctuation (categories
P*). Both depart from the usual script in two points: what an article would leave empty is kept
("A"), and a comma between digits goes only where it parts thousands ("115,000", but not "0,1").
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["squad", "unicode"]
MODES: tuple[Mode, ...] = ("squad", "unicode")
SPECIAL_ANSWERS = frozenset(("yes", "no", "noanswer"))  # HotpotQA: right or wrong, never in part

_THOUSANDS = re.compile(r"(?<!\d)(?<!\d[,.])-?\d{1,3}(?:,\d{3})+(?!,?\d)")
_COMMA_IN_NUMBER = re.compile(r"(?<=\d),(?=\d)")
_KEPT_COMMA = "\ue000"  # a private character stands for a comma while punctuation goes


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Scores of one answer, each the maximum over the right answers, all in [0, 1]."""

    exact_match: float
    f1: float
    cover: float
    is_no_answer: bool


def extract(text: str, tag: str) -> str | None:
    """Content of the last `<tag>` in a text; None without one, or when the last is not closed."""
    start = text.rfind(f"<{tag}>")
    if start < 0:
        return None
    content = text[start + len(tag) + 2 :]
    end = content.find(f"</{tag}>")
    return content[:end].strip() if end >= 0 else None


def extract_answer(segments: str | Iterable[tuple[str, bool]]) -> str | None:
    """The last answer that the model itself gave; None if it gave none or left the last one open.

    Args:
        segments: The model's own text; or an episode's (text, is_sampled) pieces, of which only
            sampled ones are read, each for itself: a tag cannot open in one turn and close in
            another.
    """
    pieces = [(segments, True)] if isinstance(segments, str) else segments
    answered = [text for text, is_sampled in pieces if is_sampled and "<answer>" in text]
    return extract(answered[-1], "answer") if answered else None


def normalise(text: str, mode: Mode = "squad") -> str:
    """Text as it is compared: see the module's docstring.

    >>> normalise("The  Beatles!"), normalise("$1,000"), normalise("0,1")
    ('beatles', '1000', '0,1')

    Raises:
        ValueError: `mode` is unknown.
    """
    if mode not in MODES:
        raise ValueError(f"`mode` must be one of {', '.join(MODES)}, got {mode!r}.")
    if mode == "unicode":
        text = unicodedata.normalize("NFKC", text)
    text = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text.lower())
    marked = _COMMA_IN_NUMBER.sub(_KEPT_COMMA, text)
    bare = "".join(c for c in marked if not _is_punctuation(c, mode)).replace(_KEPT_COMMA, ",")
    without_articles = " ".join(re.sub(r"\b(?:a|an|the)\b", " ", bare).split())
    return without_articles or " ".join(bare.split()) or " ".join(text.split())


def exact_match(
    prediction: str | None, golds: str | Sequence[str], *, mode: Mode = "squad"
) -> float:
    """1 if the prediction equals a right answer after normalisation, else 0."""
    return _best(prediction, golds, mode, lambda ours, gold: float(ours == gold))


def token_f1(
    prediction: str | None,
    golds: str | Sequence[str],
    *,
    mode: Mode = "squad",
    is_hotpot: bool = False,
) -> float:
    """Harmonic mean of token precision and recall, the best over the right answers.

    With `is_hotpot`, yes, no and noanswer count 0 unless they match exactly.
    """

    def f1(ours: str, gold: str) -> float:
        if is_hotpot and ours != gold and not SPECIAL_ANSWERS.isdisjoint((ours, gold)):
            return 0.0
        our_tokens, gold_tokens = ours.split(), gold.split()
        num_common = sum((Counter(our_tokens) & Counter(gold_tokens)).values())
        return 2 * num_common / (len(our_tokens) + len(gold_tokens))

    return _best(prediction, golds, mode, f1)


def cover_match(
    prediction: str | None, golds: str | Sequence[str], *, mode: Mode = "squad"
) -> float:
    """1 if a right answer occurs in the prediction as whole words, else 0."""
    return _best(prediction, golds, mode, lambda ours, gold: float(f" {gold} " in f" {ours} "))


def score(
    prediction: str | None,
    golds: str | Sequence[str],
    *,
    mode: Mode = "squad",
    is_hotpot: bool = False,
) -> Score:
    """All scores of one answer; `None` (no legible answer) scores 0 and is flagged."""
    return Score(
        exact_match=exact_match(prediction, golds, mode=mode),
        f1=token_f1(prediction, golds, mode=mode, is_hotpot=is_hotpot),
        cover=cover_match(prediction, golds, mode=mode),
        is_no_answer=prediction is None,
    )


def _best(
    prediction: str | None,
    golds: str | Sequence[str],
    mode: Mode,
    compare: Callable[[str, str], float],
) -> float:
    """Maximum of `compare` over the right answers that are not empty, 0 if none is."""
    listed = (golds,) if isinstance(golds, str) else tuple(golds)
    if not listed:
        raise ValueError("`golds` must hold at least one right answer, got none.")
    ours = normalise(prediction or "", mode)
    right = [gold for gold in (normalise(gold, mode) for gold in listed) if gold]
    return max((compare(ours, gold) for gold in right), default=0.0)


def _is_punctuation(character: str, mode: Mode) -> bool:
    if character in string.punctuation:
        return True
    return mode == "unicode" and unicodedata.category(character).startswith("P")
