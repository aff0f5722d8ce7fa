"""The judge that marks segments for `prover`: the policy itself, or a chat server."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from trainer.config import changed
from trainer.loop.train import train_tasks
from trainer.needs import Setup, make
from trainer.needs.chat import KEY, TRIES, ChatServer
from trainer.needs.policy_judge import QUESTION, PolicyJudge
from trainer.needs.segments import Segments, Verdict, runs
from trainer.needs.server_judge import read
from trainer.setup import check, make_rollout
from trainer.tasks.facts import Facts
from twinstats.errors import UsageError
from twinstats.rows import episode_rows


@pytest.fixture
def episodes(policy, config):
    """Four factuals of a random policy, in whose third the tool failed."""
    found = make_rollout(policy, config).play(train_tasks(config, 1), 2, 1)
    object.__setattr__(found[2], "outcome", None)
    return found


class Fake:
    """A chat server on this machine: `replies` are (status, body) in order, the last one again."""

    def __init__(self):
        self.replies, self.asked, self.headers, self.seconds = [], [], [], 0.0
        self.lock = threading.Lock()

    def reply(self):
        with self.lock:
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def say(self, content):
        """One more reply with this content."""
        self.replies.append((200, json.dumps({"choices": [{"message": {"content": content}}]})))


@pytest.fixture
def fake():
    fake = Fake()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(*getattr(fake, "models", (200, "{}")))

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            fake.asked.append((self.path, json.loads(body)))
            fake.headers.append(dict(self.headers))
            time.sleep(fake.seconds)
            self.answer(*fake.reply())

        def answer(self, status, body):
            try:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode() if isinstance(body, str) else body)
            except BrokenPipeError:
                pass  # the client did not wait

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
    fake.address = f"http://127.0.0.1:{server.server_port}/v1"
    yield fake
    server.shutdown()
    server.server_close()


@pytest.fixture
def chat(fake):
    """The client of the fake server: chat(seconds) -> ChatServer that hardly pauses."""

    def chat(seconds=5.0):
        return ChatServer(fake.address, model="m", seconds=seconds, pause=0.001)

    return chat


def headers(fake):
    """Those of the first request, names in lower case."""
    return [(name.lower(), value) for name, value in fake.headers[0].items()]


def proposal(*segments):
    keys = ("begin", "end", "sign")
    return json.dumps({"segments": [dict(zip(keys, one, strict=True)) for one in segments]})


GOOD = proposal((0, 1, "progress"), (2, 2, "regress"))


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"<think>Turn {{0}} was fine.</think> Here you are: {GOOD} I hope {{it}} helps.",
        proposal((2, 2, "regress"), (0, 1, "progress"), (0, 1, "progress")),
    ],
)
def test_segments_are_read_whatever_stands_around_them(text):
    assert read(text, 3) == Verdict([(0, 1, 1), (2, 2, -1)])
    assert read(proposal(), 3) == Verdict([])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "All turns were splendid.",
        "<html><body>{}</body></html>",
        '{"segments": "none"}',
        "[" * 5000,
        '{"segments": [' * 5000,
        GOOD[:-5],
    ],
)
def test_a_reply_without_segments_has_a_reason(text):
    assert read(text, 3) == Verdict([], "the judge's reply holds no segments")


@pytest.mark.parametrize(
    "segment",
    [
        (0, 3, "progress"),
        (-1, 1, "progress"),
        (2, 1, "progress"),
        (0, 1, "good"),
        (0, 1, 1),
        (0, 1, ["progress"]),
        (0.0, 1, "progress"),
        (False, 1, "progress"),
        (0, True, "progress"),
        ("0", "1", "progress"),
        (None, 1, "progress"),
    ],
)
def test_a_segment_of_another_episode_makes_the_reply_useless(segment):
    verdict = read(proposal((0, 0, "progress"), segment), 3)
    assert verdict == Verdict([], "the judge's segments do not fit 3 turns")
    assert read('{"segments": [[0, 1, "progress"]]}', 3).reason is not None


def test_more_segments_than_turns_are_useless_as_each_costs_rollouts():
    many = [(begin, end, "progress") for begin in range(3) for end in range(begin, 3)]
    assert read(proposal(*many), 3).reason == "the judge's segments do not fit 3 turns"
    assert len(read(proposal(*many[:3]), 3).segments) == 3


def test_the_provider_fills_segments_and_logs_why_there_are_none(policy, config, episodes, fake):
    own = changed(config, [f"needs.judge={fake.address}", "needs.judge_model=m"])
    fake.say("no idea")
    provider = make("segments", Setup(policy=policy, environment=Facts, config=own))
    provider.provide(episodes)
    assert [episode.info["segments"] for episode in episodes] == [[]] * 4
    rows = episode_rows(episodes)
    assert [row["reason"] for row in rows] == [
        None if row is rows[2] else "no segments: the judge's reply holds no segments"
        for row in rows
    ]
    assert provider.learn(episodes) == {"judge/segments_count": 0.0, "judge/unusable_count": 3.0}
    assert len(fake.asked) == 3  # a failed episode is not judged


def test_a_verdict_goes_to_its_episode_whatever_the_order_of_replies(policy, episodes):
    by_row = {0: Verdict([(0, 0, 1)]), 1: Verdict([]), 3: Verdict([], "why")}
    provider = Segments(lambda played: [by_row[episode.row] for episode in played])
    provider.provide(episodes)
    assert [episode.info["segments"] for episode in episodes] == [[(0, 0, 1)], [], [], []]
    assert provider.learn(episodes) == {"judge/segments_count": 1.0, "judge/unusable_count": 1.0}


def test_the_server_is_asked_for_the_whole_episode(policy, config, episodes, fake, monkeypatch):
    monkeypatch.setenv(KEY, "secret\n")
    fake.say(proposal((0, 0, "regress")))
    own = changed(config, [f"needs.judge={fake.address}/", "needs.judge_model=judge-7b"])
    make("segments", Setup(policy=policy, environment=Facts, config=own)).provide(episodes[:1])
    assert episodes[0].info["segments"] == [(0, 0, -1)]
    ((path, body),) = fake.asked
    assert path == "/v1/chat/completions"
    assert (body["model"], body["temperature"]) == ("judge-7b", 0)
    told = body["messages"][-1]["content"]
    assert f"Reward: {episodes[0].outcome:.3f}" in told
    for index, turn in enumerate(episodes[0].turns):
        assert f"Turn {index}\nShown: {turn.state}" in told
        assert policy.decode(turn.action) in told
    assert ("authorization", "Bearer secret") in headers(fake)


def test_no_key_but_the_judges_own_is_sent(chat, fake, monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    fake.say("hello")
    chat().ask([[{"role": "user", "content": "?"}]])
    assert "authorization" not in dict(headers(fake))


@pytest.mark.parametrize(
    "body",
    [
        "<html>welcome</html>",
        "",
        "{}",
        "[]",
        '{"choices": []}',
        '{"choices": [{"message": {"content": null}}]}',
        '{"choices": [{"message": {"content": 3}}]}',
        b"\xff\xfe\x00",
        "[" * 100_000,
    ],
)
def test_what_is_no_chat_completion_has_a_reason_and_is_asked_for_once(chat, fake, body):
    fake.replies.append((200, body))
    (reply,) = chat().ask([[]])
    assert reply == (None, "the judge answered no chat completion")
    assert len(fake.asked) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again_a_few_times(chat, fake, status):
    fake.replies += [(status, "busy")] * (TRIES - 1)
    fake.say("at last")
    assert chat().ask([[]]) == [("at last", None)]
    fake.replies[:] = [(status, "busy")]
    fake.asked.clear()
    assert chat().ask([[]]) == [(None, f"the judge answered status {status}")]
    assert len(fake.asked) == TRIES


def test_a_request_that_the_server_cannot_serve_is_one_episode_without_segments(chat, fake):
    fake.replies.append((400, "context too long"))
    assert chat().ask([[]]) == [(None, "the judge answered status 400")]
    assert len(fake.asked) == 1


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_address_or_model_is_one_sentence(chat, fake, status):
    fake.replies.append((status, "no"))
    with pytest.raises(UsageError, match=rf"answered status {status}: check `needs.judge`.*{KEY}"):
        chat().ask([[]])
    assert len(fake.asked) == 1


def test_a_server_that_is_too_slow_costs_a_bounded_time_and_has_a_reason(chat, fake):
    fake.seconds = 0.5
    fake.say("too late")
    begun = time.perf_counter()
    ((text, reason),) = chat(seconds=0.05).ask([[]])
    assert text is None and "ReadTimeout" in reason
    assert time.perf_counter() - begun < 1.5


def test_replies_come_in_the_order_of_the_questions(chat, fake):
    fake.reply = lambda: (200, json.dumps({"choices": [{"message": {"content": "same"}}]}))
    messages = [[{"role": "user", "content": str(number)}] for number in range(20)]
    assert chat().ask(messages) == [("same", None)] * 20
    assert sorted(int(body["messages"][0]["content"]) for _, body in fake.asked) == list(range(20))


def test_an_unreachable_server_is_one_sentence_before_anything_is_played(policy, config):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    own = changed(config, ["credit.method=prover", f"needs.judge={address}", "needs.judge_model=m"])
    with pytest.raises(UsageError, match=r"The judge at http.*cannot be reached: ConnectError"):
        make("segments", Setup(policy=policy, environment=Facts, config=own))
    with pytest.raises(UsageError, match=r"The judge at http.*cannot be reached"):
        check(own)
    server = ChatServer(address, model="m", seconds=1.0, pause=0.001)
    with pytest.raises(UsageError, match="cannot be reached"):
        server.ask([[]])


def test_a_refused_key_is_told_before_anything_is_played(policy, config, fake):
    fake.models = (401, "who are you?")
    own = changed(config, [f"needs.judge={fake.address}", "needs.judge_model=m"])
    with pytest.raises(UsageError, match="answered status 401"):
        make("segments", Setup(policy=policy, environment=Facts, config=own))


def test_a_server_without_the_name_of_its_model_is_refused_at_once(config):
    own = changed(config, ["credit.method=prover", "needs.judge=http://127.0.0.1:1/v1"])
    with pytest.raises(UsageError, match="`needs.judge_model` must name the model that http"):
        check(own)


# The policy as its own judge


@pytest.fixture
def judge(policy, config):
    """A judge of this policy with these settings."""

    def judge(*settings):
        own = changed(config, list(settings))
        return PolicyJudge(Setup(policy=policy, environment=Facts, config=own))

    return judge


def odds_by_hand(policy, prompt):
    """log P(yes) - log P(no) after a prompt, one pass a word without any padding."""
    total = []
    for word in ("yes", "no"):
        said = policy.encode(word)
        with torch.inference_mode():
            logits = policy.model(torch.tensor([[*prompt, *said]])).logits[0]
        logp = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
        total.append(float(logp.gather(1, torch.tensor(said)[:, None]).sum()))
    return total[0] - total[1]


def test_log_odds_do_not_depend_on_what_is_asked_beside_them(policy, judge):
    prompts = [policy.encode(text) for text in ("a", "<question>What is it?", "b b b b b b b")]
    expected = pytest.approx([odds_by_hand(policy, prompt) for prompt in prompts], abs=1e-5)
    assert judge().log_odds(prompts) == expected
    assert [judge().log_odds([prompt])[0] for prompt in prompts] == expected


def test_a_long_history_loses_its_beginning(policy, judge):
    prompt = policy.encode("x y z " * 200 + "the end")
    room = 64 - len(policy.encode("yes"))
    words = {len(policy.encode(word)) for word in ("yes", "no")}
    found = judge("model.max_length=64").log_odds([prompt])
    if len(words) == 1:
        assert found == pytest.approx([odds_by_hand(policy, prompt[-room:])], abs=1e-5)
    assert found != pytest.approx([odds_by_hand(policy, prompt[-200:])], abs=1e-5)


def test_turns_are_proposed_by_how_far_they_move_the_odds(policy, judge, episodes):
    question = policy.encode(QUESTION.format(outcome=episodes[0].outcome))
    history, moved = [], []
    for turn in episodes[0].turns:
        history += [*turn.info["shown"], *turn.action]
        moved.append(odds_by_hand(policy, history + question) - odds_by_hand(policy, question))
    largest = max(abs(shift) for shift in moved)
    (verdict,) = judge("needs.judge_nats=0")(episodes[:1])
    assert verdict == Verdict(runs([1 if shift > 0 else -1 for shift in moved]))
    (few,) = judge(f"needs.judge_nats={0.999 * largest}")(episodes[:1])
    assert sum(end - begin + 1 for begin, end, _ in few.segments) == 1
    assert judge(f"needs.judge_nats={1.001 * largest}")(episodes[:1]) == [Verdict([])]


def test_each_episode_gets_its_own_verdict(judge, episodes):
    ask = judge("needs.judge_nats=0")
    assert ask(episodes[:2]) == [ask([one])[0] for one in episodes[:2]]
    assert ask([]) == []


def test_runs_are_neighbours_of_one_sign():
    assert runs([0, 1, 1, -1, 0, -1]) == [(1, 2, 1), (3, 3, -1), (5, 5, -1)]
    assert runs([]) == runs([0, 0]) == []
