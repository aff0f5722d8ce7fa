"""The reference engine: any transformers causal LM, our own decode loop, keyed noise.

What was encoded with the weights of now is never encoded again while it is kept (`prefixes`), and
drafts are verified instead of decoded (`drafts`). Leaves out models spread over several devices.
"""

import operator
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import torch
from transformers import PreTrainedModel

from trainer.engines import Counts, Session
from trainer.engines.batch import Batch, Slot
from trainer.engines.drafts import num_equal, trimmed
from trainer.engines.prefixes import PrefixStore
from trainer.engines.requests import Ending
from trainer.engines.stops import StopTexts
from trainer.noise import sources
from trainer.noise.sources import Sampler
from trainer.policy import entropies
from twinstats.noise import LogitsError

# M places after which a token is drawn, V vocabulary, E hidden dimension

_PROBES = 64  # entries of each parameter that tell whether it changed


class HfEngine:
    """Samples turns with a transformers model on this machine.

    Args:
        model: The policy; its weights are read at each call, so it is always in sync.
        stop: Ids that end a turn.
        max_turn_tokens: A turn without a stop id ends here.
        texts: Texts that end a turn as well.
        max_batch: Rows decoded together; a finished row is given to the next session.
        drafts: Whether sessions are asked for drafts. Same tokens, often sooner.
        cache_mib: Bound on the keys and values that are kept of sessions, 2**20 bytes; those of
            the sessions being decoded come on top.
        sampler: What draws the tokens; another than keyed noise is for comparisons.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop: frozenset[int],
        max_turn_tokens: int,
        texts: StopTexts | None = None,
        max_batch: int = 128,
        drafts: bool = False,
        cache_mib: int = 2048,
        sampler: Sampler = sources.sample,
    ) -> None:
        self._model = model
        self._ending = Ending(stop=stop, max_tokens=max_turn_tokens, texts=texts)
        self._max_batch = max_batch
        self._drafts = drafts
        self._sampler = sampler
        self._store = PrefixStore(cache_mib * 2**20)
        self._weights = _Weights(model)
        self.counts = Counts()
        self.explains = True

    @torch.inference_mode()
    def run(self, sessions: Sequence[Session], *, temperature: float) -> None:
        """Plays all sessions to their ends."""
        self._model.eval()
        if self._weights.changed():
            self._store.clear()
        queue = list(reversed(sessions))
        num_rows = min(self._max_batch, len(queue))
        batch = Batch(self._model, num_rows, store=self._store, counts=self.counts)
        free = list(range(num_rows))
        while free or batch.seated:
            for row in free:
                if queue:
                    self._seat(batch, row, queue.pop())
                else:
                    batch.leave(row)
            batch.compact()
            free = self._step(batch, temperature) if batch.seated else []

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether a turn is over with the last of these tokens: a stop id, or all it may have."""
        return self._ending.ends(tokens)

    def sync(self) -> None:
        """Forgets what was encoded with other weights; they are read at each call."""
        self._weights.changed()
        self._store.clear()

    def _seat(self, batch: Batch, row: int, session: Session) -> None:
        batch.seat(row, session)
        self._ask_draft(batch.slot(row))

    def _ask_draft(self, slot: Slot) -> None:
        slot.draft = trimmed(slot.session.draft(), self.ends) if self._drafts else []

    def _step(self, batch: Batch, temperature: float) -> list[int]:
        """One pass, and the tokens drawn after it; returns the rows whose session is over."""
        places, hidden_ME = batch.forward(batch.next_rows)
        logits_MV = self._model.get_output_embeddings()(hidden_ME).float()
        drawn, failed = self._draw(batch, places, logits_MV, temperature)
        over = [row for row, reason in failed.items() if not _goes_on(batch, row, reason)]
        taken = {row: self._agreed(batch.slot(row), tokens) for row, tokens in drawn.items()}
        chosen = [place for row in taken for place in places[row][: len(taken[row])]]
        scores = _scores(logits_MV[chosen], list(chain(*taken.values())), temperature)
        for row, tokens in taken.items():
            hidden_TE = hidden_ME[places[row][0] :][: len(tokens)]
            if not self._take(batch, row, [(token, *next(scores)) for token in tokens], hidden_TE):
                over.append(row)
        return over

    def _draw(
        self,
        batch: Batch,
        places: dict[int, range],
        logits_MV: torch.Tensor,
        temperature: float,
    ) -> tuple[dict[int, list[int]], dict[int, str]]:
        """The tokens of each row, one a place, and the reasons of rows that have no law."""
        failed: dict[int, str] = {}
        while rows := [row for row in places if row not in failed]:
            owners = [row for row in rows for _ in places[row]]
            slots = [batch.slot(row) for row in owners]
            steps = chain.from_iterable(range(len(places[row])) for row in rows)
            before = [slot.tokens + slot.draft[:n] for slot, n in zip(slots, steps, strict=True)]
            logits = logits_MV[list(chain.from_iterable(places[row] for row in rows))]
            try:
                tokens = self._sampler(logits, [slot.noise for slot in slots], before, temperature)
            except LogitsError as error:
                failed[owners[error.row]] = str(error)
                continue
            drawn = iter(tokens.tolist())
            return {row: list(islice(drawn, len(places[row]))) for row in rows}, failed
        return {}, failed

    def _agreed(self, slot: Slot, sampled: list[int]) -> list[int]:
        """The sampled tokens that plain decoding would have drawn; the draft that is left."""
        equal = num_equal(slot.draft, sampled)
        self.counts.drafted += min(len(slot.draft), len(sampled))
        self.counts.accepted += equal
        slot.draft = slot.draft[equal:] if equal == len(sampled) else []
        return sampled[: equal + 1]

    def _take(
        self,
        batch: Batch,
        row: int,
        scored: list[tuple[int, float, float]],
        hidden_TE: torch.Tensor,
    ) -> bool:
        """Adds tokens to a turn; returns whether the session goes on."""
        slot = batch.slot(row)
        if not slot.tokens:
            batch.remember(row, len(slot.trace.ids), hidden_TE[0])
        slot.add(scored)
        batch.take(row, [token for token, *_ in scored])
        self.counts.sampled += len(scored)
        if not self.ends(slot.tokens):
            return True
        following = slot.session.advance(slot.turn(is_stopped=self._ending.is_stopped(slot.tokens)))
        if following is None:
            batch.remember(row, len(slot.trace.ids) - 1, hidden_TE[-1])
            return False
        slot.next_turn(following)
        batch.recall(row)
        self._ask_draft(slot)
        return True


def _goes_on(batch: Batch, row: int, reason: str) -> bool:
    """Whether a row without a law can try again: its draft may have been what the model refused."""
    if batch.slot(row).draft:
        batch.retract(row)
        return True
    batch.slot(row).session.fail(reason)
    return False


def _scores(
    logits_TV: torch.Tensor, tokens: list[int], temperature: float
) -> Iterator[tuple[float, float]]:
    """Log-probability of each token, and the entropy of what it was drawn from."""
    logprobs_TV = torch.log_softmax(logits_TV / (temperature or 1.0), dim=-1)
    chosen = logprobs_TV.gather(1, torch.tensor(tokens, device=logits_TV.device)[:, None])[:, 0]
    return zip(chosen.tolist(), entropies(logprobs_TV).tolist(), strict=True)


class _Weights:
    """Tells whether a model's weights changed since it was asked last.

    It knows parameters by identity, place and version, and by a few of their entries: fused
    optimizers, and whatever writes through `.data`, leave the version as it was.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._parameters: list[torch.nn.Parameter] = []
        self._marks: list[tuple[int, int]] = []
        self._probes = torch.zeros(0)

    def changed(self) -> bool:
        """Whether they did; true when asked first."""
        parameters = list(self._model.parameters())
        marks = [(one.data_ptr(), one._version) for one in parameters]
        probes = torch.cat([_probes(one.detach().flatten()) for one in parameters])
        is_same = marks == self._marks and torch.equal(probes, self._probes)
        is_same = is_same and all(map(operator.is_, parameters, self._parameters))
        self._parameters, self._marks, self._probes = parameters, marks, probes
        return not is_same


def _probes(entries: torch.Tensor) -> torch.Tensor:
    return entries[:: max(1, len(entries) // _PROBES)].double()
