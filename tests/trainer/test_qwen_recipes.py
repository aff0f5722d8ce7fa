"""The Qwen recipes on a tiny random model with Qwen's special tokens: two steps of each."""

import json

import polars as pl
import pytest

from tests.trainer import tiny_qwen
from tests.trainer.test_search_qa import hits, retrieve_server
from trainer.commands.shared import warmed
from trainer.commands.train import run_training
from trainer.config import changed
from trainer.loop.train import train_tasks
from trainer.recipes import RECIPES, recipe
from trainer.setup import check, make_rollout
from twinstats.episodes import KEEP, Fork
from twinstats.errors import UsageError
from twinstats.records import read
from twinstats.rows import is_same_play

SMALL = [
    "engine.name=hf",
    f"model.vocabulary={tiny_qwen.VOCABULARY}",
    "model.max_length=1100",
    "rollout.groups=2",
    "rollout.group_size=4",
    "rollout.max_turn_tokens=8",
    "loss.minibatches=2",
    "loss.micro_rows=4",
    "learner.sharding=ddp",
    "length.steps=2",
    "optimizer.warmup_steps=1",
    "optimizer.learning_rate=1e-3",
    "evaluation.questions=2",
    "evaluation.every=0",
    "log.tensorboard=false",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model as a Hugging Face folder; its tokenizer has fewer tokens than it has rows."""
    place = tmp_path_factory.mktemp("tiny-qwen")
    tiny_qwen.policy().save(place)
    return place


@pytest.fixture
def small(folder, tmp_path):
    """A recipe made small: small(name, settings) -> its configuration."""
    data = tiny_qwen.write_data(tmp_path)

    def small(name, *settings):
        own = [*SMALL, *data, f"model.pretrained={folder}", *settings]
        return changed(recipe(name), own)

    return small


def values(run, name):
    frame = read(run, "metrics").filter(pl.col("name") == name).sort("step").collect()
    return frame["value"].to_list()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("qwen2.5-3b", ()),
        ("qwen2.5-7b", ("task.format=hermes", "credit.method=grpo")),
    ],
)
def test_a_recipe_trains_for_two_steps(small, tmp_path, name, settings):
    config = small(name, "reward=tests.trainer.test_qwen_recipes:evenness", *settings)
    run = run_training(config, tmp_path / "run")
    assert values(run, "rollout/drift_count") == [0.0, 0.0]
    assert all(norm > 0 for norm in values(run, "loss/gradient_norm"))
    assert values(run, "train/failed_count") in ([], [0.0, 0.0])
    turns = read(run, "turns").collect()
    assert turns.height > 8 and turns["slot"].max() >= 1


def test_chats_in_json_lines_and_parquet_are_trained_and_succeed_at_nothing(small, tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": f"Is {number} even?"}], "level": number}
        for number in range(4)
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "test.parquet")
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = [f"task.data={tmp_path / 'chats.jsonl'}", f"task.test_data={tmp_path / 'test.parquet'}"]
    own = ["task.name=chat", "reward=tests.trainer.test_qwen_recipes:evenness", "task.corpus="]
    run = run_training(small("qwen2.5-3b", *data, *own, "credit.method=rloo"), tmp_path / "run")
    assert all(norm > 0 for norm in values(run, "loss/gradient_norm"))
    episodes = read(run, "episodes").collect()
    assert episodes["outcome"].n_unique() == 2 and episodes["success"].null_count() == 16
    assert values(run, "train/success_share") == [None, None]
    scores = read(run, "scores").filter(pl.col("value").is_not_null()).collect()
    assert set(scores["metric"]) == {"outcome"}


def evenness(prompts, completions, **columns):
    """Half of all gibberish is even, so that there is something to learn from."""
    said = "".join(one["content"] for one in completions[0] if one["role"] == "assistant")
    return [float(sum(said.encode()) % 2)]


def test_a_recipe_plays_with_a_retrieve_server_and_its_twins_are_exact(small):
    with retrieve_server(hits) as (address, asked):
        own = ["task.corpus=", f"task.retriever={address}", "rollout.max_turn_tokens=40"]
        config = small("qwen2.5-3b", *own)
        check(config)
        policy = warmed(config)
        rollout = make_rollout(policy, config)
        episodes = rollout.play(train_tasks(config, 1), 2, 1)
        asking = [*policy.encode("<search>Chad</search>")]
        factuals = rollout.fork([Fork(one, 0, asking) for one in episodes])
        assert len(asked) == 1  # the query is one, and what was found is kept
        nulls = rollout.fork([Fork(one, 0, KEEP) for one in episodes])
    assert all(one.outcome is not None for one in (*episodes, *factuals, *nulls))
    shown = policy.decode(factuals[0].turns[1].info["shown"])
    assert shown.startswith("\n\n<information>Doc 1(Title: T) Chad 0\n")
    assert all(is_same_play(twin) for twin in nulls)


def test_what_was_sampled_beyond_the_tokenizer_reads_as_nothing_and_is_kept(small):
    config = small("qwen2.5-3b")
    policy = warmed(config)
    above = len(policy.tokenizer)
    assert above < policy.model.config.vocab_size == tiny_qwen.VOCABULARY
    assert policy.decode([above, above + 1]) == ""
    chad = policy.encode("Chad")
    assert policy.decode([*chad, above]) == "Chad"
    assert max(policy.tokens_with(["<|im_end|>"])) < above
    episodes = make_rollout(policy, config).play(train_tasks(config, 1), 8, 1)
    sampled = [token for one in episodes for turn in one.turns for token in turn.action]
    assert max(sampled) >= above  # a random model samples them; they stay as they are


def test_the_first_text_is_the_template_with_the_rows_messages(small):
    config = small("qwen2.5-3b")
    policy = warmed(config)
    (task, *_) = train_tasks(config, 1)
    (episode,) = make_rollout(policy, config).play([task], 1, 1)
    messages = [dict(one) for one in task.info["prompt"]]
    rendered = policy.tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert list(episode.turns[0].info["shown"]) == list(rendered)


def test_the_settings_are_search_r1s(small):
    for name in ("qwen2.5-3b", "qwen2.5-7b"):
        own = RECIPES[name]()
        episodes = own.rollout.groups * own.rollout.group_size
        assert episodes / own.loss.minibatches == 256 and own.rollout.groups == 512
        assert own.optimizer.warmup_steps == int(0.285 * own.length.steps)
        assert own.model.max_length - own.rollout.max_turn_tokens == 4096


def test_without_data_a_recipe_says_where_they_come_from(small):
    with pytest.raises(UsageError, match="`task.data` is empty: .*PeterJinGo/nq_hotpotqa_train"):
        check(changed(recipe("qwen2.5-3b"), ["engine.name=hf"]))
    with pytest.raises(UsageError, match="gone.parquet does not"):
        check(small("qwen2.5-3b", "task.data=gone.parquet"))
