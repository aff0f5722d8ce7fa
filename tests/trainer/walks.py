"""Sessions of given texts, and the plain loop that an engine must equal."""

import numpy as np
import torch

from trainer.engines.hf import HfEngine
from twinstats.noise import NoiseKey, sample

STOP = frozenset(range(100))  # one token in six ends a turn
MAX_TURN_TOKENS = 7


def sharpened(model):
    """A random model whose distributions are far from flat, so that a wrong cache shows."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(8)
        model.get_input_embeddings().weight.mul_(3)
    return model


class Walk:
    """A session of given texts: `texts[0]` first, then one after each turn until none is left.

    Turns that it has from the start are history: the engine goes on after them. `drafts` are by
    turn. `noises` take the place of its keys.
    """

    def __init__(self, row, texts, *, history=(), drafts=None, noises=None):
        self.row, self.texts = row, texts
        self.history, self.drafts, self.noises = list(history), drafts or {}, noises
        self.turns, self.reasons = [], []

    def start(self):
        pairs = zip(self.history, self.texts[1:], strict=False)
        return sum([list(action) + list(text) for action, text in pairs], list(self.texts[0]))

    @property
    def index(self):
        return len(self.history) + len(self.turns)

    def key(self):
        return (
            NoiseKey(1, 2, self.row, self.index) if self.noises is None else self.noises[self.index]
        )

    def draft(self):
        return self.drafts.get(self.index, ())

    def fail(self, reason):
        self.reasons.append(reason)

    def advance(self, turn):
        self.turns.append(turn)
        return list(self.texts[self.index]) if self.index < len(self.texts) else None

    @property
    def tokens(self):
        return [turn.tokens for turn in self.turns]

    def fork(self, turn, *, row=None, extra=(), **changes):
        """A session that goes on after `turn` of its turns (and `extra` ones), as another row."""
        history = [*self.history, *self.tokens][:turn] + list(extra)
        return Walk(self.row if row is None else row, self.texts, history=history, **changes)


def walks(count, seed=0):
    """Sessions of 1 to 4 turns; what is shown between them has 0 to 12 tokens."""
    rng = np.random.default_rng(seed)
    return [
        Walk(
            row,
            [rng.integers(100, 600, 1 + rng.integers(12)).tolist()]
            + [rng.integers(100, 600, rng.integers(13)).tolist() for _ in range(rng.integers(4))],
        )
        for row in range(count)
    ]


@torch.inference_mode()
def alone(model, walk, temperature=1.0):
    """The turns of a session by the plain loop: (tokens, logprob, entropy, stopped)."""
    ids, turns = walk.start(), []
    for turn in range(len(walk.history), len(walk.texts)):
        tokens, logprob, entropy = [], 0.0, 0.0
        while len(tokens) < MAX_TURN_TOKENS and not (tokens and tokens[-1] in STOP):
            logits = model(torch.tensor([ids])).logits[:, -1]
            key = NoiseKey(1, 2, walk.row, turn)
            token = int(sample(logits.numpy(), [key], [len(tokens)], temperature)[0])
            law = torch.log_softmax(logits[0].double() / (temperature or 1.0), -1)
            logprob += float(law[token])
            entropy -= float((law.exp() * law).sum())
            tokens.append(token)
            ids.append(token)
        turns.append((tuple(tokens), logprob, entropy / len(tokens), tokens[-1] in STOP))
        ids += walk.texts[turn + 1] if turn + 1 < len(walk.texts) else []
    return turns


def engine_of(model, **options):
    return HfEngine(model, **{"stop": STOP, "max_turn_tokens": MAX_TURN_TOKENS} | options)


def played(model, sessions, max_batch=64, temperature=1.0, **options):
    """The engine that has played the sessions."""
    engine = engine_of(model, max_batch=max_batch, **options)
    engine.run(sessions, temperature=temperature)
    return engine


def assert_same(turns, expected):
    assert [turn.tokens for turn in turns] == [tokens for tokens, *_ in expected]
    assert [turn.is_stopped for turn in turns] == [stopped for *_, stopped in expected]
    found = [(turn.logprob, turn.entropy) for turn in turns]
    np.testing.assert_allclose(found, [(p, h) for _, p, h, _ in expected], atol=5e-5)
