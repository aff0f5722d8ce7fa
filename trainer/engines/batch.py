"""The sessions that are decoded together, and the passes that serve them.

Every pass serves every session, whether it has one token for the model or an observation, a prompt
or a draft: so sessions wait for each other no longer than the longest of them takes. What has many
tokens is cut into strips. Leaves out how tokens are drawn (`hf`).
"""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from trainer.engines import Counts, SampledTurn, Session
from trainer.engines.prefixes import PrefixStore, Trace
from trainer.engines.slots import SlotCache, Strip
from trainer.noise.sources import Noise

# M places after which a token is drawn, R strips, Q tokens of each, E hidden dimension

_DRAFT_TOKENS = 16  # of a draft in one pass; each costs a row of logits, agreed on or not
# What a row of a pass costs for each position it looks at, in tokens of linear layers. Where it has
# several tokens, transformers repeats keys and values for the query heads of a group.
_SINGLE_REACH, _WIDE_REACH = 1 / 100, 1 / 50


@dataclass(slots=True)
class Slot:
    """A session in a row of the batch.

    Attributes:
        session: The episode.
        trace: All its tokens; the cache's length says how many of them it holds.
        noise: Of the turn.
        draft: Tokens that the turn may go on with.
        hidden: The hidden state after the last token, where the cache holds them all.
        tokens: Of the turn, so far.
        logprobs: Of each.
        entropy: Their sum.
    """

    session: Session
    trace: Trace
    noise: Noise
    draft: list[int] = field(default_factory=list)
    hidden: torch.Tensor | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropy: float = 0.0

    def turn(self, *, is_stopped: bool) -> SampledTurn:
        """The turn, which is over."""
        return SampledTurn(
            tokens=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            entropy=self.entropy / len(self.tokens),
            is_stopped=is_stopped,
        )

    def add(self, scored: Iterable[tuple[int, float, float]]) -> None:
        """Adds tokens to the turn, each with its log-probability and entropy."""
        for token, logprob, entropy in scored:
            self.tokens.append(token)
            self.logprobs.append(logprob)
            self.entropy += entropy

    def next_turn(self, following: Sequence[int]) -> None:
        """Starts the next turn after the tokens that follow this one."""
        self.trace.extend(following)
        self.noise = self.session.key()
        self.tokens, self.logprobs, self.entropy = [], [], 0.0


class Batch:
    """Sessions in the rows of a cache.

    Args:
        model: The policy.
        num_rows: Of the cache.
        store: Where prefixes are found and kept.
        counts: What is done is counted here.
    """

    def __init__(
        self, model: PreTrainedModel, num_rows: int, *, store: PrefixStore, counts: Counts
    ) -> None:
        self._model, self._store, self._counts = model, store, counts
        # vLLM's CPU build wants an older transformers, where the cache has its old name
        parameters = inspect.signature(model.base_model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._cache = SlotCache(model.config.num_hidden_layers, num_rows)
        self.slots: list[Slot | None] = [None] * num_rows

    @property
    def seated(self) -> list[int]:
        """The rows that have a session."""
        return [row for row, slot in enumerate(self.slots) if slot is not None]

    def slot(self, row: int) -> Slot:
        """The session seated in a row."""
        slot = self.slots[row]
        assert slot is not None
        return slot

    def seat(self, row: int, session: Session) -> None:
        """Gives a row to a session, with what is kept of its prefix."""
        self._cache.clear(row)  # what was there may hold NaN
        self.slots[row] = Slot(session, Trace(session.start()), session.key())
        self.recall(row)
        self._counts.reused += self._cache.lengths[row]
        trace = self.slot(row).trace
        self._counts.reencoded += self._store.count_gone(trace, self._cache.lengths[row])

    def recall(self, row: int) -> None:
        """Takes over what is kept of a session's tokens, now that a turn starts."""
        slot, held = self.slot(row), self._cache.lengths[row]
        prefix = self._store.find(slot.trace)
        if prefix.length > held:
            for begin, states in prefix.pieces:
                if begin + states.shape[3] > held:
                    self._cache.write(row, begin, states)
            self._cache.lengths[row] = prefix.length
            slot.hidden = prefix.hidden

    def leave(self, row: int) -> None:
        """Empties a row."""
        self.slots[row] = None
        self._cache.lengths[row] = 0

    def compact(self) -> None:
        """Drops empty rows once half of them are empty, so that no work is done for them."""
        seated = self.seated
        if 0 < len(seated) <= len(self.slots) // 2:
            self._cache.keep(seated)
            self.slots = [self.slots[row] for row in seated]

    def remember(self, row: int, end: int, hidden: torch.Tensor) -> None:
        """Keeps the states of the first `end` tokens of a session for others."""
        trace = self.slot(row).trace
        self._store.add(trace, end, lambda begin, end: self._cache.read(row, begin, end), hidden)

    def take(self, row: int, tokens: Sequence[int]) -> None:
        """Takes in tokens drawn after a pass: the cache holds those before the last one."""
        slot = self.slot(row)
        slot.trace.extend(tokens)
        slot.hidden = None
        self._cache.lengths[row] = len(slot.trace.ids) - 1

    def retract(self, row: int) -> None:
        """Undoes the last pass for a session with a draft, which goes on without one."""
        self.slot(row).draft = []
        self._cache.clear(row, self._cache.lengths[row])

    @property
    def next_rows(self) -> list[int]:
        """All rows; or those alone that have nothing for the model, so that none waits for a pass.

        They draw the first token of their turn, and take part in the pass with it.
        """
        idle = [
            row for row in self.seated if not self._pending(row) and len(self.slot(row).draft) < 2
        ]
        return idle or self.seated

    def _pending(self, row: int) -> list[int]:
        return self.slot(row).trace.ids[self._cache.lengths[row] :]

    def forward(self, rows: Sequence[int]) -> tuple[dict[int, range], torch.Tensor]:
        """Encodes what is pending in these rows, and drafts but for their last token.

        Returns:
            By row the places where a token is drawn: after its last token, and after each encoded
            one of its draft. And the hidden states (M, E) of all places.
        """
        pending = {row: self._pending(row) for row in rows}
        drafted = {row: self.slot(row).draft[:-1][:_DRAFT_TOKENS] for row in rows}
        fed = {row: pending[row] + drafted[row] for row in rows}
        self._counts.encoded += sum(map(len, fed.values()))
        strips = self._strips({row: tokens for row, tokens in fed.items() if tokens})
        states = [self._encode(strips)] if strips else []
        width = max((len(strip.tokens) for strip in strips), default=0)
        first = {strip.slot: place * width for place, strip in reversed(list(enumerate(strips)))}
        places: dict[int, range] = {}
        chosen: list[int] = []
        for row in rows:
            places[row] = range(len(chosen), len(chosen) + len(drafted[row]) + 1)
            if not pending[row]:
                chosen.append(len(strips) * width + len(states) - bool(strips))
                states.append(self._kept_hidden(row))
            begin = max(len(pending[row]) - 1, 0)
            chosen += [first[row] + place for place in range(begin, len(fed[row]))]
        return places, torch.cat(states)[chosen]

    def _kept_hidden(self, row: int) -> torch.Tensor:
        hidden = self.slot(row).hidden
        assert hidden is not None
        return hidden[None]

    def _strips(self, fed: dict[int, list[int]]) -> list[Strip]:
        """Cuts what each row feeds; one strip a slot where that is nearly so anyway."""
        if not fed:
            return []
        lengths = self._cache.lengths
        width = _best_width([(lengths[row], len(tokens)) for row, tokens in fed.items()])
        strips = [
            Strip(row, lengths[row] + begin, tokens[begin : begin + width])
            for row, tokens in fed.items()
            for begin in range(0, len(tokens), width)
        ]
        if len(strips) > len(fed) or 2 * len(fed) < len(self.slots):
            return strips
        return [
            Strip(row, lengths[row], fed.get(row) or [0])  # an empty row; cleared when it is seated
            for row in range(len(self.slots))
        ]

    def _encode(self, strips: list[Strip]) -> torch.Tensor:
        """The hidden states (R * Q, E) of a pass."""
        self._counts.passes += 1
        ids, positions, visible = self._cache.begin(strips, self._model.device)
        hidden: torch.Tensor = self._model.base_model(
            input_ids=ids,
            attention_mask=visible,
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: self._cache},
        ).last_hidden_state
        return hidden.flatten(0, 1)


def _best_width(spans: Sequence[tuple[int, int]]) -> int:
    """The width of strips at which a pass costs least, for (begin, tokens) of each row."""
    most = max(count for _, count in spans)
    reach = max(begin + count for begin, count in spans)

    def cost(width: int) -> float:
        num_strips = sum(-(-count // width) for _, count in spans)
        return num_strips * (width + reach * (_SINGLE_REACH if width == 1 else _WIDE_REACH))

    return min({2**power for power in range(most.bit_length())} | {most}, key=cost)
