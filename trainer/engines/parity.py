"""Whether an engine samples from the learner's weights, with our noise: a few probes tell.

An engine of its own holds a copy of the weights. After each sync it samples short continuations of
a few prompts, and the learner says what their log-probabilities and their noise should have been.
Leaves out how the weights travel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainer.engines.requests import Answer, Ending, TurnRequest
from trainer.policy import Policy, padded, token_logits
from trainer.processors.request import KeyedRequest
from twinstats.noise import NoiseKey, generator, gumbel

_PROMPTS = (3, 40, 160)  # tokens: the last one fills a block of any engine's prefix cache
_PROBE_TOKENS = 8
_FACTOR = 2.0

# N sampled tokens, V vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an engine answered to the probes, and how far from the learner that was.

    Attributes:
        answers: One a probe.
        gap: Mean absolute difference of the two log-probabilities, nats a token.
        lag: Mean distance of the sampled tokens' perturbed scores from the best, by the learner's
            logits, nats a token: 0 where every token is the one that the noise wants.
    """

    answers: tuple[Answer, ...]
    gap: float
    lag: float


class Parity:
    """Compares engines with the learner.

    Args:
        policy: The learner's model; read when something is compared.
        longest: Tokens that a prompt and its turn may have together.
        tolerance: Largest mean difference of log-probabilities, nats a token.
    """

    def __init__(self, policy: Policy, *, longest: int, tolerance: float) -> None:
        self._policy, self._tolerance = policy, tolerance
        self.probes = tuple(
            _probe(row, min(size, longest - _PROBE_TOKENS), policy.model.config.vocab_size)
            for row, size in enumerate(_PROMPTS)
        )

    def check(self, answers: Sequence[Answer], *, before: Reading | None, where: str) -> Reading:
        """What the answers to the probes say, if the engine may be used.

        Args:
            answers: One a probe.
            before: What was read of the same engine at its sync before, if there was one.
            where: The engine, for messages.

        Raises:
            RuntimeError: Its log-probabilities are not the learner's, its tokens are not those of
                the noise, or it answers as before although the learner has moved on.
        """
        now = self._reading(answers)
        told = f"over {sum(len(one.tokens) for one in answers)} tokens"
        if not now.gap <= self._tolerance:
            raise RuntimeError(
                f"After the sync {where} is {now.gap:.2g} nats a token from the learner's "
                f"log-probabilities {told}; `engine.parity_nats` allows {self._tolerance:g}."
            )
        if not now.lag <= self._tolerance:
            raise RuntimeError(
                f"{where} does not draw with keyed noise: its tokens are {now.lag:.2g} nats a "
                f"token behind those that the noise wants, {told} "
                f"(`engine.parity_nats` allows {self._tolerance:g})."
            )
        # Less than the tolerance, but it did not move at all: the update was lost.
        if before is not None and now.answers == before.answers and now.gap > _FACTOR * before.gap:
            raise RuntimeError(
                f"The sync did not change {where}: it answers as before, now {now.gap:.2g} nats "
                f"a token from the learner's log-probabilities, before {before.gap:.2g}, {told}."
            )
        return now

    @torch.inference_mode()
    def _reading(self, answers: Sequence[Answer]) -> Reading:
        logits_NV = self._logits(answers)
        tokens = [token for answer in answers for token in answer.tokens]
        rows = np.arange(len(tokens))
        own_N = torch.log_softmax(logits_NV, -1).numpy()[rows, tokens]
        told_N = np.array([value for answer in answers for value in answer.logprobs])
        scores_NV = logits_NV.numpy() + self._noise(answers, logits_NV.shape[1])
        lag_N = scores_NV.max(1) - scores_NV[rows, tokens]
        gap = float(np.abs(told_N - own_N).mean())
        return Reading(answers=tuple(answers), gap=gap, lag=float(lag_N.mean()))

    def _logits(self, answers: Sequence[Answer]) -> torch.Tensor:
        """The learner's logits (N, V) for the sampled tokens, float64, in one pass."""
        model, device = self._policy.model, self._policy.model.device
        pairs = list(zip(self.probes, answers, strict=True))
        ids_RL, mask_RL = padded([(*probe.prompt, *answer.tokens) for probe, answer in pairs])
        wanted_RL = mask_RL.clone()
        for row, (probe, _) in enumerate(pairs):
            wanted_RL[row, : len(probe.prompt)] = False
        was_training = model.training
        model.eval()
        logits_NV = token_logits(model, *(t.to(device) for t in (ids_RL, mask_RL, wanted_RL)))
        model.train(was_training)
        return logits_NV.double().cpu()

    def _noise(self, answers: Sequence[Answer], size: int) -> np.ndarray:
        ids = np.arange(size)
        return np.array(
            [
                gumbel(probe.keyed.key, position, ids)
                for probe, answer in zip(self.probes, answers, strict=True)
                for position in range(len(answer.tokens))
            ]
        )


def _probe(row: int, size: int, vocabulary: int) -> TurnRequest:
    """A prompt of random ids, always the same ones, and the key of its turn."""
    rng = generator(0, f"parity/{row}")
    return TurnRequest(
        prompt=tuple(rng.integers(0, vocabulary, size).tolist()),
        keyed=KeyedRequest(key=NoiseKey(0, 0, row, 0, 0, "parity")),
        ending=Ending(stop=frozenset(), max_tokens=_PROBE_TOKENS),
    )
