"""The policy: a tokenizer and a causal language model, and its log-probabilities of given tokens.

Leaves out sampling (engines) and losses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from trainer.config import ModelConfig
from twinstats.errors import UsageError

PAD = "<pad>"

# R rows, L positions, V vocabulary


@dataclass(frozen=True, slots=True)
class Policy:
    """A model and the tokenizer it was trained with."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text, nothing added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, tags included."""
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
            raise UsageError(f"The tokenizer must hold {', '.join(texts)} as tokens.")
        return frozenset(n for n, one in enumerate(told) if any(text in one for text in texts))

    def save(self, folder: Path) -> None:
        """Writes model (safetensors) and tokenizer into a folder."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_policy(place: Path | str) -> Policy:
    """The policy in a local folder or, by a name, on the hub; safetensors only, no remote code."""
    is_local = isinstance(place, Path) or Path(place).is_dir()
    model = AutoModelForCausalLM.from_pretrained(
        place, use_safetensors=True, local_files_only=is_local, dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=is_local)
    return Policy(model, tokenizer)


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy (nats) of every wanted token given the tokens before it.

    Only wanted positions reach the vocabulary layer.

    Args:
        model: The policy.
        ids_RL: Right-padded token ids.
        mask_RL: True at real tokens.
        wanted_RL: True at the tokens asked for; never at a row's first.
        temperature: Logits are divided by it, as they were when the tokens were sampled.

    Returns:
        Two tensors (R, L) with their gradients, zero where not wanted.
    """
    logits_NV = token_logits(model, ids_RL, mask_RL, wanted_RL)
    all_NV = torch.log_softmax(logits_NV / temperature, dim=-1)
    chosen_N = all_NV.gather(1, ids_RL[wanted_RL][:, None])[:, 0]
    entropy_N = -(all_NV.exp() * all_NV).sum(-1)
    logp_RL = torch.zeros(ids_RL.shape, dtype=torch.float32)
    entropy_RL = torch.zeros(ids_RL.shape, dtype=torch.float32)
    return (
        logp_RL.masked_scatter(wanted_RL, chosen_N),
        entropy_RL.masked_scatter(wanted_RL, entropy_N),
    )


def token_logits(
    model: PreTrainedModel, ids_RL: torch.Tensor, mask_RL: torch.Tensor, wanted_RL: torch.Tensor
) -> torch.Tensor:
    """Logits (wanted tokens, V) that every wanted token was drawn from, row by row, float32.

    A row of V float32 a token: 600 KB at a vocabulary of 152,000.

    Args:
        model: The policy.
        ids_RL: Right-padded token ids.
        mask_RL: True at real tokens.
        wanted_RL: True at the tokens asked for; never at a row's first.
    """
    hidden = model.base_model(input_ids=ids_RL, attention_mask=mask_RL.long()).last_hidden_state
    return model.get_output_embeddings()(hidden[:, :-1][wanted_RL[:, 1:]]).float()
