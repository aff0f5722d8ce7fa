"""Keyed noise in transformers' `generate`: one logits processor for a whole batch.

    model.generate(
        **inputs, do_sample=False,
        logits_processor=LogitsProcessorList([KeyedLogitsProcessor(requests, prompt_length)]),
    )

Each row's token is drawn here and left as the only one possible, so `do_sample=False` takes it,
and so does `do_sample=True`, whose own temperature and truncation come after and change nothing.
Both belong into the request. Other processors come before, and what they change is what is drawn
from.

`output_logits=True` gives the model's own logits, from which log-probabilities are taken;
`output_scores=True` gives what this processor left, from which none can be.

Leaves out beams, which are not samples, and continuous batching, which drops this processor.
"""

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor

from trainer.processors.request import KeyedRequest, keep_only, sample
from twinstats.noise import is_whole

# R rows, L positions, V vocabulary


class KeyedLogitsProcessor(LogitsProcessor):
    """Draws the tokens of a batch with keyed noise.

    Stateless: the number of tokens sampled so far is the width of the ids less `prompt_length`.
    A row that has finished goes on drawing for nobody.

    Args:
        requests: One a row, in the order of the batch.
        prompt_length: Width of the ids given to `generate`, padding on the left included.

    Raises:
        ValueError: Something else than a `KeyedRequest`, or a width that is none.
    """

    supports_continuous_batching = False

    def __init__(self, requests: Sequence[KeyedRequest], prompt_length: int) -> None:
        for row, request in enumerate(requests):
            if not isinstance(request, KeyedRequest):
                raise ValueError(
                    f"`requests` must hold a `KeyedRequest` a row, got {request!r} in row {row}."
                )
        if not (is_whole(prompt_length) and prompt_length >= 0):
            raise ValueError(
                f"`prompt_length` must be at least 0 and whole, got {prompt_length!r}."
            )
        self._requests = tuple(requests)
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores (R, V) with one possible token a row; those given are left as they are.

        Raises:
            LogitsError: NaN or +inf scores, a row without a finite score; names the row's key.
            ValueError: Not one request a row, or ids narrower than the prompt.
        """
        num_rows, num_requests = len(scores), len(self._requests)
        if num_rows != num_requests:
            raise ValueError(
                f"`requests` must be one a row, got {num_requests} for {num_rows} rows: beams are "
                "not supported, and `num_return_sequences` wants a request a sequence."
            )
        done = input_ids.shape[1] - self._prompt_length
        if done < 0:
            raise ValueError(
                f"`prompt_length` must be the width of the ids given to `generate`, "
                f"got {self._prompt_length} and ids of width {input_ids.shape[1]}."
            )
        ids_R = sample(scores, self._requests, [done] * num_rows)
        # A tensor of its own: `generate` keeps the one given as the model's logits.
        only_RV = torch.empty_like(scores)
        keep_only(only_RV, torch.arange(num_rows, device=scores.device), ids_R)
        return only_RV
