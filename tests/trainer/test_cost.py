"""The estimate of memory and time against what can be measured on a CPU."""

import re
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from trainer.config import (
    LearnerConfig,
    LengthConfig,
    LoraConfig,
    LossConfig,
    ModelConfig,
    changed,
)
from trainer.cost.estimate import estimate
from trainer.cost.memory import (
    activations,
    fitting_rows,
    kv_bytes,
    learner_memory,
    logits,
    serving_memory,
)
from trainer.cost.seconds import (
    SYNC_BYTES,
    forward_flops,
    num_steps,
    run_hours,
    step_seconds,
    update_flops,
)
from trainer.cost.shape import KNOWN, shape_of
from trainer.cost.tokens import FILL, step_tokens
from trainer.learning.learner import ready
from trainer.learning.optimizer import make_optimizer, trained_parameters
from trainer.policy import Policy, build_model, token_logits, token_logprobs
from trainer.policy.lora import add_adapters
from twinstats.cli import main as cli
from twinstats.errors import UsageError

MODEL = ModelConfig(
    layers=3, hidden=64, intermediate=160, heads=4, kv_heads=2, vocabulary=500, max_length=256
)
ROWS, LENGTH = 4, 48
DOCS = Path(__file__).parents[2] / "docs"
NAMES = {
    "vocab_size": "vocabulary",
    "hidden_size": "hidden",
    "intermediate_size": "intermediate",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_size",
    "tie_word_embeddings": "is_tied",
}


def on_meta(kind, shape):
    told = {name: getattr(shape, own) for name, own in NAMES.items()}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(kind(**told))


def passage(model):
    ids = torch.randint(1, MODEL.vocabulary, (ROWS, LENGTH), generator=torch.Generator())
    mask = torch.ones_like(ids, dtype=torch.bool)
    wanted = mask.clone()
    wanted[:, : LENGTH // 2] = False
    return model, ids, mask, wanted


class Live(TorchDispatchMode):
    """Bytes of the tensors that operations made and that are still there, at most."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor):
                self.note(one.untyped_storage())
        return made

    def note(self, storage):
        place, size = storage._cdata, storage.nbytes()
        if place in self.seen:
            return
        self.seen.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.gone, place, size)

    def gone(self, place, size):
        self.seen.discard(place)
        self.now -= size


@pytest.fixture(scope="module")
def small():
    return build_model(MODEL, seed=0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, LlamaConfig if name.startswith("Smol") else Qwen2Config) for name in KNOWN],
)
def test_known_shapes_have_the_parameters_of_the_architecture(name, kind):
    shape = KNOWN[name]
    assert shape.parameters == on_meta(kind, shape).num_parameters()


@pytest.mark.parametrize(("name", "billions"), [("Qwen2.5-3B", 3.09), ("Qwen2.5-7B", 7.62)])
def test_parameters_are_those_published(name, billions):
    assert round(KNOWN[name].parameters / 1e9, 2) == billions


def test_qwen3_normalises_heads_and_has_no_bias():
    shape = replace(shape_of(MODEL), has_bias=False, has_head_norms=True, head_size=32)
    assert shape.parameters == on_meta(Qwen3Config, shape).num_parameters()


def test_a_model_built_here_has_its_parameters(small):
    assert shape_of(MODEL).parameters == small.num_parameters()


def test_a_folder_tells_its_shape(tmp_path):
    shape = replace(shape_of(MODEL), is_tied=False)
    told = {name: getattr(shape, own) for name, own in NAMES.items()}
    Qwen2Config(**told).save_pretrained(tmp_path)
    assert shape_of(ModelConfig(pretrained=str(tmp_path))) == shape


def test_a_name_without_sizes_is_refused():
    with pytest.raises(UsageError, match="the size of 'some/model' is not known here"):
        shape_of(ModelConfig(pretrained="some/model"))


@pytest.mark.parametrize("rank", [0, 4])
def test_weights_gradients_and_optimizer_are_counted_exactly(config, rank):
    config = replace(config, model=MODEL, lora=LoraConfig(rank=rank))
    model = build_model(MODEL, seed=0)
    add_adapters(model, config.lora, seed=0)
    optimizer = make_optimizer(Policy(model, None), config)
    logp, _ = token_logprobs(*passage(model), temperature=1.0)
    logp.sum().backward()
    optimizer.step()
    state = [v for one in optimizer.state.values() for v in one.values() if v.numel() > 1]
    parts = learner_memory(config, shape_of(MODEL), step_tokens(config), gpus=1)
    assert parts["weights"] == sum(one.nbytes for one in model.parameters())
    assert parts["gradients"] == sum(one.grad.nbytes for one in trained_parameters(model).values())
    assert parts["optimizer"] == sum(one.nbytes for one in state)


def saved_bytes(model, *, is_low=False):
    """Bytes that a forward pass keeps for the backward pass, without the parameters."""
    own = {one.untyped_storage()._cdata for one in model.parameters()}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage
        return tensor

    _, ids, mask, _ = passage(model)
    with (
        saved_tensors_hooks(pack, lambda one: one),
        torch.autocast("cpu", torch.bfloat16, enabled=is_low),
    ):
        model.base_model(input_ids=ids, attention_mask=mask.long(), use_cache=False)
    return sum(one.nbytes() for one in saved.values())


def of_depth(layers):
    return build_model(replace(MODEL, layers=layers), seed=0)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_layer_keeps_the_activations_of_the_estimate(config, precision):
    config = replace(config, learner=LearnerConfig(precision=precision))
    shape, is_low = shape_of(replace(MODEL, layers=2)), precision == "bfloat16"
    found = saved_bytes(of_depth(3), is_low=is_low) - saved_bytes(of_depth(1), is_low=is_low)
    if is_low:
        found -= 2 * 2 * shape.linear  # the weights in bfloat16 are a part of their own
    assert found == activations(config, shape, tokens=ROWS * LENGTH)


def test_with_checkpointing_a_layer_keeps_its_input():
    kept = {}
    for layers in (1, 3):
        model = of_depth(layers)
        with ready(model, checkpoints=True):
            kept[layers] = saved_bytes(model)
    assert kept[3] - kept[1] == pytest.approx(2 * 4 * MODEL.hidden * ROWS * LENGTH, rel=0.02)


@pytest.mark.parametrize("chunk", [None, 48])
def test_logits_at_the_peak_are_the_copies_of_the_estimate(config, chunk):
    wide = replace(MODEL, layers=1, hidden=16, heads=2, kv_heads=1, vocabulary=20_000)
    model, config = (
        build_model(wide, seed=0),
        replace(config, learner=LearnerConfig(chunk_tokens=chunk)),
    )
    live = Live()
    with live:
        logp, _ = token_logprobs(
            *passage(model), temperature=0.9, chunk_tokens=chunk, entropy_gradient=False
        )
        logp.sum().backward()
    told = logits(config, shape_of(wide), tokens=ROWS * LENGTH // 2)
    assert live.peak == pytest.approx(told, rel=0.25)


def test_keys_and_values_are_counted_exactly(small):
    _, ids, mask, _ = passage(small)
    cache = small(input_ids=ids, attention_mask=mask.long(), use_cache=True).past_key_values
    held = sum(one.keys.nbytes + one.values.nbytes for one in cache.layers)
    assert held == ROWS * LENGTH * kv_bytes(shape_of(MODEL), size=4)


def test_operations_of_a_forward_pass_are_counted_exactly():
    model = build_model(MODEL, seed=0)
    model.set_attn_implementation("eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        token_logits(*passage(model))
    told = forward_flops(shape_of(MODEL), rows=ROWS, length=LENGTH, scored=ROWS * LENGTH // 2)
    assert counter.get_total_flops() == told


@pytest.mark.parametrize("chunk", [None, 30])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_operations_of_an_update_are_those_counted(config, checkpointing, chunk):
    model, shape = build_model(MODEL, seed=0), shape_of(MODEL)
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, ready(model, checkpoints=checkpointing):
        logp, _ = token_logprobs(*passage(model), temperature=1.0, chunk_tokens=chunk)
        logp.sum().backward()
    learner = LearnerConfig(gradient_checkpointing=checkpointing, chunk_tokens=chunk)
    step = replace(step_tokens(config), rows=ROWS, row_length=float(LENGTH), row_sampled=LENGTH / 2)
    told = update_flops(replace(config, learner=learner), shape, step)
    assert counter.get_total_flops() == pytest.approx(told, rel=0.02)


def test_smollm_on_this_machine_has_the_operations_of_the_estimate():
    shape = KNOWN["SmolLM2-135M"]
    told = forward_flops(shape, rows=2, length=16, scored=10)
    model = on_meta(LlamaConfig, shape)
    model.set_attn_implementation("eager")
    ids = torch.zeros((2, 16), dtype=torch.long, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        hidden = model.base_model(input_ids=ids).last_hidden_state
        model.get_output_embeddings()(hidden[:, :5])
    assert counter.get_total_flops() == pytest.approx(told, rel=1e-4)


def test_tokens_of_a_step_by_hand(config):
    config = changed(config, ["credit.method=twice", "credit.budget=2", "rollout.group_size=3"])
    step = step_tokens(config)  # 2 groups of 3, 3 turns of 5 tokens, 256 positions
    assert (step.rows, step.turns, step.most_sampled) == (6, 3, 15)
    assert step.row_sampled == FILL * 15 and step.row_length == FILL * 256
    assert step.auxiliary == 2 * step.sampled == 2 * 6 * FILL * 15
    assert step.fork_tokens == FILL * 15 * (3 + 2 + 1) / 3 / 3
    assert step.forks == pytest.approx(2 * 6 * 3 / 2)


@pytest.mark.parametrize(
    ("settings", "forks"),
    [
        (["credit.method=rloo"], 0),
        (["credit.method=vine", "credit.rollouts=3"], 4 * 3 * 3),
        (["credit.method=twice", "credit.budget=none", "credit.twins=2"], 4 * 3 * 2),
    ],
)
def test_methods_without_forks_and_with_so_many_a_turn_are_known(config, settings, forks):
    assert step_tokens(changed(config, settings)).forks == pytest.approx(forks)


def test_a_method_that_decides_as_it_plays_has_no_number_of_forks(config):
    config = changed(config, ["credit.method=tree_grpo"])
    step, found = step_tokens(config), estimate(config)
    assert step.auxiliary is step.forks is None
    assert step.reason == "tree_grpo decides while it plays how many forks it takes"
    assert found.seconds["forks"] is found.hours is None


def test_fsdp2_shares_what_is_trained_and_ddp_does_not(config):
    shape, step = shape_of(MODEL), step_tokens(config)
    one = learner_memory(config, shape, step, gpus=1)
    for sharding, share in (("ddp", 1), ("fsdp2", 4)):
        own = replace(config, learner=LearnerConfig(sharding=sharding))
        four = learner_memory(own, shape, step, gpus=4)
        for part in ("weights", "gradients", "optimizer"):
            assert four[part] == one[part] / share
        assert ("whole layers" in four) == (sharding == "fsdp2")


def test_weights_go_to_servers_in_float32_and_to_nobody_without(config):
    shape, step = shape_of(MODEL), step_tokens(config)
    for servers, told in ((0, 0.0), (2, 2 * 4 * shape.parameters / SYNC_BYTES)):
        seconds = step_seconds(config, shape, step, gpus=1, servers=servers)
        assert seconds["weights to the servers"] == told


def test_a_reference_is_a_copy_unless_adapters_can_be_taken_off(config):
    config = replace(config, loss=LossConfig(kl_coefficient=0.1))
    shape, step = shape_of(MODEL), step_tokens(config)
    assert learner_memory(config, shape, step, gpus=1)["reference"] == 4 * shape.parameters
    config = replace(config, lora=LoraConfig(rank=2))
    assert "reference" not in learner_memory(config, shape, step, gpus=1)


def test_servers_take_bfloat16_weights_and_the_cache(config):
    config = changed(config, ["engine.name=vllm", "engine.servers=a:1,b:1", "engine.cache_mib=64"])
    shape, step = shape_of(MODEL), step_tokens(config)
    held = serving_memory(config, shape, step, servers=2)
    assert held["weights"] == 2 * shape.parameters and held["keys and values"] == 64 * 2**20
    assert fitting_rows(config, shape, step, servers=2) == 2  # four rows over two servers
    tiny = changed(config, ["engine.cache_mib=0"])
    assert fitting_rows(tiny, shape, step, servers=2) == 1


def test_more_gpus_shorten_what_they_share(config):
    config = changed(config, ["engine.name=vllm", "engine.servers=a:1,b:1", "credit.method=twice"])
    shape, step = shape_of(MODEL), step_tokens(config)
    few = step_seconds(config, shape, step, gpus=1, servers=2)
    many = step_seconds(config, shape, step, gpus=4, servers=2)
    assert many["update"] == pytest.approx(few["update"] / 4)
    assert many["sampling"] == few["sampling"] == few["forks"]


def test_a_limit_of_tokens_ends_the_run(config):
    step = step_tokens(config)
    config = replace(config, length=LengthConfig(steps=100, total_tokens=int(10 * step.sampled)))
    assert num_steps(config, step) == pytest.approx(10, rel=0.01)
    assert run_hours(config, step, {"update": 360.0}) == pytest.approx(1, rel=0.01)


def dry_run(capsys, words):
    with pytest.raises(SystemExit) as ended:
        cli(["train", *words])
    told = capsys.readouterr()
    return ended.value.code, told.out + told.err


def test_a_dry_run_prints_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TWINSTATS_CACHE", str(tmp_path / "cache"))
    code, told = dry_run(capsys, ["demo", "--dry-run", "--set", "credit.method=twice"])
    assert code == 0
    assert "885,888 parameters" in told and "twins and other forks" in told
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_what_does_not_fit_and_what_is_not_known(capsys):
    words = ["qwen2.5-7b", "--dry-run", "--set", "learner.sharding=ddp"]
    told = dry_run(capsys, words)[1]
    assert (
        "DOES NOT FIT; it does with --gpus 4 --set engine.servers=HOST:8000 "
        "--set learner.sharding=fsdp2\n"
    ) in told
    told = dry_run(capsys, ["demo", "--dry-run", "--set", "credit.method=treerl"])[1]
    assert "not known: treerl decides while it plays" in told


@pytest.mark.parametrize(
    "words",
    [
        ["qwen2.5-7b"],
        ["qwen2.5-7b", "--gpus", "4", "--set", "engine.servers=a:1", "--set"]
        + ["engine.cache_mib=200000"],
        ["qwen2.5-7b", "--gpus", "3", "--set", "engine.servers=a:1"]
        + ["--set", "learner.sharding=ddp", "--set", "learner.gradient_checkpointing=false"],
        ["qwen2.5-3b", "--set", "engine.name=hf"],
    ],
)
def test_the_way_out_of_a_dry_run_fits(capsys, words):
    told = dry_run(capsys, [*words, "--dry-run"])[1]
    advice = next(line for line in told.splitlines() if "DOES NOT FIT" in line)
    found = dry_run(capsys, [*words, "--dry-run", *advice.split("it does with ")[1].split()])[1]
    assert ": fits" in found and "DOES NOT FIT" not in found


def test_a_dry_run_says_where_nothing_fits(capsys):
    huge = ["--set", "model.pretrained=", "--set", "model.layers=2000"]
    told = dry_run(capsys, ["qwen2.5-7b", "--dry-run", *huge])[1]
    assert "DOES NOT FIT; nor does it with up to 32 GPUs that learn\n" in told


def test_a_dry_run_refuses_what_cannot_be_run(capsys):
    code, told = dry_run(capsys, ["qwen2.5-3b", "--dry-run", "--gpus", "4"])
    assert code == 2 and "`engine.servers` must be set for 4 processes" in told
    assert "--set engine.servers=HOST:PORT" in told
    twice = ["--set", "engine.servers=a:1,a:1"]
    code, told = dry_run(capsys, ["qwen2.5-3b", "--dry-run", *twice])
    assert code == 2 and "`engine.servers` names http://a:1 twice" in told


def test_without_a_folder_nothing_is_trained(capsys):
    code, told = dry_run(capsys, ["demo"])
    assert code == 2 and "`--out` must name the run folder" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "model.heads=3"], "`model.heads` must be a multiple of"),
        (["--set", "rollout.max_turn_tokens=512"], "`rollout.max_turn_tokens` must be below"),
        (["--set", "optimizer.warmup_steps=500", "--set", "length.steps=10"], "warmup_steps"),
        (["--fallback"], "`--fallback` is for --resume"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(capsys, words, message):
    code, told = dry_run(capsys, ["demo", "--dry-run", *words])
    assert code == 2 and message in told


def test_a_number_of_gpus_is_for_dry_runs_alone(capsys, tmp_path):
    code, told = dry_run(capsys, ["demo", "--gpus", "4", "--out", str(tmp_path / "run")])
    assert code == 2 and "`--gpus` is for --dry-run" in told
    assert not list(tmp_path.iterdir())


def test_the_page_shows_what_dry_runs_print(capsys):
    page = (DOCS / "cluster.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\n\$ twice train (.*?[^\\])\n(.*?)(?:\.\.\.\n)?```", page, flags=re.S)
    assert len(shown) == 2
    for words, text in shown:
        told = dry_run(capsys, words.replace("\\\n", " ").split())[1]
        assert text.strip() and told.startswith(text.rstrip())
