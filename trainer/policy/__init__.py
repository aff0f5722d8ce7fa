"""The policy: a tokenizer and a causal language model, and its log-probabilities of given tokens.

Leaves out sampling (engines) and losses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from trainer.config import ModelConfig
from twinstats.errors import UsageError

PAD = "<pad>"

_WHOLE_IN_FILE = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Of tokenizers that are what their file says and no more, the class: its name and its old one."""

# R rows, L positions, N wanted tokens, E hidden size, V vocabulary


@dataclass(frozen=True, slots=True)
class Policy:
    """A model and the tokenizer it was trained with."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    @property
    def vocabulary(self) -> int:
        """How many ids the model has; a tokenizer may know more."""
        return int(self.model.config.vocab_size)

    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text, nothing added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, tags included; ids that only the model has say nothing."""
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def tokens_with(self, texts: Sequence[str]) -> frozenset[int]:
        """Ids of all tokens whose text holds one of these texts; a newline is part of many.

        Raises:
            UsageError: A text that no token holds.
        """
        told = self.tokenizer.batch_decode(
            [[number] for number in range(len(self.tokenizer))], clean_up_tokenization_spaces=False
        )
        if not all(any(text in one for one in told) for text in texts):
            place = self.tokenizer.name_or_path
            raise UsageError(
                f"The tokenizer must hold {', '.join(texts)} as tokens, "
                f"got {len(told)} tokens without{f' in {place}' if place else ''}."
            )
        return frozenset(n for n, one in enumerate(told) if any(text in one for text in texts))

    def save(self, folder: Path) -> None:
        """Writes model (safetensors) and tokenizer into a folder."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_policy(place: Path | str) -> Policy:
    """The policy in a local folder or, by a name, on the hub; safetensors only, no remote code.

    In float32, on the GPU where there is one: everything else follows the model's device.
    """
    is_local = isinstance(place, Path) or Path(place).is_dir()
    model = AutoModelForCausalLM.from_pretrained(
        place, use_safetensors=True, local_files_only=is_local, dtype=torch.float32
    )
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    return Policy(model, _load_tokenizer(place, is_local=is_local))


def _load_tokenizer(place: Path | str, *, is_local: bool) -> PreTrainedTokenizerFast:
    """The tokenizer as it was saved.

    AutoTokenizer goes by the architecture of the model beside it: with a Qwen2 it gives ours a way
    to normalise and split, and an end token beyond the model's vocabulary, that are Qwen2's.
    """
    told = get_tokenizer_config(place, local_files_only=is_local)
    is_plain = told.get("tokenizer_class") in _WHOLE_IN_FILE
    own = PreTrainedTokenizerFast if is_plain else AutoTokenizer
    return own.from_pretrained(place, local_files_only=is_local)


def build_tokenizer(
    texts: Iterable[str], *, vocabulary: int, special: Sequence[str]
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on texts; the special tokens are never split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, additional_special_tokens=list(special)
    )


def build_model(config: ModelConfig, *, seed: int) -> PreTrainedModel:
    """A randomly initialised Qwen2-architecture model with tied embeddings."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=config.vocabulary,
                hidden_size=config.hidden,
                intermediate_size=config.intermediate,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                max_position_embeddings=config.max_length,
                tie_word_embeddings=True,
                pad_token_id=0,
                bos_token_id=None,
                eos_token_id=None,
            )
        )


def padded(sequences: Sequence[Sequence[int]], value: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids (R, L) and their attention mask, by length and never by id."""
    length = max(len(sequence) for sequence in sequences)
    ids_RL = torch.full((len(sequences), length), value, dtype=torch.long)
    mask_RL = torch.zeros((len(sequences), length), dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        ids_RL[row, : len(sequence)] = torch.tensor(sequence)
        mask_RL[row, : len(sequence)] = True
    return ids_RL, mask_RL


def token_logprobs(
    model: PreTrainedModel,
    ids_RL: torch.Tensor,
    mask_RL: torch.Tensor,
    wanted_RL: torch.Tensor,
    *,
    temperature: float,
    chunk_tokens: int | None = None,
    entropy_gradient: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy (nats) of every wanted token given the tokens before it.

    Only wanted positions reach the vocabulary layer.

    Args:
        model: The policy; the other tensors are on its device.
        ids_RL: Right-padded token ids.
        mask_RL: True at real tokens.
        wanted_RL: True at the tokens asked for; never at a row's first.
        temperature: Logits are divided by it, as they were when the tokens were sampled.
        chunk_tokens: Logits of so many tokens exist at a time, also in the backward pass, which
            computes them again; null: of all. Same values but for rounding.
        entropy_gradient: Whether the entropy has one; it takes memory of the size of the logits.

    Returns:
        Two tensors (R, L), zero where not wanted, the first with its gradient.
    """
    hidden_NE = _before(last_hidden(model, ids_RL, mask_RL), wanted_RL)
    chosen_N = ids_RL[wanted_RL]
    size = chunk_tokens or max(1, len(chosen_N))

    def law(hidden_NE: torch.Tensor, chosen_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits_NV = model.get_output_embeddings()(hidden_NE).float()
        return _chosen(logits_NV / temperature, chosen_N, entropy_gradient=entropy_gradient)

    def part(hidden_NE: torch.Tensor, chosen_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if chunk_tokens is None or not torch.is_grad_enabled():
            return law(hidden_NE, chosen_N)
        return checkpoint(law, hidden_NE, chosen_N, use_reentrant=False)

    found = [
        part(hidden_NE[begin : begin + size], chosen_N[begin : begin + size])
        for begin in range(0, max(1, len(chosen_N)), size)
    ]
    logp_N, entropy_N = (torch.cat(parts) for parts in zip(*found, strict=True))
    zeros_RL = torch.zeros(ids_RL.shape, dtype=torch.float32, device=ids_RL.device)
    return (
        zeros_RL.masked_scatter(wanted_RL, logp_N),
        zeros_RL.masked_scatter(wanted_RL, entropy_N),
    )


def entropies(logprobs_NV: torch.Tensor) -> torch.Tensor:
    """Entropy (N) of each row of log-probabilities, nats: -sum p log p.

    A token that cannot be drawn adds 0, to the gradient as well.

    >>> [round(one, 6) for one in entropies(torch.tensor([[0.5, 0.5, 0.0]]).log()).tolist()]
    [0.693147]
    """
    finite_NV = logprobs_NV.clamp(min=torch.finfo(logprobs_NV.dtype).min)
    return -(logprobs_NV.exp() * finite_NV).sum(-1)


def _chosen(
    scaled_NV: torch.Tensor, chosen_N: torch.Tensor, *, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability (N) of the chosen tokens under a softmax, and its entropy (N)."""
    all_NV = torch.log_softmax(scaled_NV, dim=-1)
    entropy_N = entropies(all_NV if entropy_gradient else all_NV.detach())
    return all_NV.gather(1, chosen_N[:, None])[:, 0], entropy_N


def token_logits(
    model: PreTrainedModel,
    ids_RL: torch.Tensor,
    mask_RL: torch.Tensor | None,
    wanted_RL: torch.Tensor,
    *,
    positions_RL: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits (wanted tokens, V) that every wanted token was drawn from, row by row, float32.

    A row of V float32 a token: 600 KB at a vocabulary of 152,000.

    Args:
        model: The policy; the tensors are on its device.
        ids_RL: Right-padded token ids.
        mask_RL: True at real tokens; null: at all.
        wanted_RL: True at the tokens asked for; never at a row's first, where it is not read.
        positions_RL: As in `last_hidden`.
    """
    hidden_RLE = last_hidden(model, ids_RL, mask_RL, positions_RL=positions_RL)
    return model.get_output_embeddings()(_before(hidden_RLE, wanted_RL)).float()


def last_hidden(
    model: PreTrainedModel,
    ids_RL: torch.Tensor,
    mask_RL: torch.Tensor | None,
    *,
    positions_RL: torch.Tensor | None = None,
) -> torch.Tensor:
    """The last hidden state (R, L, E) of every token; no cache is filled.

    Args:
        model: The policy; the tensors are on its device.
        ids_RL: Right-padded token ids.
        mask_RL: True at real tokens; null: at all.
        positions_RL: Of each token in its text, where a row holds several; null: a row is one.
    """
    given = {} if mask_RL is None else {"attention_mask": mask_RL.long()}
    if positions_RL is not None:
        given["position_ids"] = positions_RL
    return model.base_model(input_ids=ids_RL, use_cache=False, **given).last_hidden_state


def _before(hidden_RLE: torch.Tensor, wanted_RL: torch.Tensor) -> torch.Tensor:
    """The hidden state (wanted tokens, E) that every wanted token follows from."""
    return hidden_RLE[:, :-1][wanted_RL[:, 1:]]
