"""The random square-root budget: how many twins each turn gets, without bias.

A turn's expected number of twins uses its history only, and a price that comes from earlier
steps; the rest is a keyed coin. Choosing by outcome, action or length would bias credit.
Leaves out the forks themselves (`_twin_forks`).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinstats.allocation import DiscordancePredictor
from twinstats.credit._checks import at_least_zero, at_most_forks, probability
from twinstats.credit._coins import COUNT, coins
from twinstats.episodes import Credit, Episode, Group

_FIRST_TAIL_RATIO = 5.0  # tail tokens per factual token before any step was seen: ten equal turns
_MEMORY = 0.8  # weight of the past in running means over steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much to spend on twins.

    Attributes:
        ratio: Expected auxiliary tokens as a multiple of factual tokens; 0 plays no forks.
        explore: Share of the spend that is uniform over turns.
        null: Probability that a turn with a twin also gets a null twin.
        fresh: Probability that a twin also gets a fresh-luck control.

    Raises:
        ValueError: A ratio below 0 or above 65,535, or a probability outside [0, 1].
    """

    ratio: float
    explore: float = 0.1
    null: float = 0.05
    fresh: float = 0.1

    def __post_init__(self) -> None:
        at_least_zero(ratio=self.ratio)
        at_most_forks(ratio=self.ratio)
        probability(explore=self.explore, null=self.null, fresh=self.fresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A turn and how many twins it gets.

    Attributes:
        expected: m_t, its mean number over the coin.
        count: How many it gets.
        discordance: Predicted probability that a twin ends differently.
        tail_tokens: Predicted tokens of a fork.
        price: The price that was in force; NaN where none was.
    """

    episode: Episode
    turn: int
    expected: float
    count: int
    discordance: float
    tail_tokens: float
    price: float

    @property
    def probability(self) -> float:
        """Probability that the turn gets at least one twin."""
        return min(1.0, self.expected)


def history_features(episode: Episode, turn: int) -> tuple[Hashable, ...]:
    """What a prediction may use: task type, slot, state class. Nothing of the turn's action."""
    kind = episode.task.info.get("type", "")
    return (kind, episode.slot(turn), episode.turns[turn].info.get("state_class", ""))


class BudgetMemory:
    """What a budgeted method carries from step to step: predictions, price and debt.

    m_t = explore * m + (1 - explore) * price * sqrt(v_t / c_t) with m = ratio / (mean tail tokens
    per factual token), v_t the predicted discordance and c_t the predicted tail tokens. In the
    first step nothing is known: m_t = m with a stated guess for the tail ratio.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.predictor = DiscordancePredictor(_identity)
        self._tails: dict[tuple[Hashable, ...], tuple[float, int]] = {}
        self._tail_ratio: float | None = None
        self._price: float | None = None
        self._inflation = 1.0
        self._debt = 0.0

    def plan(self, group: Group) -> list[Planned]:
        """Every turn of the group's scored episodes with its number of twins."""
        turns = [
            (e, t) for e in group.episodes if e.outcome is not None for t in range(e.num_turns)
        ]
        if not turns:
            return []
        drawn = coins(group, turns, COUNT)
        discordance, tails = self._predict([history_features(e, t) for e, t in turns])
        mean = self.budget.ratio / (self._tail_ratio or _FIRST_TAIL_RATIO)
        expected = np.full(len(turns), mean)
        if self._price is not None:
            root = self._price * np.sqrt(discordance / tails)
            expected = self.budget.explore * mean + (1 - self.budget.explore) * root
        price = np.nan if self._price is None else self._price
        return [
            Planned(
                episode=episode,
                turn=turn,
                expected=float(m),
                count=int(m) + int(coin < m - int(m)),
                discordance=float(v),
                tail_tokens=float(c),
                price=price,
            )
            for (episode, turn), m, v, c, coin in zip(
                turns, expected, discordance, tails, drawn, strict=True
            )
        ]

    def observe(self, credits: Sequence[Credit], ratios: object = None) -> None:
        """Learns from a finished step: discordance, tails, what was spent, the next price."""
        episodes = [e for credit in credits for e in credit.episodes if e.fork is None]
        forks = [fork for credit in credits for fork in credit.info.get("forks", ())]
        factual_tokens = sum(episode.sampled for episode in episodes)
        if not factual_tokens:
            return
        self._learn_tails(episodes)
        self._learn_discordance(credits)
        features = [history_features(e, t) for e in episodes for t in range(e.num_turns)]
        discordance, tails = self._predict(features)
        self._tail_ratio = _running(self._tail_ratio, float(tails.sum()) / factual_tokens)
        spent = sum(fork.sampled for fork in forks)
        planned = self._planned_tokens(credits)
        if planned:
            self._inflation = _running(self._inflation, spent / planned)
        self._debt += spent - self.budget.ratio * factual_tokens
        self._set_price(discordance, tails, factual_tokens)

    def state(self) -> dict[str, Any]:
        """Everything it carries, as strict JSON."""
        return {
            "predictor": self.predictor.state(),
            "tails": [[list(key), *value] for key, value in sorted(self._tails.items(), key=repr)],
            "tail_ratio": self._tail_ratio,
            "price": self._price,
            "inflation": self._inflation,
            "debt": self._debt,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Takes up what `state` returned."""
        self.predictor.load(state["predictor"])
        self._tails = {_hashable(key): (total, num) for key, total, num in state["tails"]}
        self._tail_ratio = state["tail_ratio"]
        self._price = state["price"]
        self._inflation = state["inflation"]
        self._debt = state["debt"]

    def _predict(self, features: list[tuple[Hashable, ...]]) -> tuple[np.ndarray, np.ndarray]:
        total = sum(total for total, _ in self._tails.values())
        count = sum(num for _, num in self._tails.values())
        pooled = (total / count) if count else 1.0
        tails = [
            self._tails[key][0] / self._tails[key][1] if key in self._tails else pooled
            for key in features
        ]
        return np.asarray(self.predictor.predict(features)), np.maximum(tails, 1.0)

    def _planned_tokens(self, credits: Sequence[Credit]) -> float:
        """Tokens that the step's twins would take in expectation if each played its tail.

        With the tails as known now: those of the plan are a blind guess in the first step.
        """
        plan = [planned for credit in credits for planned in credit.info.get("plan", ())]
        expected = np.array([planned.expected for planned in plan])
        _, tails = self._predict([history_features(p.episode, p.turn) for p in plan])
        return float(expected @ tails) if plan else 0.0

    def _learn_tails(self, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            tails = np.cumsum(episode.column("num_tokens")[::-1])[::-1]
            for turn, tokens in enumerate(tails):
                key = history_features(episode, turn)
                total, num = self._tails.get(key, (0.0, 0))
                self._tails[key] = (total + float(tokens), num + 1)

    def _learn_discordance(self, credits: Sequence[Credit]) -> None:
        seen = [
            (history_features(planned.episode, planned.turn), twin.outcome, planned.episode.outcome)
            for credit in credits
            for planned, twins in zip(
                credit.info.get("plan", ()), credit.info.get("twins", ()), strict=True
            )
            for twin in twins
            if twin.outcome is not None and planned.episode.outcome is not None
        ]
        if seen:
            discordant = np.array([one != other for _, one, other in seen])
            self.predictor.update([key for key, _, _ in seen], discordant)

    def _set_price(self, discordance: np.ndarray, tails: np.ndarray, factual_tokens: int) -> None:
        """The price at which a step like this one would have spent the ratio and paid the debt."""
        assert self._tail_ratio is not None
        ratio, explore = self.budget.ratio, self.budget.explore
        owed = np.clip(self._debt / factual_tokens, -0.5 * ratio, 0.5 * ratio)
        uniform_ = explore * ratio / self._tail_ratio * tails.sum() / factual_tokens
        per_price = (1 - explore) * np.sqrt(discordance * tails).sum() / factual_tokens
        wanted = (ratio - owed) / max(self._inflation, 1e-3) - uniform_
        self._price = float(max(0.0, wanted / per_price)) if per_price else 0.0


def allocation_rows(credits: Sequence[Credit]) -> list[dict[str, Any]]:
    """Rows of the table `allocations`."""
    return [
        {
            "factual": p.episode.name,
            "turn": p.turn,
            "slot": p.episode.slot(p.turn),
            "expected": p.expected,
            "count": p.count,
            "predicted_discordance": p.discordance,
            "predicted_tail_tokens": p.tail_tokens,
            "price": p.price,
        }
        for credit in credits
        for p in credit.info.get("plan", ())
    ]


def _running(before: float | None, now: float) -> float:
    return now if before is None else _MEMORY * before + (1 - _MEMORY) * now


def _hashable(key: Any) -> Any:
    """A key as it was before JSON turned its tuples into lists."""
    return tuple(_hashable(part) for part in key) if isinstance(key, list) else key


def _identity(features: Hashable) -> Hashable:
    return features
