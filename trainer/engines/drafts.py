"""Drafts: guesses at a turn that one forward pass verifies, token by token.

Leaves out where guesses come from (the session) and the pass (`batch`).
"""

from collections.abc import Callable, Sequence


def trimmed(draft: Sequence[int], ends: Callable[[Sequence[int]], bool]) -> list[int]:
    """The draft up to where a turn with its tokens is over."""
    over = (end for end in range(1, len(draft) + 1) if ends(draft[:end]))
    return list(draft[: next(over, len(draft))])


def num_equal(draft: Sequence[int], sampled: Sequence[int]) -> int:
    """How many tokens at the front are the same.

    The tokens drawn along a draft are those of plain decoding up to the first that differs, that
    one included: those after it were drawn after a token that was not.
    """
    pairs = list(zip(draft, sampled, strict=False))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
