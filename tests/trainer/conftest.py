"""Tiny random policies, and scripted stand-ins for policy, engine and environment."""

import pytest
import torch

from trainer.config import (
    CheckpointConfig,
    Config,
    EvaluationConfig,
    LengthConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    TaskConfig,
    WarmupConfig,
)
from trainer.engines import Counts, SampledTurn
from trainer.logged.episode_log import LoggedEpisode
from trainer.policy import Policy, build_model, build_tokenizer
from trainer.rollout import Rollout
from trainer.rollout.play import Limits
from trainer.tasks import Step
from trainer.tasks.demonstrations import demonstrations, text_of
from trainer.tasks.facts import SPECIAL_TOKENS, Facts
from twinstats.noise import generator, uniform

MODEL = ModelConfig(
    layers=2, hidden=32, intermediate=64, heads=4, kv_heads=2, vocabulary=600, max_length=256
)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny matrices are faster on one thread, and sums then have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizer():
    rng = generator(0, "tests/demonstrations")
    texts = [text_of(one.segments) for one in demonstrations(60, num_parts=2, rng=rng)]
    return build_tokenizer(texts, vocabulary=MODEL.vocabulary, special=SPECIAL_TOKENS)


@pytest.fixture
def policy(tokenizer):
    """A fresh random policy: a test may change its weights."""
    return Policy(build_model(MODEL, seed=0), tokenizer)


@pytest.fixture(scope="session")
def config():
    """A run of four steps that a random policy can play in a second or two."""
    return Config(
        recipe="demo",
        seed=5,
        model=MODEL,
        warmup=WarmupConfig(minimum_exact_match=0.0),
        task=TaskConfig(parts=1),
        rollout=RolloutConfig(groups=2, group_size=2, max_turn_tokens=5),
        optimizer=OptimizerConfig(learning_rate=1e-3),
        length=LengthConfig(steps=4),
        evaluation=EvaluationConfig(questions=4),
        checkpoint=CheckpointConfig(every=2, keep=2),
    )


@pytest.fixture
def parity(monkeypatch):
    """Plays `Parity` wherever a rollout is made."""
    monkeypatch.setattr("trainer.setup.make_environment", lambda name: Parity())


class Parity(Facts):
    """The task `facts` with a reward that gibberish earns half the time: the parity of a turn.

    Its luck turns three in ten around, so the environment's noise matters as well.
    """

    def step(self, text, noise):
        step = super().step(text, noise)
        is_right = bool(sum(text.encode()) % 2) != (float(uniform(noise, 0)) < 0.3)
        return step._replace(reward=is_right / (self.max_turns * self.num_parts))


class Letters:
    """A policy of words: every character is a token, and `~` reads like the pair `ab`."""

    vocabulary = 0x110000

    def encode(self, text):
        return [ord(letter) for letter in text]

    def decode(self, ids):
        return "".join("ab" if token == ord("~") else chr(token) for token in ids)


class Script:
    """An engine that plays given texts and notes the key of every turn.

    `choose(session, key, index)` gives the text of a session's turn; `index` counts its sampled
    turns from 0.
    """

    def __init__(self, choose):
        self._choose = choose
        self.keys, self.starts, self.temperatures = [], [], []
        self.counts, self.explains = Counts(), True

    def run(self, sessions, *, temperature):
        self.temperatures.append(temperature)
        for session in sessions:
            self.starts.append(session.start())
            self.keys.append([])
            following = []
            while following is not None:
                key = session.key()
                text = self._choose(session, key, len(self.keys[-1]))
                self.keys[-1].append(key)
                tokens = tuple(ord(letter) for letter in text)
                turn = SampledTurn(
                    tokens=tokens,
                    logprobs=(-1.0 / len(tokens),) * len(tokens),
                    entropy=0.5,
                    is_stopped=True,
                )
                following = session.advance(turn)

    def ends(self, tokens):
        return tokens[-1] == ord(".")


class Echo:
    """An environment of `row["turns"]` turns that shows what was said, and its luck if it has any.

    The outcome is the share of turns that said `row["right"]`. Slots are 10 * the turn. `calls`
    notes the keys of every reset and step of all instances.
    """

    stop = (".",)
    max_turns = 3

    def __init__(self, calls, *, is_random=False, drift=None):
        self._calls, self._is_random, self._drift = calls, is_random, drift

    def reset(self, row, noise):
        self._row, self._turn, self._num_right = row, 0, 0
        self._calls.append(("reset", noise))
        return f"?{self._luck(noise)}"

    def step(self, text, noise):
        self._calls.append(("step", noise))
        self._turn += 1
        is_right = text == self._row["right"]
        self._num_right += is_right
        done = self._turn == self._row["turns"]
        shown = "" if done else f"<{text}{self._luck(noise)}>"
        if self._drift is not None:
            shown = self._drift(self._turn, shown)
        info = {"won": done and self._num_right == self._turn, "truncated": False}
        return Step(shown, is_right / self._row["turns"], done, info)

    def slot(self, history):
        return 10 * len(history)

    def _luck(self, noise):
        return str(int(100 * uniform(noise, 0))) if self._is_random else ""


def scripted(choose, *, max_turns=9, max_context=1000, is_random=False, drift=None, seed=3):
    """A rollout of `Letters`, `Script` and `Echo`, its engine, and the environment's calls."""
    engine, calls = Script(choose), []
    rollout = Rollout(
        Letters(),
        engine,
        lambda: Echo(calls, is_random=is_random, drift=drift),
        seed=seed,
        temperature=1.0,
        limits=Limits(max_context=max_context, max_turns=max_turns),
    )
    return rollout, engine, calls


def coin(session, key, index):
    """A word that depends on the key alone, so that shared luck gives shared words."""
    value = float(uniform(key, 1))
    return "a." if value < 0.5 else "bb." if value < 0.8 else "ccc."


def log_of(episode, **changes):
    """An episode as somebody else would have logged it."""
    turns = tuple(turn.action for turn in episode.turns)
    shown = tuple(turn.state for turn in episode.turns)
    return LoggedEpisode(task=episode.task, **({"turns": turns, "observations": shown} | changes))


@pytest.fixture(scope="session")
def dice():
    """A sampler out of our hands, of a seed: torch draws, and the noise is never looked at."""

    def seeded(seed):
        generator = torch.Generator().manual_seed(seed)

        def draw(logits, noises, before, temperature):
            law = torch.softmax(logits / temperature, -1)
            return torch.multinomial(law, 1, generator=generator)[:, 0]

        return draw

    return seeded
