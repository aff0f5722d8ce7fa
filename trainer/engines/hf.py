"""The reference engine: any transformers causal LM, our own decode loop, keyed noise.

Leaves out: reuse of a factual's cache by its forks (their prefix is encoded again), models spread
over several devices.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from trainer.engines import Counts, SampledTurn, Session
from trainer.engines.slots import SlotCache
from trainer.noise import sources
from trainer.noise.sources import Noise, Sampler

_PATIENCE = 8


@dataclass(slots=True)
class _Slot:
    """A session in a row of the batch."""

    session: Session
    pending: list[int]
    noise: Noise
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropy: float = 0.0


class HfEngine:
    """Samples turns with a transformers model on this machine.

    Args:
        model: The policy; its weights are read at each call, so it is always in sync.
        stop: Ids that end a turn.
        max_turn_tokens: A turn without a stop id ends here.
        max_batch: Rows decoded together; a finished row is given to the next session.
        sampler: What draws the tokens; another than keyed noise is for comparisons.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop: frozenset[int],
        max_turn_tokens: int,
        max_batch: int = 128,
        sampler: Sampler = sources.sample,
    ) -> None:
        self._model = model
        self._stop = stop
        self._max_turn_tokens = max_turn_tokens
        self._max_batch = max_batch
        self._sampler = sampler
        self.counts = Counts()
        self.explains = True

    @torch.inference_mode()
    def run(self, sessions: Sequence[Session], *, temperature: float) -> None:
        """Plays all sessions to their ends."""
        self._model.eval()
        queue = list(reversed(sessions))
        batch = _Batch(self._model, min(self._max_batch, len(queue)))
        for row in range(len(batch.slots)):
            batch.seat(row, queue.pop())
        while batch.active:
            rows = batch.next_rows()
            finished = self._sample(batch, rows, self._forward(batch, rows), temperature)
            for row in finished:
                if queue:
                    batch.seat(row, queue.pop())
                else:
                    batch.leave(row)
            batch.compact()

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether a turn is over with the last of these tokens: a stop id, or all it may have."""
        return tokens[-1] in self._stop or len(tokens) >= self._max_turn_tokens

    def sync(self) -> None:
        """Nothing to do: the weights are read at each call."""

    def _forward(self, batch: "_Batch", rows: list[int]) -> torch.Tensor:
        self.counts.passes += 1
        self.counts.encoded += sum(len(batch.slot(row).pending) for row in rows)
        return batch.forward(rows)

    def _sample(
        self, batch: "_Batch", rows: list[int], logits: torch.Tensor, temperature: float
    ) -> list[int]:
        """Draws the next token of each row; returns the rows whose session is over."""
        slots = [batch.slot(row) for row in rows]
        noises, before = [slot.noise for slot in slots], [slot.tokens for slot in slots]
        tokens = self._sampler(logits, noises, before, temperature)
        self.counts.sampled += len(tokens)
        logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0]
        over = []
        for row, slot, token, logprob, entropy in zip(
            rows, slots, tokens.tolist(), chosen.tolist(), entropies.tolist(), strict=True
        ):
            slot.tokens.append(token)
            slot.pending = [token]
            slot.logprobs.append(logprob)
            slot.entropy += entropy
            if self.ends(slot.tokens) and not _hand_over(slot, token in self._stop):
                over.append(row)
        return over


def _hand_over(slot: _Slot, is_stopped: bool) -> bool:
    """Gives a finished turn to its session; returns whether the session goes on."""
    turn = SampledTurn(
        tokens=tuple(slot.tokens),
        logprobs=tuple(slot.logprobs),
        entropy=slot.entropy / len(slot.tokens),
        is_stopped=is_stopped,
    )
    following = slot.session.advance(turn)
    if following is None:
        return False
    slot.pending = slot.pending + following
    slot.noise = slot.session.key()
    slot.tokens, slot.logprobs, slot.entropy = [], [], 0.0
    return True


class _Batch:
    """The rows that are decoded together, and their cache."""

    def __init__(self, model: PreTrainedModel, num_rows: int) -> None:
        self._model = model
        # vLLM's CPU build wants an older transformers, where the cache has its old name
        parameters = inspect.signature(model.base_model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._cache = SlotCache(model.config.num_hidden_layers, num_rows)
        self.slots: list[_Slot | None] = [None] * num_rows

    @property
    def active(self) -> bool:
        """Whether any session is seated."""
        return any(slot is not None for slot in self.slots)

    def slot(self, row: int) -> _Slot:
        """The session seated in a row."""
        slot = self.slots[row]
        assert slot is not None
        return slot

    def rows(self, wanted: Callable[[_Slot], bool]) -> list[int]:
        """The seated rows that satisfy a condition."""
        return [row for row, slot in enumerate(self.slots) if slot is not None and wanted(slot)]

    def seat(self, row: int, session: Session) -> None:
        """Gives a row to a session."""
        self._cache.clear(row)
        self.slots[row] = _Slot(session, session.start(), session.key())

    def next_rows(self) -> list[int]:
        """The rows that the next pass serves: those with one token each, or some with more.

        Few rows with more wait for others: a pass of their own costs as much as for many. Those
        that go together differ in length by less than a factor of two, or padding would dominate.
        """
        singles = self.rows(lambda slot: len(slot.pending) == 1)
        ragged = self.rows(lambda slot: len(slot.pending) > 1)
        if len(ragged) * _PATIENCE < len(singles):
            return singles
        longest = max(len(self.slot(row).pending) for row in ragged or singles)
        return self.rows(lambda slot: 2 * len(slot.pending) > longest) if ragged else singles

    def leave(self, row: int) -> None:
        """Empties a row."""
        self.slots[row] = None

    def compact(self) -> None:
        """Drops empty rows once half of them are empty, so that no work is done for them."""
        seated = self.rows(lambda slot: True)
        if 0 < len(seated) <= len(self.slots) // 2:
            self._cache.keep(torch.tensor(seated))
            self.slots = [self.slots[row] for row in seated]

    def forward(self, rows: list[int]) -> torch.Tensor:
        """Encodes the pending tokens of the rows; float32 logits after each row's last one.

        Where each adds one token, the rest of the batch takes part with none of their own: what
        is written for them lies past their end, so it is never seen, and no cache is copied.
        """
        wide = all(len(self.slot(row).pending) == 1 for row in rows)
        passed = list(range(len(self.slots))) if wide else rows
        wanted = set(rows)
        pending = [self.slot(row).pending if row in wanted else [] for row in passed]
        counts = torch.tensor([len(tokens) for tokens in pending])
        ids = torch.zeros(len(passed), int(counts.max()), dtype=torch.long)
        for number, tokens in enumerate(pending):
            ids[number, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        index = torch.tensor(passed)
        positions, visible = self._cache.begin(index, counts)
        device = self._model.device
        hidden = self._model.base_model(
            input_ids=ids.to(device),
            attention_mask=visible.to(device),
            position_ids=positions.to(device),
            use_cache=True,
            **{self._cache_name: self._cache},
        ).last_hidden_state
        self._cache.end(index, counts)
        fed = torch.nonzero(counts)[:, 0]
        last = hidden[fed, counts[fed] - 1]
        return self._model.get_output_embeddings()(last).float()
