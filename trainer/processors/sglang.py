"""Keyed noise in SGLang: a custom logit processor, chosen by each request.

    python -m sglang.launch_server ... --enable-custom-logit-processor --disable-overlap-schedule

    {"custom_logit_processor": KeyedLogitProcessor.to_str(),
     "sampling_params": {"temperature": 0, "custom_params": request.extra_args()}}

Each row's token is drawn here and left as the only one possible. The request's temperature and
truncation are those of the `KeyedRequest`; SGLang's own stay at temperature 0.

- SGLang's log-probabilities are those of the edited logits, 0 for the token taken, also under
  SGLANG_RETURN_ORIGINAL_LOGPROB: recompute them in the trainer.
- With the overlap schedule a token is drawn before the one before it was counted, so that two
  tokens would share their noise: such a server is refused.
- `to_str` names this class (dill, by reference): the server's Python needs this package too.
- A request that is refused stops the server, as any error in a processor does.

Leaves out speculative decoding, where one request has several rows.

Read in SGLang 0.5.23 (`sampling/custom_logit_processor.py`, `layers/sampler.py`,
`managers/scheduler.py`). It has not been run in SGLang: the tests have a stand-in for its base
class.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainer.processors.request import KeyedRequest, keep_only, request_of, sample

try:
    from sglang.srt.runtime_context import get_schedule
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
except ImportError as error:
    raise ImportError(f"SGLang is missing ({error}): pip install sglang==0.5.23") from error

_REQUEST = "__req__"


class KeyedLogitProcessor(CustomLogitProcessor):
    """Draws the tokens of keyed requests; leaves the rows of unkeyed ones alone.

    Raises:
        RuntimeError: Made in a server with the overlap schedule.
    """

    def __init__(self) -> None:
        if not get_schedule().disable_overlap_schedule:
            raise RuntimeError(
                "Keyed noise needs the count of a request's tokens to be up to date: "
                "start SGLang with --disable-overlap-schedule."
            )

    def __call__(
        self,
        logits: torch.Tensor,
        custom_param_list: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> torch.Tensor:
        """The logits (one row an entry), edited in place: one possible token a keyed row.

        Raises:
            LogitsError: NaN or +inf logits, a row without a finite logit; names the row's key.
            ValueError: A request without a key that does not say "unkeyed", several rows of one,
                or not one entry a row.
        """
        entries = custom_param_list or [None] * len(logits)
        if len(entries) != len(logits):
            raise ValueError(
                f"`custom_param_list` must be one a row, got {len(entries)} for {len(logits)} rows."
            )
        requests = [_request_of(entry) for entry in entries]
        keyed = [row for row, request in enumerate(requests) if request is not None]
        if not keyed:
            return logits
        live = [(entries[row] or {})[_REQUEST] for row in keyed]
        if len({id(one) for one in live}) < len(live):
            raise ValueError(
                "Keyed noise draws one token a request at a time: "
                "start SGLang without speculative decoding."
            )
        rows = torch.tensor(keyed, device=logits.device)
        chosen = [request for request in requests if request is not None]
        ids = sample(logits[rows], chosen, [len(one.output_ids) for one in live])
        keep_only(logits, rows, ids)
        return logits


def _request_of(entry: Mapping[str, Any] | None) -> KeyedRequest | None:
    return request_of({name: value for name, value in (entry or {}).items() if name != _REQUEST})
