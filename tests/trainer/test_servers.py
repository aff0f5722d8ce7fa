"""vLLM servers that die, hang and babble; without vLLM: what speaks here is `fake_vllm`."""

import threading
import warnings

import pytest
import torch

from tests.trainer.conftest import MODEL
from tests.trainer.fake_vllm import BYTES, MAX_LENGTH, NONSENSE, FakeServer
from trainer.config import changed
from trainer.engines import choice, client, servers
from trainer.engines.choice import check_engine, make_engine
from trainer.engines.hf import HfEngine
from trainer.engines.parity import Parity
from trainer.engines.requests import Ending, TurnRequest
from trainer.engines.servers import ServerEngine, addresses_in
from trainer.noise.logged import LoggedNoise
from trainer.policy import build_model
from trainer.processors.request import KeyedRequest
from twinstats.errors import UsageError
from twinstats.noise import NoiseKey

STOP = frozenset(range(60))  # one token in ten ends a turn
ENDING = Ending(stop=STOP, max_tokens=6)
NUM_TALKS, NUM_TURNS = 6, 2
ALL_TURNS = NUM_TALKS * NUM_TURNS


class Talk:
    """A session of some turns, each followed by two tokens."""

    def __init__(self, row, *, turns=NUM_TURNS, prompt=(100, 200, 300), think=lambda talk: None):
        self.row, self.num_turns, self.prompt, self.think = row, turns, [*prompt, row], think
        self.turns, self.reason, self.noise = [], None, None

    def start(self):
        return list(self.prompt)

    def key(self):
        return self.noise or NoiseKey(7, 1, self.row, len(self.turns))

    def draft(self):
        return ()

    def advance(self, turn):
        self.turns.append(turn)
        self.think(self)
        return None if len(self.turns) == self.num_turns else [70, 80]

    def fail(self, reason):
        assert self.reason is None
        self.reason = reason

    @property
    def tokens(self):
        return [turn.tokens for turn in self.turns]


def talks(count=NUM_TALKS, **options):
    return [Talk(row, **options) for row in range(count)]


@pytest.fixture
def start(policy):
    """Starts fake servers of the policy; they end with the test."""
    started = []

    def make(*faults, **options):
        for fault in faults or (None,):
            how = fault if callable(fault) else lambda number, fault=fault: fault
            started.append(FakeServer(policy.model, fault=how, **options))
        return started[-max(len(faults), 1) :]

    yield make
    for server in started:
        server.close()


@pytest.fixture
def connect(policy):
    """An engine over servers."""

    def make(fakes, *, seconds=20.0, tolerance=1e-3, **options):
        options = {"max_length": MAX_LENGTH, "max_requests": 8, **options}
        return ServerEngine(
            policy,
            [fake.address for fake in fakes],
            ending=ENDING,
            parity=Parity(policy, longest=MAX_LENGTH, tolerance=tolerance),
            timeout_seconds=seconds,
            **options,
        )

    return make


def by_hf(model, temperature=1.0):
    """The talks of the reference engine."""
    sessions = talks()
    engine = HfEngine(model, stop=STOP, max_turn_tokens=ENDING.max_tokens)
    engine.run(sessions, temperature=temperature)
    return sessions


@pytest.fixture(scope="module")
def wanted():
    """What the reference engine samples with the weights that the policy has at first."""
    return by_hf(build_model(MODEL, seed=0))


def played(engine, sessions=None, temperature=1.0):
    """The sessions, played; a server that is newly left out warns, which is expected here."""
    sessions = talks() if sessions is None else sessions
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        engine.run(sessions, temperature=temperature)
    return sessions


def assert_same(found, wanted):
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    assert all(one.reason is None for one in found)


def shift(policy, scale=1.05):
    """Another policy in the place of the old one."""
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(scale)


# The same turns, whoever samples them


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_turns_are_those_of_the_reference_engine(start, connect, policy, count, temperature):
    wanted = by_hf(policy.model, temperature)
    found = played(connect(start(*[None] * count)), temperature=temperature)
    assert_same(found, wanted)
    for one, other in zip(found, wanted, strict=True):
        for turn, own in zip(one.turns, other.turns, strict=True):
            assert turn.is_stopped == own.is_stopped and turn.entropy is None
            if temperature == 0.6:
                assert turn.logprobs is None
            else:
                assert turn.logprobs == pytest.approx(own.logprobs, abs=1e-4)
    assert sum(len(turn) for one in found for turn in one.tokens) > 40
    assert any(len(turn) < 6 for one in found for turn in one.tokens)


@pytest.mark.parametrize(
    "fault",
    ["no JSON", "an id outside the vocabulary", "another request", "dies", "hangs", "drips", 500],
)
def test_a_server_that_goes_wrong_is_left_out_and_nothing_changes(start, connect, wanted, fault):
    bad, good = start(fault, None)
    engine = connect([bad, good], seconds=1.5 if fault in ("hangs", "drips") else 20.0)
    sessions = talks()
    with pytest.warns(RuntimeWarning, match=f"{bad.address} is left out: it "):
        engine.run(sessions, temperature=1.0)
    assert_same(sessions, wanted)
    assert engine._servers[0].failures == 1  # however many requests it had
    before = len(bad.asked)
    assert 0 < before <= NUM_TALKS
    assert_same(played(engine), wanted)
    assert len(bad.asked) == before and len(good.asked) == 2 * ALL_TURNS


FAULTS = {
    "no object": "something else than a completion",
    "no fields": "something else than a completion",
    "two choices": "something else than a completion",
    "no token ids": "something else than a completion",
    "no tokens": "no whole turn of at most 6 tokens",
    "an id outside the vocabulary": "an id outside the vocabulary of 600",
    "a negative id": "an id outside the vocabulary of 600",
    "a fraction as an id": "an id outside the vocabulary of 600",
    "true as an id": "an id outside the vocabulary of 600",
    "more tokens than asked": "no whole turn of at most 6 tokens",
    "a turn that is cut": "no whole turn of at most 6 tokens",
    "tokens past a stop": "no whole turn of at most 6 tokens",
    "another request": "another request",
    "another prompt": "another request",
    "too few log-probabilities": "not one log-probability a token",
    "NaN": "not one log-probability a token",
    "a positive log-probability": "not one log-probability a token",
    "null log-probabilities": "not one log-probability a token",
    "more cached than asked": "more cached tokens than the prompt has",
    "no JSON": r"status 200 and no JSON: b'<html>hello",
    "no text": "status 200 and no JSON",
    "nothing": "status 200 and no JSON",
    "a nest": "status 200 and no JSON",
    "dies": "RemoteProtocolError",
    "hangs": r"did not answer in 0.5 seconds \(ReadTimeout\)",
    "drips": "did not finish its answer in 0.5 seconds",
    "floods": "answers more than 262144 bytes",
    404: "answers status 404",
    307: "answers status 307",
    500: "answers status 500",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_way_to_go_wrong_is_told_apart(monkeypatch, start, fault):
    monkeypatch.setattr(client, "_MAX_BYTES", 2**18)
    (fake,) = start(fault)
    seconds = 0.5 if fault in ("hangs", "drips") else 20.0
    one = client.Client(fake.address, vocabulary=600, timeout_seconds=seconds)
    keyed = KeyedRequest(key=NoiseKey(1, 2, 3, 0))
    request = TurnRequest(prompt=(100, 200), keyed=keyed, ending=ENDING)
    with pytest.raises(client.ServerError, match=FAULTS[fault]) as caught:
        one.sample(request)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


def test_every_fault_is_tried():
    assert {*NONSENSE, *BYTES} < {*FAULTS}


@pytest.mark.parametrize("dying", [0, 1, 2])
@pytest.mark.parametrize("number", [0, 2])
def test_it_does_not_matter_which_server_dies_when(start, connect, wanted, dying, number):
    faults = [None, None, None]
    faults[dying] = lambda count: "dies" if count == number else None
    fakes = start(*faults)
    assert_same(played(connect(fakes)), wanted)
    assert fakes[dying].is_dead


def test_requests_go_to_the_least_busy_server(start, connect):
    slow, fast = start(None, None)
    engine = connect([slow, fast])
    slow.delay = 0.5
    played(engine, talks(turns=4))
    assert len(slow.asked) + len(fast.asked) == 4 * NUM_TALKS
    assert 3 <= len(slow.asked) < len(fast.asked)


def test_an_environment_that_takes_long_holds_up_nobody(start, connect, wanted):
    others_done = threading.Barrier(NUM_TALKS, timeout=20)

    def think(talk):
        if len(talk.turns) == (1 if talk.row == 0 else NUM_TURNS):
            others_done.wait()  # row 0 answers once all others have played to their ends

    found = played(connect(start(), max_requests=8), talks(think=think))
    assert_same(found, wanted)


def test_more_sessions_than_requests_are_played_in_turn(start, connect, wanted):
    assert_same(played(connect(start(), max_requests=2)), wanted)


def test_no_proxy_stands_between_learner_and_server(monkeypatch, start, connect, wanted):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert_same(played(connect(start())), wanted)


# Servers that come back


def test_when_all_are_dead_one_sentence_names_each_and_what_finished_stays(start, connect):
    def killed(talk):
        if talk.row == 0 and len(talk.turns) == NUM_TURNS:
            for fake in fakes:
                fake.kill()

    fakes = start(None, None)
    engine = connect(fakes, max_requests=1)  # one session after the other
    sessions = talks(4, think=killed)
    with pytest.raises(RuntimeError, match="^No vLLM server works: ") as caught:
        played(engine, sessions)
    for fake in fakes:
        assert f"{fake.address} cannot be reached (ConnectError: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(sessions[0].turns) == NUM_TURNS and sessions[0].reason is None
    assert all(one.reason == str(caught.value) and not one.turns for one in sessions[1:])


def test_the_last_server_is_tried_once_more(start, connect, wanted):
    (fake,) = start(lambda number: 500 if number == 3 else None)
    engine = connect([fake])
    loads = fake.paths.count("/collective_rpc")
    assert_same(played(engine), wanted)
    assert fake.paths.count("/collective_rpc") == loads + 1  # it might have been started anew


def test_a_server_that_comes_back_takes_up_the_weights_of_now(monkeypatch, start, connect, policy):
    monkeypatch.setattr(servers, "_PAUSE_SECONDS", 0.0)
    back, steady = start(lambda number: "dies" if number == 0 else None, None)
    old = policy.model
    engine = connect([back, steady])
    shift(policy)
    engine.sync()
    assert_same(played(engine), by_hf(policy.model))
    back.revive(old)
    with torch.no_grad():
        back.model.get_input_embeddings().weight.zero_()  # started with other weights
    asked = len(back.asked)
    assert_same(played(engine), by_hf(policy.model))
    assert len(back.asked) > asked


def test_a_server_that_failed_rests_before_it_is_tried_again(start, connect, wanted):
    back, steady = start(lambda number: "dies" if number == 0 else None, None)
    engine = connect([back, steady])
    played(engine)
    back.revive(back.model)
    asked = len(back.asked)
    assert_same(played(engine), wanted)
    assert len(back.asked) == asked
    engine.sync()
    assert_same(played(engine), wanted)
    assert len(back.asked) == asked
    engine._servers[0].retry_at = 0.0
    assert_same(played(engine), wanted)
    assert len(back.asked) > asked


def test_the_pause_doubles_while_a_server_goes_on_failing(monkeypatch):
    monkeypatch.setattr(servers.time, "monotonic", lambda: 1000.0)
    server = servers._Server(client=None)
    pauses = []
    for _ in range(2000):
        server.fail(client.ServerError("hangs"))
        pauses.append(server.retry_at - 1000)
    assert pauses == [60, 120, 240, 480, 960] + [1920] * 1995


def test_a_turn_that_no_server_survives_ends_its_session_alone(start, connect, wanted):
    def poison(fake):
        return lambda number: 500 if fake().asked[number].row == 4 else None

    fakes = start(None, None)
    for fake in fakes:
        fake.fault = poison(lambda fake=fake: fake)
    found = played(connect(fakes))
    assert "no server sampled the turn in 4 attempts" in found[4].reason
    assert "answers status 500" in found[4].reason and found[4].turns == []
    assert_same(found[:4] + found[5:], wanted[:4] + wanted[5:])


def test_a_turn_that_cannot_be_sampled_ends_its_session_and_leaves_the_server_in(start, connect):
    (fake,) = start()
    engine = connect([fake])
    sessions = [Talk(0), Talk(1, prompt=[700]), Talk(2), Talk(3, prompt=[100] * 194)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.run(sessions, temperature=1.0)
    assert sessions[1].reason == f"{fake.address} refuses the turn: Token id is out of vocabulary"
    assert sessions[3].reason == "the turn may need 201 tokens, and the context has 200"
    assert [len(one.turns) for one in sessions] == [2, 0, 2, 0]


# Weights


def test_after_a_sync_the_servers_sample_what_hf_samples_with_the_new_weights(
    start, connect, policy
):
    engine = connect(start(None, None))
    before = by_hf(policy.model)
    shift(policy)
    engine.sync()
    after = by_hf(policy.model)
    assert [one.tokens for one in before] != [one.tokens for one in after]
    assert_same(played(engine), after)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (1.05, r"is 0\.\d+ nats a token from the learner's.*`engine.parity_nats` allows 0.001"),
        (1.0001, "The sync did not change .*: it answers as before, now .* nats"),
    ],
)
def test_a_sync_that_does_nothing_is_found_out(start, connect, policy, scale, message):
    lazy, honest = start(None, None)
    engine = connect([honest, lazy])
    lazy.loads_weights = False
    shift(policy, scale)
    with pytest.raises(RuntimeError, match=message) as caught:
        engine.sync()
    assert lazy.address in str(caught.value)


def test_the_weights_of_now_are_all_that_lies_around(monkeypatch, tmp_path, start, connect):
    monkeypatch.setattr(servers.tempfile, "tempdir", str(tmp_path))
    engine = connect(start())
    engine.sync()
    assert [path.name for path in tmp_path.rglob("*.*")] == ["model.safetensors"]
    del engine
    assert list(tmp_path.iterdir()) == []


def test_a_sync_of_unchanged_weights_is_fine(start, connect, wanted):
    engine = connect(start())
    engine.sync()
    assert_same(played(engine), wanted)


def test_a_server_without_our_noise_is_found_out(start, connect):
    (fake,) = start()
    fake.draws = lambda logits, request, done: int(logits.argmax())
    with pytest.raises(RuntimeError, match="does not draw with keyed noise: its tokens are"):
        connect([fake])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 300}, "has a context of 200 tokens, and the run needs 300"),
        ({"batch_invariant": True}, "was started without VLLM_BATCH_INVARIANT=1"),
    ],
)
def test_a_server_that_was_started_otherwise_does_not_serve(start, connect, options, message):
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match=message):
        connect(start(), **options)


def test_a_server_that_is_batch_invariant_serves(start, connect, wanted):
    (fake,) = start()
    fake.is_invariant = True
    assert_same(played(connect([fake], batch_invariant=True)), wanted)


def test_a_server_without_developer_endpoints_does_not_serve(monkeypatch, start, connect):
    (fake,) = start()
    answer = fake.answer
    monkeypatch.setattr(
        fake,
        "answer",
        lambda method, path, body: (
            (404, {"detail": "Not Found"}) if "rpc" in path else answer(method, path, body)
        ),
    )
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="answers status 404"):
        connect([fake])


# What is asked, and what it costs


def test_noise_that_is_more_than_a_key_is_refused_before_anything_is_sent(start, connect):
    (fake,) = start()
    engine = connect([fake])
    assert not engine.explains
    sessions = talks()
    sessions[-1].noise = LoggedNoise(
        key=NoiseKey(7, 1, 5, 0), tokens=(1,), logits=torch.zeros(1, 600).numpy(), temperature=1.0
    )
    with pytest.raises(UsageError, match=r"a LoggedNoise of NoiseKey.*row=5.*`engine.name=hf`"):
        engine.run(sessions, temperature=1.0)
    assert fake.asked == [] and all(not one.turns for one in sessions)


def test_tokens_are_counted(start, connect):
    (fake,) = start()
    engine = connect([fake])
    fake.cached = 2
    sessions = played(engine, talks(2))
    counts = engine.counts.take()
    turns = [turn for one in sessions for turn in one.tokens]
    sizes = [[len(turn) for turn in one.tokens] for one in sessions]
    prompts = sum(4 + 4 + first + 2 for first, _ in sizes)
    known = sum(4 + first - 1 - 2 for first, _ in sizes)
    assert counts.sampled == sum(map(len, turns))
    assert counts.encoded == prompts - 2 * 4 + counts.sampled - 4
    assert (counts.reencoded, counts.reused) == (known, 2 * 2)
    assert engine.counts.take().sampled == 0


# The configuration


def test_addresses_are_read_from_a_list():
    assert addresses_in(" 127.0.0.1:8001, https://host:8002/ ,") == [
        "http://127.0.0.1:8001",
        "https://host:8002",
    ]
    assert addresses_in("HTTP://Host:80,http://[::1]:8001") == ["http://host", "http://[::1]:8001"]
    assert addresses_in("") == []


@pytest.mark.parametrize("text", ["http://me:secret@host:1", "me:secret@host:one", "secret@host"])
def test_a_password_in_an_address_is_refused_and_not_repeated(text):
    with pytest.raises(UsageError, match="without user or password") as caught:
        addresses_in(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://host:1", "takes http://HOST:PORT, got 'ftp://host:1'"),
        ("host:1/v1", "takes http://HOST:PORT, got 'host:1/v1'"),
        ("http://", "takes http://HOST:PORT"),
        ("host:one", "no address in 'host:one'"),
        ("host:1,http://host:1", "names http://host:1 twice"),
        ("host:1,HTTP://HOST:1/", "names http://host:1 twice"),
        ("http://host:80,http://host", "names http://host twice"),
        ("http://host?x=1", "takes http://HOST:PORT, got"),
        ("http://host#x", "takes http://HOST:PORT, got"),
        ("http://%00", "takes http://HOST:PORT, got"),
        ("http://a b", "takes http://HOST:PORT, got"),
        ("host:65536", "takes http://HOST:PORT, got"),
        ("host:0", "takes http://HOST:PORT, got"),
    ],
)
def test_what_is_no_address_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        addresses_in(text)


def test_the_engine_is_the_one_that_the_configuration_names(start, policy, config, wanted):
    assert isinstance(make_engine(policy, config, stop=STOP), HfEngine)
    fakes = start(None, None)
    settings = ["rollout.max_turn_tokens=6", f"model.max_length={MAX_LENGTH}"]
    servers = ",".join(fake.address for fake in fakes)
    remote = changed(config, ["engine.name=vllm", f"engine.servers={servers}", *settings])
    engine = make_engine(policy, remote, stop=STOP)
    assert engine.ends([5]) and engine.ends([99] * 6) and not engine.ends([99] * 5)
    assert_same(played(engine), wanted)
    with pytest.raises(ValueError, match="`sampler` needs `engine.name=hf`"):
        make_engine(policy, remote, stop=STOP, sampler=lambda *arguments: None)


def test_engines_that_cannot_be_made_are_refused(monkeypatch, config):
    with pytest.raises(UsageError, match="set `engine.name=vllm` too"):
        check_engine(changed(config, ["engine.servers=host:1"]))
    with pytest.raises(UsageError, match="`engine.cache_mib` must be at least 1 with vLLM"):
        check_engine(changed(config, ["engine.name=vllm", "engine.cache_mib=0"]))
    monkeypatch.setattr(choice.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="`engine.name=vllm` needs vLLM in this environment"):
        check_engine(changed(config, ["engine.name=vllm"]))
    served = changed(config, ["engine.name=vllm", "engine.servers=host:1"])
    check_engine(served)
    with pytest.raises(UsageError, match="coupling=maximal` needs `engine.name=hf`"):
        check_engine(changed(served, ["credit.method=twice", "credit.options.coupling=maximal"]))
