"""One decision, then luck: pairs of outcomes whose joint law is known exactly.

Arm 0 is the better one by `effect`. The regime says how the two arms' outcomes hang together
when they share their luck. `pairs` draws in bulk from NumPy's Philox keyed by (setting, seed,
chunk); `Bandit` plays single-turn episodes with keyed noise, so that credit methods run in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulations.worlds.forks import refuse_coupling
from twinstats.episodes import DIFFERENT, KEEP, RESAMPLE, Episode, Fork, Task, Turn
from twinstats.errors import unknown
from twinstats.keys import FACTUAL, Stream, fork_streams
from twinstats.noise import KeyColumns, generator, sample, uniforms

Regime = Literal["smooth", "cancelling", "chaotic", "adverse", "grader"]
REGIMES: tuple[Regime, ...] = ("smooth", "cancelling", "chaotic", "adverse", "grader")
_SHARED, _APART, _GRADER, _SPREAD = 0, 1, 2, 3  # columns of the luck


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditSetting:
    """The dials of a bandit.

    Attributes:
        name: What the setting is called in tables; also names its noise.
        regime: "smooth": discordance is `ratio` * effect. "cancelling": discordance stays at
            `floor` while the effect shrinks. "chaotic": nothing is shared after the decision.
            "adverse": the arms' outcomes have correlation `rho` below 0. "grader": smooth, but a
            scorer with luck of its own flips outcomes, so that discordance stays above `floor`.
        effect: Expected outcome of arm 0 minus that of arm 1, as graded; at least 0.
        base: Mean of the two arms' expected outcomes.
        ratio: Discordance over effect where it is smooth; at least 1.
        floor: Discordance that does not shrink with the effect.
        rho: Correlation in the regime "adverse".
        spread: Standard deviation of a reward that shared luck gives to both arms alike; above 0
            the outcome is continuous.

    Raises:
        ValueError: Dials that no pair of binary outcomes can have.
    """

    name: str
    regime: Regime = "smooth"
    effect: float = 0.1
    base: float = 0.5
    ratio: float = 2.0
    floor: float = 0.3
    rho: float = -0.5
    spread: float = 0.0

    def __post_init__(self) -> None:
        if self.regime not in REGIMES:
            raise unknown("regime", self.regime, REGIMES)
        if not 0 <= self.effect < 1 or self.ratio < 1 or self.spread < 0:
            raise ValueError(
                "`effect` must be in [0, 1), `ratio` at least 1 and `spread` at least 0, "
                f"got {self.effect}, {self.ratio} and {self.spread}."
            )
        if min(_cells(self)) < -1e-12:
            raise ValueError(
                f"No pair of outcomes has `effect` {self.effect}, `base` {self.base} "
                f"and the discordance that regime {self.regime!r} asks for."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLaw:
    """Exact moments of (outcome of arm 0, outcome of arm 1).

    Attributes:
        effect: Mean difference.
        discordance: Probability that the outcomes differ.
        variance_factual: Variance of arm 0.
        variance_twin: Variance of arm 1.
        covariance: Their covariance.
    """

    effect: float
    discordance: float
    variance_factual: float
    variance_twin: float
    covariance: float

    @property
    def rho(self) -> float:
        """Pearson correlation."""
        return self.covariance / float(np.sqrt(self.variance_factual * self.variance_twin))

    @property
    def rho_eff(self) -> float:
        """2 Cov / (Var factual + Var twin)."""
        return 2 * self.covariance / self.variance_independent

    @property
    def variance_paired(self) -> float:
        """Variance of the difference."""
        return self.variance_independent - 2 * self.covariance

    @property
    def variance_independent(self) -> float:
        """Variance of the difference of independent outcomes."""
        return self.variance_factual + self.variance_twin


def pair_law(setting: BanditSetting, luck: Literal["shared", "fresh"] = "shared") -> PairLaw:
    """The exact law of a pair of the two arms."""
    p10, p01, p11, _ = _cells(setting)
    flip = _flip(setting)
    first, second = p10 + p11, p01 + p11
    covariance = (1 - 2 * flip) ** 2 * (p11 - first * second)
    first, second = (flip + (1 - 2 * flip) * p for p in (first, second))
    differ = 2 * flip * (1 - flip)
    discordance = differ + (1 - 2 * differ) * (p10 + p01)
    extra = setting.spread**2
    if luck == "fresh":
        covariance = 0.0
        discordance = 1.0 if extra else first + second - 2 * first * second
    return PairLaw(
        effect=setting.effect,
        discordance=discordance,
        variance_factual=first * (1 - first) + extra,
        variance_twin=second * (1 - second) + extra,
        covariance=covariance + (extra if luck == "shared" else 0.0),
    )


def pairs(
    setting: BanditSetting,
    number: int,
    *,
    seed: int,
    chunk: int = 0,
    luck: Literal["shared", "fresh"] = "shared",
) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes of arm 0 (factual) and arm 1 (twin), drawn under shared or fresh luck."""
    rng = generator(seed, f"bandit/{setting.name}", step=chunk)
    first = _luck(rng, number, setting)
    second = _luck(rng, number, setting)
    if luck == "shared":
        own = second[:, _GRADER].copy()
        second = first.copy()
        second[:, _GRADER] = own
    arms = np.zeros(number, np.int64)
    return outcome(setting, arms, first), outcome(setting, arms + 1, second)


def outcome(setting: BanditSetting, arm: np.ndarray, luck: np.ndarray) -> np.ndarray:
    """Outcome of each arm given its luck (rows, 4): a function, so that equal luck is shared."""
    p10, p01, p11, _ = _cells(setting)
    u = luck[:, _SHARED]
    both = (u >= p10 + p01) & (u < p10 + p01 + p11)
    wins = np.where(arm == 0, u < p10, (u >= p10) & (u < p10 + p01)) | both
    if setting.regime == "chaotic":
        wins = np.where(arm == 0, u < p10 + p11, luck[:, _APART] < p01 + p11)
    wins ^= luck[:, _GRADER] < _flip(setting)
    return wins + setting.spread * luck[:, _SPREAD]


def _luck(rng: np.random.Generator, number: int, setting: BanditSetting) -> np.ndarray:
    luck = rng.random((number, 4))
    luck[:, _SPREAD] = rng.normal(size=number) if setting.spread else 0.0
    return luck


def _flip(setting: BanditSetting) -> float:
    """Probability that the scorer flips an outcome: its own discordance is `floor`."""
    if setting.regime != "grader":
        return 0.0
    return float((1 - np.sqrt(1 - 2 * setting.floor)) / 2)


def _cells(setting: BanditSetting) -> tuple[float, float, float, float]:
    """P(arm 0 only), P(arm 1 only), P(both), P(neither) win, before a scorer's flips."""
    scale = 1 - 2 * _flip(setting)
    effect = setting.effect / scale
    base = (setting.base - 0.5) / scale + 0.5
    first, second = base + effect / 2, base - effect / 2
    if setting.regime in ("smooth", "grader"):
        discordance = setting.ratio * effect
    elif setting.regime == "cancelling":
        discordance = max(setting.floor, effect)
    else:
        rho = setting.rho if setting.regime == "adverse" else 0.0
        spread = np.sqrt(max(0.0, first * (1 - first) * second * (1 - second)))
        discordance = first + second - 2 * (first * second + rho * spread)
    p10, p01 = (discordance + effect) / 2, (discordance - effect) / 2
    return p10, p01, first - p10, 1 - first - p01


class Bandit:
    """Single-turn episodes: a choice between the arms, then luck. A step is one call of `play`."""

    def __init__(self, setting: BanditSetting, *, seed: int, share: float = 0.5) -> None:
        """Arm 0 is chosen with probability `share`."""
        self.setting = setting
        self.seed = seed
        self.policy = np.array([share, 1 - share])
        law = pair_law(setting)
        self._means = np.array([setting.base + law.effect / 2, setting.base - law.effect / 2])

    def tasks(self, number: int) -> list[Task]:
        """Tasks, all alike."""
        return [Task(f"bandit-{i}") for i in range(number)]

    def play(self, tasks: Sequence[Task], rollouts: int, step: int) -> list[Episode]:
        """Episodes of each task, rows in order; every call of a step starts at row 0."""
        played = [task for task in tasks for _ in range(rollouts)]
        rows = np.arange(len(played))
        keys = KeyColumns.grid(self.seed, step, FACTUAL.tail.purpose, row=rows, turn=0)
        arms = self._choose(keys)
        luck = self._lucks([(FACTUAL.environment, step, row, "") for row in range(len(played))])
        results = outcome(self.setting, arms, luck)
        return [
            self._episode(task, step, row, int(arms[row]), float(results[row]), None, 1)
            for row, task in enumerate(played)
        ]

    def fork(self, forks: Sequence[Fork]) -> list[Episode]:
        """The forked episodes, in the order asked."""
        if not forks:
            return []
        refuse_coupling(forks)
        streams = [fork_streams(fork) for fork in forks]
        parents = [fork.episode for fork in forks]
        decisions = KeyColumns.of(
            [
                (own.decision or FACTUAL.tail).key(self.seed, parent.step, parent.row, 0)
                for own, parent in zip(streams, parents, strict=True)
            ]
        )
        drawn = self._choose(decisions)
        arms = np.array([_arm(fork, int(arm)) for fork, arm in zip(forks, drawn, strict=True)])
        lucks = self._lucks(
            [
                (own.environment, fork.episode.step, fork.episode.row, fork.path)
                for own, fork in zip(streams, forks, strict=True)
            ]
        )
        results = outcome(self.setting, arms, lucks)
        return [
            self._forked(fork, int(arm), float(result))
            for fork, arm, result in zip(forks, arms, results, strict=True)
        ]

    def provide(self, need: str, episodes: Sequence[Episode]) -> None:
        """Fills `value`: the exact expected outcome, then the outcome.

        Raises:
            UsageError: Any other need.
        """
        if need != "value":
            raise unknown("need of the bandit world", need, ["value"])
        for episode in episodes:
            episode.info["value"] = np.array([self.policy @ self._means, episode.outcome])

    def truth(self, episode: Episode) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Exact (Q, V, advantage) of the one turn."""
        action_value = self._means[[episode.turns[0].action]]
        value = np.array([self.policy @ self._means])
        return action_value, value, action_value - value

    def places(self, episode: Episode) -> np.ndarray:
        """Turn, state and action of the one turn: an array with three rows."""
        return np.array([[0], [0], [episode.turns[0].action]])

    def policy_table(self) -> np.ndarray:
        """Probability of each arm (turn, state, arm)."""
        return self.policy[None, None]

    def policy_gradient(self, tasks: Sequence[Task]) -> np.ndarray:
        """Exact gradient of the expected outcome in the policy's logits (turn, state, arm)."""
        advantage = self._means - self.policy @ self._means
        return (self.policy * advantage)[None, None]

    def _choose(self, keys: KeyColumns) -> np.ndarray:
        logits = np.tile(np.log(self.policy), (len(keys), 1))
        return sample(logits, keys, np.zeros(len(keys), np.int64))

    def _lucks(self, streams: Sequence[tuple[Stream, int, int, str]]) -> np.ndarray:
        """The luck of each play; the scorer's own is fresh in every fork, whatever is shared."""
        keys = KeyColumns.of([s.key(self.seed, step, row, 0) for s, step, row, _ in streams])
        luck = np.stack([uniforms(keys, 0, lane) for lane in range(4)], axis=1)
        graders = [Stream(f"grader/{path}") for *_, path in streams]
        own = KeyColumns.of(
            [
                grader.key(self.seed, step, row, 0)
                for grader, (_, step, row, _) in zip(graders, streams, strict=True)
            ]
        )
        luck[:, _GRADER] = uniforms(own, 0)
        radius = np.sqrt(-2 * np.log(uniforms(keys, 0, 4)))
        luck[:, _SPREAD] = radius * np.cos(2 * np.pi * luck[:, _SPREAD])
        return luck

    def _forked(self, fork: Fork, arm: int, result: float) -> Episode:
        parent = fork.episode
        cost = int(fork.action in (RESAMPLE, DIFFERENT))
        if fork.takes_equal_tail() and arm == parent.turns[0].action:
            assert parent.outcome is not None
            result = parent.outcome
        return self._episode(parent.task, parent.step, parent.row, arm, result, fork, cost)

    def _episode(
        self,
        task: Task,
        step: int,
        row: int,
        arm: int,
        result: float,
        fork: Fork | None,
        cost: int,
    ) -> Episode:
        logprob = float(np.log(self.policy[arm]))
        entropy = float(-(self.policy * np.log(self.policy)).sum())
        turn = Turn(arm, logprob, entropy, 1, state="start", reward=result)
        return Episode(
            task=task,
            step=step,
            row=int(row),
            turns=[turn],
            outcome=result,
            terminated=True,
            truncated=False,
            fork=fork,
            sampled=cost,
        )


def _arm(fork: Fork, drawn: int) -> int:
    parent = int(fork.episode.turns[0].action)
    if fork.action is RESAMPLE:
        return drawn
    if fork.action is KEEP:
        return parent
    return 1 - parent if fork.action is DIFFERENT else int(fork.action)
