"""Replay: the rows D16 to D20, L13 and Q16 of the case list.

Of D18 ties, and draws near one, are in `test_noise`.
"""

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch

from tests.trainer.conftest import MODEL, Parity, coin, scripted
from trainer.config import (
    CheckpointConfig,
    Config,
    CreditConfig,
    EvaluationConfig,
    LengthConfig,
    OptimizerConfig,
    RolloutConfig,
    TaskConfig,
    WarmupConfig,
)
from trainer.loop import train as module
from trainer.loop.train import train, train_tasks
from trainer.policy import Policy, build_model, build_tokenizer, padded, token_logprobs
from trainer.policy.tokens import action_spans, episode_ids
from trainer.setup import make_rollout
from trainer.tasks import questions
from trainer.tasks.demonstrations import demonstrations, text_of
from trainer.tasks.facts import SPECIAL_TOKENS
from twinstats.episodes import KEEP, Fork, Task
from twinstats.errors import UsageError
from twinstats.noise import generator
from twinstats.records import read
from twinstats.rows import null_disagreements

CONFIG = Config(
    recipe="demo",
    model=MODEL,
    warmup=WarmupConfig(minimum_exact_match=0.0),
    task=TaskConfig(parts=1),
    rollout=RolloutConfig(groups=3, group_size=3, max_turn_tokens=5),
    optimizer=OptimizerConfig(learning_rate=1e-3),
    length=LengthConfig(steps=4),
    evaluation=EvaluationConfig(questions=2),
    checkpoint=CheckpointConfig(every=2),
)


@pytest.fixture(scope="module")
def tokenizer():
    rng = generator(0, "tests/demonstrations")
    texts = [text_of(one.segments) for one in demonstrations(40, num_parts=1, rng=rng)]
    return build_tokenizer(texts, vocabulary=600, special=SPECIAL_TOKENS)


@pytest.fixture
def policy(tokenizer):
    torch.set_num_threads(1)
    return Policy(build_model(MODEL, seed=0), tokenizer)


@pytest.fixture
def parity(monkeypatch):
    monkeypatch.setattr("trainer.setup.make_environment", lambda name: Parity())


def actions(episodes):
    return [[turn.action for turn in episode.turns] for episode in episodes]


def test_d16_an_episode_does_not_depend_on_its_batch(policy):
    task = train_tasks(CONFIG, 1)[0]
    rollout = make_rollout(policy, CONFIG)
    (alone,) = rollout.play([task], 1, 1)
    for mates in (2, 8, 9):
        batch = rollout.play([task], mates, 1)
        assert actions(batch)[0] == actions([alone])[0]
        assert len({str(one) for one in actions(batch)}) == mates  # noise of their own
    narrow = make_rollout(
        policy,
        dataclasses.replace(CONFIG, rollout=dataclasses.replace(CONFIG.rollout, max_batch=2)),
    )
    assert actions(narrow.play([task], 9, 1)) == actions(batch)


def test_d17_a_padded_rows_logprobs_are_those_of_the_row_alone(policy):
    rows = [[5, 9, 30, 7, 2], [8, 2, 3], [4] * 20]
    ids, mask = padded(rows)
    wanted = mask.clone()
    wanted[:, 0] = False
    logp, _ = token_logprobs(policy.model, ids, mask, wanted, temperature=1.0)
    for row, tokens in enumerate(rows):
        one, own = padded([tokens])
        own[:, 0] = False
        alone, _ = token_logprobs(policy.model, one, torch.ones_like(own), own, temperature=1.0)
        torch.testing.assert_close(logp[row, : len(tokens)], alone[0], atol=1e-5, rtol=0)


def test_d18_a_prefix_is_fed_from_stored_ids_and_never_sampled_again(policy, parity):
    rollout = make_rollout(policy, CONFIG)
    episodes = rollout.play(train_tasks(CONFIG, 1), 2, 1)
    forks = [Fork(e, t, KEEP) for e in episodes for t in range(e.num_turns)]
    assert null_disagreements(rollout.fork(forks)) == (len(forks), 0, 0)
    with torch.no_grad():  # other weights would sample another prefix
        policy.model.get_input_embeddings().weight.neg_().mul_(20)
    for fork, twin in zip(forks, rollout.fork(forks), strict=True):
        assert list(twin.turns[: fork.turn]) == list(fork.episode.turns[: fork.turn])
        begin, end = action_spans(fork.episode)[fork.turn]
        assert episode_ids(twin)[:end] == episode_ids(fork.episode)[:end]
    assert not rollout.exact_replay  # and that the tails differ is seen


def test_d19_a_resumed_run_logs_what_the_whole_one_does(tokenizer, parity, tmp_path, monkeypatch):
    asked = []
    plain = module.train_tasks
    monkeypatch.setattr(
        module,
        "train_tasks",
        lambda config, step: (
            asked.append((step, [t.id for t in plain(config, step)])) or plain(config, step)
        ),
    )

    def run(out, **options):
        start = Policy(build_model(MODEL, seed=0), tokenizer)
        own = dataclasses.replace(CONFIG, credit=CreditConfig(method="twice"))
        return train(own, start, tmp_path / out, started=lambda: "now", **options)

    def stop(step, metrics):
        if step == 3:
            raise KeyboardInterrupt

    whole = run("whole")
    of_whole, asked[:] = dict(asked), []
    with pytest.raises(KeyboardInterrupt):
        run("broken", on_step=stop)
    broken = run("broken", resume=True)
    assert [step for step, _ in asked] == [1, 2, 3, 3, 4]
    assert dict(asked) == of_whole
    is_time = pl.col("name").str.contains("^(time|memory)/")
    metrics = [
        read(one, "metrics").filter(~is_time).drop("run").collect() for one in (whole, broken)
    ]
    assert metrics[0].equals(metrics[1]) and metrics[0]["step"].n_unique() == 5
    assert read(whole, "pairs").collect().height > 0
    for table in (*("episodes", "turns", "pairs", "allocations"), "credit", "texts", "evaluations"):
        for step in (0, 3, 4):
            part = f"{table}/step-{step:08d}.parquet"
            assert (whole / part).exists() == (broken / part).exists()
            if (whole / part).exists():
                assert (whole / part).read_bytes() == (broken / part).read_bytes(), part


def test_d20_other_data_are_refused(policy, parity, tmp_path, monkeypatch):
    out = tmp_path / "run"
    own = dataclasses.replace(CONFIG, length=LengthConfig(steps=1))
    train(own, policy, out, started=lambda: "now")
    before = read(out, "metrics").collect()
    plain = questions.split_questions
    monkeypatch.setattr(questions, "split_questions", lambda split: plain(split)[1:])
    with pytest.raises(UsageError, match="other questions or documents"):
        train(own, policy, out, started=lambda: "now", resume=True)
    assert read(out, "metrics").collect().equals(before)


def test_l13_a_replayed_prefix_is_not_sampled_and_turns_are_counted_by_tokens():
    said = {0: "abc", 1: "defg"}
    rollout, _, _ = scripted(lambda session, key, index: said[index])
    (episode,) = rollout.play([Task("t", {"right": "", "turns": 2})], 1, 0)
    assert episode.sampled == sum(episode.column("num_tokens")) == 7
    (twin,) = rollout.fork([Fork(episode, 1, skip_equal=False)])
    assert twin.sampled == len("abc") and twin.num_turns == 2
    assert sum(twin.column("num_tokens")) == 6  # the prefix is in the episode, not in its cost
    (null,) = rollout.fork([Fork(episode, 0, KEEP)])
    assert null.sampled == len("abc")


def test_l13_the_cost_of_forks_is_what_the_engine_drew():
    rollout, engine, _ = scripted(coin)
    tasks = [Task(str(n), {"right": "a.", "turns": 4}) for n in range(5)]
    episodes = rollout.play(tasks, 2, 0)
    drawn = []
    plain = engine._choose
    engine._choose = lambda *given: drawn.append(plain(*given)) or drawn[-1]
    twins = rollout.fork([Fork(e, t) for e in episodes for t in range(4)])
    assert sum(twin.sampled for twin in twins) == sum(map(len, drawn))
    assert np.sum([twin.sampled for twin in twins]) < sum(e.sampled for e in episodes) * 4


def test_q16_a_twin_whose_prefix_replays_otherwise_is_named_and_not_scored():
    drifted = []
    rollout, _, _ = scripted(
        coin, drift=lambda index, text: text + "!" if index in drifted else text
    )
    (factual,) = rollout.play([Task("t", {"right": "a.", "turns": 3})], 1, 0)
    drifted.append(1)
    twins = rollout.fork([Fork(factual, 0, KEEP), Fork(factual, 2)])
    assert twins[0].outcome is not None
    assert (twins[1].outcome, twins[1].info["reason"]) == (None, "replay differs before turn 1")
