"""A Llama-architecture policy out of a GGUF file: weights dequantised, tokenizer rebuilt.

transformers reads such files too, with accelerate, but its model cannot be saved. Leaves out other
architectures than llama, and other tokenizers than SmolLM2's.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from trainer.policy import Policy
from twinstats.errors import UsageError

_CONTROL = 3  # the token type of what is never split, such as <|im_end|>

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def read_gguf(file: Path) -> Policy:
    """The policy in a GGUF file, in float32.

    Every quantised weight becomes the float that its block stands for: the model is the quantised
    one, not the one it was made from.

    Raises:
        UsageError: An architecture other than llama, or a tokenizer other than SmolLM2's.
    """
    reader = gguf.GGUFReader(file)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    kinds = tuple(
        facts.get(name)
        for name in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre")
    )
    if kinds != ("llama", "gpt2", "smollm"):
        raise UsageError(
            f"{file.name} must hold a llama with the tokenizer gpt2/smollm, got {kinds}."
        )
    return Policy(_model(facts, reader.tensors), _tokenizer(facts))


def _model(facts: dict[str, Any], tensors: list[Any]) -> PreTrainedModel:
    names = {tensor.name for tensor in tensors}
    config = LlamaConfig(
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=facts["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        tie_word_embeddings="output.weight" not in names,
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        pad_token_id=facts["tokenizer.ggml.padding_token_id"],
    )
    with torch.device("meta"):  # no weights are drawn that would be thrown away
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # a buffer that no file holds
    state = {_name(tensor.name): _weight(tensor, config) for tensor in tensors}
    model.load_state_dict(state, strict=not config.tie_word_embeddings)
    model.tie_weights()
    return model.eval()


def _name(name: str) -> str:
    """What transformers calls a tensor, such as model.layers.3.mlp.up_proj.weight."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    return f"{_WHOLE[parts[0]]}.{parts[1]}"


def _weight(tensor: Any, config: LlamaConfig) -> torch.Tensor:
    weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for part, number in heads.items():
        if f".{part}." in tensor.name:
            weight = _unpermuted(weight, number)
    return torch.from_numpy(np.array(weight, np.float32))


def _unpermuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rotary pairs side by side, as GGUF has them, into transformers' two halves of each head."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(facts: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = facts["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        additional_special_tokens=special,
        eos_token=tokens[facts["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[facts["tokenizer.ggml.padding_token_id"]],
        chat_template=facts.get("tokenizer.chat_template"),
    )
