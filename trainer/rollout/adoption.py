"""Adoption: episodes that were sampled elsewhere become factuals with noise that explains them.

The environment is replayed along the logged turns, and the policy's logits at the logged tokens
give each turn its `LoggedNoise`. Leaves out files (`logged.episode_log`) and forks (`play`).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from trainer.engines import SampledTurn, Session
from trainer.logged.episode_log import LoggedEpisode
from trainer.noise.logged import LoggedNoise
from trainer.policy import Policy, entropies, token_logits
from trainer.policy.tokens import padded_episodes
from twinstats.episodes import Episode, Fork
from twinstats.keys import FACTUAL

_ROWS = 16  # episodes that go through the model together


def replay(
    session: Session,
    logged: LoggedEpisode,
    *,
    encode: Callable[[str], list[int]],
    ends: Callable[[Sequence[int]], bool],
) -> str | None:
    """Plays the logged turns into a session; returns why they cannot be its turns, if they cannot.

    Args:
        session: A fresh episode of the logged task.
        logged: What was sampled; a turn given as text is encoded, ids are taken as they are.
        encode: Text to ids.
        ends: Whether a turn is over with the last of some ids.
    """
    shown: list[int] | None = session.start()
    count = len(logged.turns)
    for index, turn in enumerate(logged.turns):
        if shown is None:
            return f"the episode is over after {index} turns, but {count} were logged"
        observation = logged.observations[index] if logged.observations else None
        if observation is not None and encode(observation) != shown:
            return f"before turn {index} the environment shows something else than was logged"
        tokens = encode(turn) if isinstance(turn, str) else list(turn)
        if not is_turn(tokens, ends):
            return (
                f"turn {index} does not end where the policy's turns do: with a stop token, "
                "or at `rollout.max_turn_tokens`"
            )
        shown = session.advance(_unscored(tokens))
    return None if shown is None else f"the episode goes on after the {count} logged turns"


def is_turn(tokens: Sequence[int], ends: Callable[[Sequence[int]], bool]) -> bool:
    """Whether a turn that starts with these tokens is over with the last of them, not before."""
    over = (end for end in range(1, len(tokens) + 1) if ends(tokens[:end]))
    return next(over, None) == len(tokens)


def _unscored(tokens: Sequence[int]) -> SampledTurn:
    return SampledTurn(tokens=tuple(tokens), logprobs=None, entropy=None, is_stopped=True)


@torch.inference_mode()
def explained(
    policy: Policy, episodes: Sequence[Episode], *, seed: int, temperature: float
) -> list[Episode]:
    """Replayed episodes whose turns know their log-probability, entropy and `info["noise"]`.

    One pass of the policy over each episode. One that it could not have played, for an id outside
    its vocabulary or a token of no probability, has a null outcome and a reason; failed ones stay
    as they are.
    """
    vocabulary = policy.model.config.vocab_size
    checked = [_within(episode, vocabulary) for episode in episodes]
    logits = turn_logits(policy, [one for one in checked if one.outcome is not None])
    return [
        one if one.outcome is None else _explained(one, next(logits), seed, temperature)
        for one in checked
    ]


def _within(episode: Episode, vocabulary: int) -> Episode:
    for index, turn in enumerate(episode.turns):
        if max(turn.action) >= vocabulary:
            reason = f"turn {index} has a token outside the policy's vocabulary of {vocabulary}"
            return _refused(episode, index, reason)
    return episode


def turn_logits(policy: Policy, episodes: Sequence[Episode]) -> Iterator[list[np.ndarray]]:
    """Of each episode, turn by turn, the logits (tokens, V) that its tokens were drawn from.

    One teacher-forced pass over each episode; float32, 4 bytes times tokens times vocabulary.
    """
    for start in range(0, len(episodes), _ROWS):
        some = episodes[start : start + _ROWS]
        policy.model.eval()
        counts = [[turn.num_tokens for turn in episode.turns] for episode in some]
        with torch.inference_mode():  # entered anew: what a generator yields in between is not ours
            ids, mask, wanted = (part.to(policy.model.device) for part in padded_episodes(some))
            logits = token_logits(policy.model, ids, mask, wanted).cpu()
        for own, turns in zip(logits.split([sum(one) for one in counts]), counts, strict=True):
            yield [part.numpy() for part in own.split(turns)]


def _explained(
    episode: Episode, logits: Sequence[np.ndarray], seed: int, temperature: float
) -> Episode:
    turns = []
    for index, (turn, own) in enumerate(zip(episode.turns, logits, strict=True)):
        logprobs = torch.log_softmax(torch.from_numpy(own) / temperature, dim=-1)
        chosen = logprobs.gather(1, torch.tensor(turn.action)[:, None])[:, 0]
        for place in (~chosen.isfinite()).nonzero()[:1, 0].tolist():
            reason = f"turn {index} has token {turn.action[place]}, which the policy cannot draw"
            return _refused(episode, index, reason)
        key = FACTUAL.tail.key(seed, episode.step, episode.row, episode.slot(index))
        noise = LoggedNoise(key=key, tokens=turn.action, logits=own, temperature=temperature)
        turns.append(
            dataclasses.replace(
                turn,
                logprob=math.fsum(chosen.tolist()),
                entropy=float(entropies(logprobs).mean()),
                info=turn.info | {"noise": noise, "logprobs": tuple(chosen.tolist())},
            )
        )
    return dataclasses.replace(episode, turns=tuple(turns))


def _refused(episode: Episode, turn: int, reason: str) -> Episode:
    """The episode without an outcome, as far as it came before a turn."""
    kept = episode.turns[:turn]
    return dataclasses.replace(
        episode,
        turns=kept,
        sampled=sum(one.num_tokens for one in kept),
        outcome=None,
        success=None,
        terminated=False,
        truncated=False,
        info={"reason": reason},
    )


def logged_noise(fork: Fork | None) -> dict[int, LoggedNoise]:
    """By slot, the noise of the adopted factual that a fork goes back to; else nothing."""
    if fork is None:
        return {}
    if fork.episode.fork is not None:
        return logged_noise(fork.episode.fork)
    factual = fork.episode
    return {
        factual.slot(index): turn.info["noise"]
        for index, turn in enumerate(factual.turns)
        if "noise" in turn.info
    }
