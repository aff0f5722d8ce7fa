"""The engine `vllm` in this process, against the reference engine: rollouts, twins, weights."""

import threading
import time

import pytest
import torch

from tests.vllm import agents
from tests.vllm.lab import IS_V2
from trainer.engines import vllm as module
from trainer.engines.choice import make_engine
from trainer.engines.parity import Parity
from trainer.engines.requests import Ending
from trainer.engines.vllm import VllmEngine, make_llm
from trainer.noise.logged import LoggedNoise
from twinstats.errors import UsageError
from twinstats.noise import LogitsError, NoiseKey

pytestmark = pytest.mark.vllm

LENGTH = agents.MODEL.max_length


class Line:
    """A session of some turns, each followed by two tokens."""

    def __init__(self, row, *, prompt=(100, 200, 300), think=lambda line: None):
        self.row, self.prompt, self.think = row, [*prompt, row], think
        self.turns, self.reason, self.noise = [], None, None

    def start(self):
        return list(self.prompt)

    def key(self):
        return self.noise or NoiseKey(7, 1, self.row, len(self.turns))

    def advance(self, turn):
        self.turns.append(turn)
        self.think(self)
        return None if len(self.turns) == 3 else [70, 80]

    def fail(self, reason):
        self.reason = reason

    @property
    def tokens(self):
        return [turn.tokens for turn in self.turns]


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    return agents.make_policy()


@pytest.fixture(scope="module")
def llm(policy):
    return make_llm(policy, max_length=LENGTH, max_batch=12, cache_mib=16, block_size=32)


@pytest.fixture
def engine(policy, llm):
    """In sync with the policy of now."""
    stop = policy.tokens_with(["</search>", "</answer>"])
    return VllmEngine(
        policy,
        llm,
        ending=Ending(stop=stop, max_tokens=12),
        parity=Parity(policy, longest=LENGTH, tolerance=agents.PARITY),
        timeout_seconds=60,
    )


@pytest.fixture
def restored(policy):
    """The policy's weights come back after a test."""
    before = {name: one.clone() for name, one in policy.model.state_dict().items()}
    yield policy
    policy.model.load_state_dict(before)


def test_rollouts_and_twins_are_those_of_the_reference_engine(policy, engine):
    found, wanted = agents.rollout_of(policy, engine=engine), agents.rollout_of(policy)
    agents.assert_rollouts_agree(found, wanted)


@pytest.mark.skipif(IS_V2, reason="the cache is the scheduler's, whatever the runner")
def test_forks_reuse_the_cache_of_their_factuals(policy, engine):
    rollout = agents.rollout_of(policy, engine=engine)
    episodes = agents.play(rollout)
    engine.counts.take()
    agents.fork(rollout, episodes)
    counts = engine.counts.take()
    assert counts.reused > 500 and counts.passes > 0
    assert 0 < counts.reencoded < counts.encoded
    tokens = counts.sampled + counts.reused
    assert counts.sampled > 500 and counts.encoded < 10 * tokens


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_evaluations_are_those_of_the_reference_engine(policy, engine, temperature):
    tasks = agents.train_tasks(agents.CONFIG, 3)
    found, wanted = (
        agents.rollout_of(policy, engine=one).evaluate(tasks, 0, temperature=temperature)
        for one in (engine, None)
    )
    assert agents.told(found) == agents.told(wanted)
    logprobs = [turn.logprob for one in found for turn in one.turns]
    assert all((value is None) == (temperature == 0.7) for value in logprobs)


def test_after_a_sync_it_samples_what_hf_samples_with_the_new_weights(restored, engine):
    found, wanted = agents.rollout_of(restored, engine=engine), agents.rollout_of(restored)
    before = agents.told(agents.play(found))
    agents.shift(restored, 1.1)
    assert agents.told(agents.play(found)) == before  # it has a copy
    engine.sync()
    after = agents.told(agents.play(found))
    assert after == agents.told(agents.play(wanted)) != before


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (1.1, r"vLLM is \d.*nats a token from the learner's log-probabilities.*allows 0.001"),
        (1.0001, "The sync did not change vLLM: it answers as before"),
    ],
)
def test_a_sync_that_does_nothing_is_found_out(monkeypatch, restored, engine, scale, message):
    monkeypatch.setattr(engine._llm, "collective_rpc", lambda *arguments, **settings: [None])
    agents.shift(restored, scale)
    with pytest.raises(RuntimeError, match=message):
        engine.sync()


def test_a_prefix_cache_of_other_weights_is_found_out(monkeypatch, restored, engine):
    engine.sync()  # the probes' prompts are in the cache now
    monkeypatch.setattr(engine._llm, "reset_prefix_cache", lambda: True)
    agents.shift(restored, 1.05)
    with pytest.raises(RuntimeError, match="nats a token from the learner's"):
        engine.sync()
    monkeypatch.setattr(engine._llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(RuntimeError, match="did not empty its prefix cache"):
        engine.sync()


def test_an_environment_that_takes_long_holds_up_nobody(engine):
    others_done = threading.Barrier(6, timeout=60)

    def think(line):
        if len(line.turns) == (1 if line.row == 0 else 3):
            others_done.wait()  # row 0 answers once all others have played to their ends

    lines = [Line(row, think=think) for row in range(6)]
    engine.run(lines, temperature=1.0)
    plain = [Line(row) for row in range(6)]
    engine.run(plain, temperature=1.0)
    assert [one.tokens for one in lines] == [one.tokens for one in plain]


def test_a_turn_without_room_ends_its_session_alone(engine):
    lines = [Line(0), Line(1, prompt=[100] * (LENGTH - 12)), Line(2)]
    engine.run(lines, temperature=1.0)
    assert [len(one.turns) for one in lines] == [3, 0, 3]
    assert f"may need {LENGTH + 1} tokens, and the context has {LENGTH}" in lines[1].reason


def test_noise_that_is_more_than_a_key_is_refused_before_anything_is_sent(engine):
    assert not engine.explains
    lines = [Line(row) for row in range(3)]
    logits = torch.zeros(1, 600).numpy()
    lines[2].noise = LoggedNoise(
        key=NoiseKey(7, 1, 2, 0), tokens=(1,), logits=logits, temperature=1.0
    )
    with pytest.raises(UsageError, match=r"a LoggedNoise of NoiseKey.*`engine.name=hf`"):
        engine.run(lines, temperature=1.0)
    assert all(not one.turns for one in lines)
    assert not engine._llm.has_unfinished_requests()


def test_an_error_in_a_session_leaves_the_engine_fit_for_use(engine):
    def think(line):
        if line.row == 1:
            raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        engine.run([Line(row, think=think) for row in range(4)], temperature=1.0)
    lines = [Line(0)]
    engine.run(lines, temperature=1.0)
    assert len(lines[0].turns) == 3


def test_an_engine_that_finishes_nothing_is_not_waited_for(monkeypatch, engine):
    monkeypatch.setattr(engine, "_timeout_seconds", 0.2)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no turn in 0.2 sec"):
        patch.setattr(engine._llm, "step", lambda: [])
        engine.run([Line(0)], temperature=1.0)


def test_batch_invariance_after_vllm_was_imported_is_refused(monkeypatch, policy):
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    with pytest.raises(UsageError, match="comes too late.*set VLLM_BATCH_INVARIANT=1"):
        make_llm(policy, max_length=LENGTH, max_batch=4, cache_mib=16, batch_invariant=True)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    module._prepare(True)


# Last, for it leaves an engine that is broken


def test_the_configured_engine_stops_at_once_after_an_error_inside_it(restored):
    settings = ["engine.name=vllm", "engine.cache_mib=16", f"engine.parity_nats={agents.PARITY}"]
    config = agents.changed(agents.CONFIG, settings)
    stop = restored.tokens_with(["</search>", "</answer>"])
    engine = make_engine(restored, config, stop=stop)
    lines = [Line(row) for row in range(3)]
    engine.run(lines, temperature=1.0)
    assert all(len(one.turns) == 3 for one in lines)
    with torch.no_grad():
        next(restored.model.parameters()).fill_(torch.nan)
    with pytest.raises(LogitsError, match=r"must not be NaN.*purpose='parity'"):
        engine.sync()
    begun = time.monotonic()
    for call in (engine.sync, lambda: engine.run([Line(0)], temperature=1.0)):
        with pytest.raises(RuntimeError, match="failed in an earlier call: make the engine anew"):
            call()
    assert time.monotonic() - begun < 5
