"""A run's policy as a Hugging Face folder, with a model card that says how it came about.

Leaves out the card's text (`model_card`).
"""

import copy
from pathlib import Path
from typing import Any

import polars as pl
from peft import get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedTokenizerFast

from trainer.chat_template import ChatTemplate
from trainer.config import Config
from trainer.export.model_card import Card, model_card
from trainer.policy import Policy
from trainer.policy.folder import write_folder
from trainer.policy.lora import has_adapters, merged
from trainer.policy.pretrained import PACKAGED
from trainer.tasks import ENVIRONMENTS
from trainer.tasks.choice import CHATS
from twinstats.errors import UsageError
from twinstats.records import parts, read, read_run, step_of
from twinstats.rows import Row


def export(
    run: Path, policy: Policy, config: Config, out: Path, *, step: int, merge: bool = False
) -> None:
    """Writes the policy of a run's checkpoint into the new folder `out`.

    Safetensors, config, tokenizer, generation settings (those the run sampled with) and README.md.
    Of a policy with adapters either these alone, which name their base model, or merged into it.

    Args:
        run: The run folder; its log has the results.
        policy: Of the checkpoint.
        config: The run's.
        out: A folder that does not exist; it is there whole or not at all.
        step: Of the checkpoint.
        merge: Add the adapters into the weights.

    Raises:
        UsageError: The folder exists, there is nothing to merge, or the adapters' base model has
            no name by which others could load it.
    """
    is_adapted = has_adapters(policy.model)
    if merge and not is_adapted:
        raise UsageError(
            "`--merge` is for runs with `lora.rank` above 0: this one has no adapters."
        )
    is_adapter = is_adapted and not merge
    if is_adapter:
        _refuse_nameless(config)
    card = model_card(
        Card(
            name=out.name,
            description=read_run(run),
            config=config,
            step=step,
            scores=_scores(run, step),
            tokenizer=_tokenizer_class(policy),
            is_adapter=is_adapter,
        )
    )

    def write(folder: Path) -> None:
        if is_adapter:
            _save_adapters(policy.model, config.model.pretrained, folder)
        else:
            model = merged(policy.model) if is_adapted else policy.model
            model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        generation_settings(policy, config).save_pretrained(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")

    write_folder(out, write)


def generation_settings(policy: Policy, config: Config) -> GenerationConfig:
    """How a turn was sampled: temperature, no truncation, at most so many tokens, where it ends."""
    is_chat = config.task.name in CHATS
    # only chats, whose tokenizers know where a message ends, have `stop` as a property
    ends: Any = (
        ChatTemplate(policy.tokenizer).ends if is_chat else ENVIRONMENTS[config.task.name].stop
    )
    return GenerationConfig(
        do_sample=True,
        temperature=config.rollout.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=config.rollout.max_turn_tokens,
        eos_token_id=sorted(policy.tokens_with(ends)),
        pad_token_id=policy.tokenizer.pad_token_id,
    )


def _save_adapters(model: Any, base: str, folder: Path) -> None:
    """Adapters as peft and transformers load them, on the base model of that name."""
    (config,) = model.peft_config.values()
    own = copy.copy(config)
    own.base_model_name_or_path, own.task_type, own.inference_mode = base, "CAUSAL_LM", True
    own.save_pretrained(folder)
    weights = {
        f"base_model.model.{name}": weight.detach().contiguous()
        for name, weight in get_peft_model_state_dict(model).items()
    }
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _refuse_nameless(config: Config) -> None:
    name = config.model.pretrained
    if not name or name in PACKAGED:
        told = f"{name!r} comes out of a package" if name else "it was made by a warm-up"
        raise UsageError(
            "Adapters alone need a base model that others can load by its name, and "
            f"{told}: give --merge."
        )


def _tokenizer_class(policy: Policy) -> str:
    """What loads the tokenizer as it is: AutoTokenizer goes by the model that is beside it."""
    is_plain = type(policy.tokenizer) is PreTrainedTokenizerFast
    return "PreTrainedTokenizerFast" if is_plain else "AutoTokenizer"


def _scores(run: Path, step: int) -> list[Row]:
    """The scores of the evaluation at a step; none where there was none."""
    if step not in map(step_of, parts(run, "scores")):
        return []
    return read(run, "scores").filter(pl.col("step") == step).collect().to_dicts()
