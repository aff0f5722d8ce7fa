"""The two runners' side of a processor, by hand: requests, and what is done with them."""

from types import SimpleNamespace

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState

from tests.samplers import perturbed
from trainer.processors.request import FIELD, UNKEYED
from trainer.processors.vllm import KeyedV1, KeyedV2

CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(logprobs_mode="raw_logprobs"), speculative_config=None
)
VOCABULARY = 700


def params(keyed):
    """Sampling parameters of a keyed request, or of none."""
    extra = {FIELD: UNKEYED} if keyed is None else keyed.extra_args()
    return SamplingParams(temperature=0, extra_args=extra)


def logits_of(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, VOCABULARY, generator=generator)


def expected(logits, keyed, num_sampled):
    """The token of a row by NumPy alone; -1 where the row is not keyed."""
    return -1 if keyed is None else int(perturbed(logits, keyed, num_sampled).argmax())


def taken(before, after):
    """The token that is left in each row; -1 in a row that was not touched."""
    tokens = []
    for old, new in zip(before, after, strict=True):
        left = torch.isfinite(new).nonzero()[:, 0].tolist()
        assert torch.equal(old, new) or (len(left) == 1 and new[left[0]] == 0)
        tokens.append(-1 if torch.equal(old, new) else left[0])
    return tokens


def update(removed=(), added=(), moved=(), size=8):
    return BatchUpdate(batch_size=size, removed=list(removed), added=list(added), moved=list(moved))


class Slots:
    """What the V2 runner does around a processor, with stand-ins for its buffers."""

    def __init__(self, count=9):
        self.lengths = torch.zeros(count, dtype=torch.int32)
        self.prefill = torch.zeros(count, dtype=torch.int32)
        unread = SimpleNamespace(gpu=None)
        self.states = LogitsProcRequestState(
            device=torch.device("cpu"),
            max_num_reqs=count,
            vocab_size=VOCABULARY,
            all_token_ids=unread,
            prompt_len=SimpleNamespace(gpu=self.lengths.clone()),
            prefill_len=SimpleNamespace(gpu=self.prefill.clone()),
            total_len=unread,
        )
        self.processor = KeyedV2(CONFIG, self.states)

    def add(self, slot, keyed, *, prompt_len, prefill_len=None):
        self.lengths[slot] = prompt_len
        self.prefill[slot] = prefill_len or prompt_len
        assert self.processor.add_request(slot, params(keyed)) == (keyed is not None)
        # As vLLM's, a flush puts a new tensor in the place of the old one.
        self.states.prompt_len.gpu = self.lengths.clone()
        self.states.prefill_len.gpu = self.prefill.clone()
        self.processor.apply_staged_writes()

    def apply(self, logits, rows):
        """Applies to rows of (slot, tokens sampled before): those of a slot stand together."""
        slots = np.array([slot for slot, _ in rows])
        first = np.flatnonzero(np.diff(slots, prepend=-1))
        local = np.arange(len(rows)) - np.repeat(first, np.diff(first, append=len(rows)))
        pos = [int(self.lengths[slot]) - 1 + done for slot, done in rows]
        context = LogitsContext(
            expanded_idx_mapping=torch.tensor(slots, dtype=torch.int32),
            idx_mapping=torch.tensor(slots[first], dtype=torch.int32),
            idx_mapping_np=slots[first].astype(np.int32),
            expanded_local_pos=torch.tensor(local, dtype=torch.int32),
            input_ids=torch.zeros(len(rows), dtype=torch.int32),
            pos=torch.tensor(pos),
            seq_lens_upper_bound_np=np.array(pos)[first] + 1,
        )
        return self.processor.apply(logits, context)


def both(asked):
    """`apply` of either class, for one row a request that has sampled nothing yet."""
    old, slots = KeyedV1(CONFIG, torch.device("cpu"), False), Slots()
    old.update_state(update(added=[(i, params(r), [1], []) for i, r in enumerate(asked)]))
    for slot, keyed in enumerate(asked):
        slots.add(slot, keyed, prompt_len=2)
    return {
        "V1": old.apply,
        "V2": lambda logits: slots.apply(logits, [(slot, 0) for slot in range(len(asked))]),
    }
