"""What a request for keyed sampling carries, how it travels, and how its tokens are drawn.

A request samples tokens of one turn. It travels as one JSON text under the field "twinstats" of
the engine's extra arguments, which every engine can pass, over HTTP too.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainer import noise
from twinstats.noise import NoiseKey, is_whole

FIELD = "twinstats"
_SHOWN = 300  # letters of a foreign text that a message shows
UNKEYED = "unkeyed"
"""What a request says under `FIELD` to be sampled by the engine, without keyed noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRequest:
    """A request whose tokens are drawn with the noise of a key.

    Attributes:
        key: The turn's noise.
        temperature: Of sampling; 0 takes the largest logit.
        top_k: Tokens kept, 0 for all; before `top_p`.
        top_p: Probability kept, at the temperature, of what `top_k` left.
        position: Index within its turn of the first token that the request samples.
        is_tolerant: vLLM only: where logits are no law (`lawful`), token 0 is left, whose
            log-probability is not finite then. Else the engine stops, with the key's name.

    NumPy's numbers become Python's.

    Raises:
        ValueError: No key, something that is not a number, or one outside its range.
    """

    key: NoiseKey
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    position: int = 0
    is_tolerant: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.key, NoiseKey):
            raise ValueError(f"`key` must be a `NoiseKey`, got {self.key!r}.")
        temperature, top_p = _real(self.temperature), _real(self.top_p)
        rules = {
            "temperature": ("at least 0 and finite", 0 <= temperature < math.inf),
            "top_k": ("in [0, 2**32) and whole", _is_word(self.top_k)),
            "top_p": ("in (0, 1]", 0 < top_p <= 1),
            "position": ("in [0, 2**32) and whole", _is_word(self.position)),
            "is_tolerant": ("true or false", isinstance(self.is_tolerant, bool)),
        }
        for name, (rule, holds) in rules.items():
            if not holds:
                value = getattr(self, name)
                raise ValueError(f"`{name}` must be {rule}, got {value!r} in {self.key}.")
        object.__setattr__(self, "temperature", temperature)
        object.__setattr__(self, "top_p", top_p)
        object.__setattr__(self, "top_k", int(self.top_k))
        object.__setattr__(self, "position", int(self.position))

    @property
    def is_truncated(self) -> bool:
        """Whether top-k or top-p may take tokens away."""
        return self.top_k > 0 or self.top_p < 1

    def extra_args(self) -> dict[str, str]:
        """What the engine's request carries: `extra_args` in vLLM, `custom_params` in SGLang."""
        fields = dataclasses.asdict(self)
        return {FIELD: json.dumps({**fields.pop("key"), **fields})}


def request_of(extra_args: Mapping[str, Any] | None) -> KeyedRequest | None:
    """The keyed request in an engine's extra arguments; null where they say "unkeyed".

    Raises:
        ValueError: No key and not "unkeyed", or a text that is not a keyed request.
    """
    given = extra_args or {}
    text = given.get(FIELD) if isinstance(given, Mapping) else None
    if text == UNKEYED:
        return None
    if not isinstance(text, str):
        raise ValueError(
            f"A request without a noise key: its extra arguments must hold {FIELD!r} "
            f"(`KeyedRequest.extra_args()`, or {UNKEYED!r} to be sampled by the engine), "
            f"got {given!s:.{_SHOWN}}."
        )
    try:
        fields = json.loads(text)
        names = {field.name for field in dataclasses.fields(NoiseKey)}
        key = NoiseKey(**{name: fields.pop(name) for name in names & set(fields)})
        return KeyedRequest(key=key, **fields)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{FIELD!r} must hold a keyed request, got {text:.{_SHOWN}}: {error!s:.{_SHOWN}}"
        ) from None


def sample(
    logits_RV: torch.Tensor, requests: Sequence[KeyedRequest], num_sampled: Sequence[int]
) -> torch.Tensor:
    """The next token of each request: truncation, then keyed noise.

    Args:
        logits_RV: One row a request.
        requests: Whose tokens they are.
        num_sampled: Tokens that each request has sampled so far.

    Raises:
        LogitsError: NaN or +inf logits, a row without a finite logit; names the request's key.
    """
    keys = [request.key for request in requests]
    positions = [r.position + done for r, done in zip(requests, num_sampled, strict=True)]
    temperature = np.array([request.temperature for request in requests], np.float64)
    if any(request.is_truncated for request in requests):
        device = logits_RV.device
        logits_RV = noise.truncate(
            logits_RV,
            top_k=torch.tensor([request.top_k for request in requests], device=device),
            top_p=torch.tensor([r.top_p for r in requests], dtype=torch.double, device=device),
            temperature=torch.tensor(temperature, device=device),
        )
    return noise.sample(logits_RV, keys, positions, temperature)


def lawful(logits_RV: torch.Tensor, is_tolerant_R: torch.Tensor) -> torch.Tensor:
    """The logits, with token 0 alone possible in tolerant rows that are no law.

    No law: NaN or +inf logits, or not one finite; log-probabilities of such a row are not finite.
    """
    is_lawless_R = ~torch.logsumexp(logits_RV.float(), -1).isfinite()
    rows = (is_lawless_R & is_tolerant_R).nonzero()[:, 0]
    mended_RV = logits_RV.clone()
    keep_only(mended_RV, rows, torch.zeros_like(rows))
    return mended_RV


def keep_only(logits_RV: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> None:
    """Leaves, in place, one token possible in each of the rows, with logit 0."""
    logits_RV[rows] = -math.inf
    logits_RV[rows, ids] = 0.0


def _real(value: object) -> float:
    """A real number as a float; NaN for anything else, booleans and what is too large included."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    return math.nan


def _is_word(value: Any) -> bool:
    return is_whole(value) and 0 <= value < 2**32
