"""Texts that end a turn although no single token holds them, as `</search>` for most tokenizers.

A turn is over with the token that completes such a text; what that token says besides stays part of
the turn. Leaves out tokens that end a turn by themselves, which engines know by their ids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.policy import Policy


@dataclass(frozen=True, slots=True)
class StopTexts:
    """Tells whether tokens end with a text.

    Attributes:
        texts: Texts that end a turn.
        closers: Ids of the tokens that may complete one.
        known: Ids below it are tokens; a model may have more, which say nothing.
        decode: The text of ids.
    """

    texts: tuple[str, ...]
    closers: frozenset[int]
    known: int
    decode: Callable[[Sequence[int]], str]

    def end(self, tokens: Sequence[int]) -> bool:
        """Whether the last token completes a text; only turns that no token before ended are asked.

        A token has at least one byte, so a text lies in as many last tokens as it has bytes; what
        says nothing may stand between them.
        """
        if tokens[-1] not in self.closers:
            return False
        longest = max(len(text.encode()) for text in self.texts)
        last = self.decode([token for token in tokens if token < self.known][-longest:])
        return any(text in last for text in self.texts)


def stop_texts(policy: Policy, texts: Sequence[str]) -> StopTexts | None:
    """What recognises these texts in a policy's tokens; null without any text."""
    if not texts:
        return None
    told = policy.tokenizer.batch_decode(
        [[number] for number in range(len(policy.tokenizer))], clean_up_tokenization_spaces=False
    )
    last = {text[-1] for text in texts}
    closers = frozenset(n for n, one in enumerate(told) if not last.isdisjoint(one))
    return StopTexts(tuple(texts), closers, len(told), policy.decode)
