"""A tiny random model of Qwen2's architecture, a tokenizer with Qwen's special tokens and a chat
template like Qwen's, and questions in Search-R1's files."""

import json

import polars as pl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trainer.config import ModelConfig
from trainer.policy import Policy, build_model

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN = ("<tool_call>", "</tool_call>")  # tokens of Qwen2.5 that are not special
VOCABULARY = 560  # some rows are no token's

TEMPLATE = """
{%- set first = messages[0] %}
{%- set system = first.content if first.role == "system" else "You are a helpful assistant." %}
{{- "<|im_start|>system\n" + system }}
{%- if tools %}
{{- "\n\n# Tools\n<tools>" }}
{%- for tool in tools %}{{- "\n" + (tool | tojson) }}{%- endfor %}
{{- "\n</tools>\nCall one within <tool_call></tool_call>." }}
{%- endif %}
{{- "<|im_end|>\n" }}
{%- for message in messages if message.role != "system" %}
{%- if message.role == "tool" %}
{{- "<|im_start|>user\n<tool_response>\n" + message.content + "\n</tool_response><|im_end|>\n" }}
{%- else %}
{{- "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\n" }}{%- endif %}
"""

CAPITALS = {
    "Chad": "N'Djamena",
    "France": "Paris",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Qatar": "Doha",
    "Togo": "Lomé",
}

ASKS = (
    "Think, then search by <search> query </search>; results are between <information> and "
    "</information>. Answer in <answer>, for example <answer> Beijing </answer>. Question: "
)


def tokenizer():
    """Byte-level BPE in which `</search>` is several tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    texts = [f"What is the capital of {land}? search answer>\n" for land in CAPITALS]
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    core.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    core.add_tokens([AddedToken(name, special=False, normalized=False) for name in PLAIN])
    found = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    found.chat_template = TEMPLATE.strip()
    return found


def policy(**sizes):
    """A random one; its vocabulary is larger than the tokenizer's."""
    own = {"layers": 2, "hidden": 32, "intermediate": 64, "heads": 4, "kv_heads": 2}
    config = ModelConfig(vocabulary=VOCABULARY, max_length=1200, **own, **sizes)
    return Policy(build_model(config, seed=0), tokenizer())


def search_r1_rows(split, *, prefix=""):
    """Questions as Search-R1's files have them."""
    return [
        {
            "id": f"{split}_{number}",
            "question": f"What is the capital of {land}?",
            "golden_answers": [city],
            "data_source": f"{prefix}{'hotpotqa' if number % 2 else 'nq'}",
            "prompt": [{"role": "user", "content": f"{ASKS}What is the capital of {land}?\n"}],
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": [city]}},
            "extra_info": {"split": split, "index": number},
        }
        for number, (land, city) in enumerate(CAPITALS.items())
    ]


def write_data(folder):
    """train.parquet, test.parquet and corpus.jsonl; returns them as settings."""
    for split in ("train", "test"):
        pl.DataFrame(search_r1_rows(split)).write_parquet(folder / f"{split}.parquet")
    write_corpus(folder / "corpus.jsonl")
    return [
        f"task.data={folder / 'train.parquet'}",
        f"task.test_data={folder / 'test.parquet'}",
        f"task.corpus={folder / 'corpus.jsonl'}",
    ]


def write_corpus(path):
    """A passage a country, as wiki-18.jsonl has them."""
    lines = [
        json.dumps({"id": str(n), "contents": f'"{land}"\nThe capital of {land} is {city}.'})
        for n, (land, city) in enumerate(CAPITALS.items())
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
