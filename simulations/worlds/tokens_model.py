"""The tables of a world whose turns are several sampled tokens, and the exact law of a turn.

A token's class is all that counts: the class logits say which class comes, the styles which token
of the class. So a turn of any vocabulary is solved over (position, previous class, mode), and
turns by what they mean (`tabular_model`). Leaves out sampling (`tokens_voice`) and playing
(`tokens`).
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from simulations.worlds.tabular_model import TabularModel, TabularValues, log_softmax
from simulations.worlds.tabular_needs import Quality
from twinstats.errors import unknown
from twinstats.noise import generator

Keying = Literal["slot", "position", "generator", "collide"]
STOP = 0
"""The token that ends a turn, and its class: the only token of that class."""
_LEAST = 1e-300  # stands for the probability of a meaning that no turn can have


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensSetting:
    """The dials of a tokens world.

    Attributes:
        name: What the setting is called in tables.
        horizon: Turns of an episode that nothing ends early.
        states: States at each turn.
        vocabulary: Tokens, the stop token included.
        classes: Classes of tokens besides the stop token.
        modes: Modes of the automaton that reads a turn's classes: what turns can mean.
        limit: Most tokens of a turn; the last of them ends it, whatever it is.
        stop: Added to the stop token's logit; the larger, the shorter turns are.
        density: Share of turns whose meaning moves the state; at the others it only pays.
        sharpness: Standard deviation of class logits that all states share.
        contrast: The same for the part that each state has for itself.
        spread: Standard deviation of the logits of tokens within a class.
        styles: Laws of the tokens within their classes, dealt out over the contexts.
        luck: Reward of a fair coin at every turn, which no decision touches; a multiple of 1/8.
        ends: Largest probability, over states, that the environment ends the episode after a turn.
        reward: "turns" pays points for meanings; "end" pays 1 or 0 once, with a probability that
            the last state sets.
        keying: What names a token's noise: "slot" (the turn, and the position in it), "position"
            (in the whole sequence, observations included), "generator" (the running count of
            sampled tokens), or "collide" (as "slot", but rows share their noise).
        colliding: How many rows in a row share their noise under "collide".
        table_seed: Which of the worlds with these dials.
        critic: How good the need `value` is: 0 is noise, 1 exact.
        teacher: The same for `teacher_gap`.
        judge: The same for `segments`.

    Raises:
        ValueError: A dial outside its range.
    """

    name: str
    horizon: int = 8
    states: int = 3
    vocabulary: int = 200
    classes: int = 3
    modes: int = 4
    limit: int = 6
    stop: float = 0.0
    density: float = 0.5
    sharpness: float = 1.0
    contrast: float = 0.5
    spread: float = 1.0
    styles: int = 2
    luck: float = 0.5
    ends: float = 0.0
    reward: Literal["turns", "end"] = "turns"
    keying: Keying = "slot"
    colliding: int = 4
    table_seed: int = 0
    critic: float = 1.0
    teacher: float = 0.5
    judge: float = 0.5

    def __post_init__(self) -> None:
        counts = ("horizon", "states", "classes", "modes", "limit", "styles", "colliding")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.vocabulary < self.classes + 1:
            raise ValueError(
                f"`vocabulary` must have a token for each class and the stop token, at least "
                f"{self.classes + 1}, got {self.vocabulary}."
            )
        if not 0 < self.density <= 1 or not 0 <= self.ends < 1:
            raise ValueError(
                f"`density` must be in (0, 1] and `ends` in [0, 1), got {self.density} "
                f"and {self.ends}."
            )
        if self.luck < 0 or (self.luck * 8) % 1:
            raise ValueError(f"`luck` must be a multiple of 1/8, got {self.luck}.")
        for name, words in (("keying", get_args(Keying)), ("reward", ("turns", "end"))):
            if getattr(self, name) not in words:
                raise unknown(name, getattr(self, name), words)
        _refuse_infinite(sharpness=self.sharpness, contrast=self.contrast, spread=self.spread)
        Quality(critic=self.critic, teacher=self.teacher, judge=self.judge)


def _refuse_infinite(**deviations: float) -> None:
    for name, value in deviations.items():
        if not 0 <= value < np.inf:
            raise ValueError(f"`{name}` must be at least 0 and finite, got {value}.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokensModel:
    """The tables of one tokens world. A context is (turn, state, class of the previous token).

    Class 0 is the stop token; as the previous class it says that the turn has only begun.

    Attributes:
        setting: The dials.
        logits: Class logits (turn, state, previous, class).
        sizes: Tokens of each class; their ids are contiguous, classes in order.
        styles: Log-probability of each token given its class (style, token).
        style_of: The style of a context (turn, state, previous).
        after: Mode after a token (mode, class); the stop token leaves it. A turn begins in mode 0.
        shown: Tokens of an observation, by state.
        move: State after a turn (turn, state, meaning).
        points: Reward of a turn's meaning (turn, state, meaning).
        prize: Reward of the environment's coin at a turn.
        chance: Probability of that coin, by turn and the state moved to.
        hazard: Probability that the episode ends after a turn, by turn and the state moved to.
    """

    setting: TokensSetting
    logits: np.ndarray
    sizes: np.ndarray
    styles: np.ndarray
    style_of: np.ndarray
    after: np.ndarray
    shown: np.ndarray
    move: np.ndarray
    points: np.ndarray
    prize: np.ndarray
    chance: np.ndarray
    hazard: np.ndarray

    @property
    def class_of(self) -> np.ndarray:
        """The class of each token."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def token_logits(self, context: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
        """Logits of the whole vocabulary in each of many contexts (context, token)."""
        logits: np.ndarray = self.styles[self.style_of[context]]
        ends = np.cumsum(self.sizes).tolist()
        for own, begin, end in zip(self.logits[context].T, [0, *ends], ends, strict=False):
            logits[:, begin:end] += own[:, None]
        return logits


def build_model(setting: TokensSetting) -> TokensModel:
    """The world that the dials and the table seed name; `keying` is not part of it."""
    rng = generator(setting.table_seed, "tokens/tables")
    turns, states, modes = setting.horizon, setting.states, setting.modes
    num_classes = setting.classes + 1
    moves = np.zeros(turns, bool)
    moves[rng.permutation(turns)[: max(1, round(setting.density * turns))]] = True
    shared = setting.sharpness * rng.normal(size=(turns, 1, num_classes, num_classes))
    own = setting.contrast * rng.normal(size=(turns, states, num_classes, num_classes))
    logits = shared + own
    logits[..., STOP] += setting.stop
    after = rng.integers(modes, size=(modes, num_classes))
    after[:, STOP] = np.arange(modes)
    stays = np.broadcast_to(np.arange(states)[:, None], (turns, states, modes))
    move = np.where(moves[:, None, None], rng.integers(states, size=stays.shape), stays)
    points: np.ndarray = rng.integers(2, size=(turns, 1, modes)) + np.zeros((1, states, 1))
    prize = np.full(turns, setting.luck)
    chance = np.full((turns, states), 0.5)
    if setting.reward == "end":
        points, prize = np.zeros(stays.shape), np.zeros(turns)
        prize[-1] = 1.0
        chance[-1] = np.linspace(0.1, 0.9, states) if states > 1 else 0.5
    hazard = setting.ends * rng.uniform(size=(turns, states))
    hazard[-1] = 0.0
    sizes = _sizes(setting)
    return TokensModel(
        setting=setting,
        logits=logits,
        sizes=sizes,
        styles=_styles(rng, setting, sizes),
        style_of=rng.integers(setting.styles, size=(turns, states, num_classes)),
        after=after,
        shown=1 + np.arange(states),
        move=move,
        points=points,
        prize=prize,
        chance=chance,
        hazard=hazard,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnLaw:
    """The exact law of a turn, by turn and state.

    Attributes:
        meaning: Probability of each meaning (turn, state, meaning).
        entropy: Entropy of a turn's tokens, nats (turn, state).
        length: Expected tokens of a turn (turn, state).
        first_entropy: Entropy of its first token, nats (turn, state).
        reached: Probability that a token is drawn at a position of the turn, after a class, in a
            mode (position, turn, state, previous, mode).
    """

    meaning: np.ndarray
    entropy: np.ndarray
    length: np.ndarray
    first_entropy: np.ndarray
    reached: np.ndarray


def turn_law(model: TokensModel) -> TurnLaw:
    """The law of turns by dynamic programming over (position, previous class, mode)."""
    setting = model.setting
    policy = np.exp(log_softmax(model.logits))
    turns, states, num_classes, _ = policy.shape
    meaning = np.zeros((turns, states, setting.modes))
    reached = np.zeros((setting.limit, turns, states, num_classes, setting.modes))
    reached[0, :, :, 0, 0] = 1.0
    for position in range(setting.limit):
        is_last = position == setting.limit - 1
        for symbol in range(num_classes):
            drawn = (reached[position] * policy[..., symbol, None]).sum(axis=2)
            for mode, then in enumerate(model.after[:, symbol].tolist()):
                if symbol == STOP or is_last:
                    meaning[..., then] += drawn[..., mode]
                else:
                    reached[position + 1, :, :, symbol, then] += drawn[..., mode]
    visits = reached.sum(axis=(0, -1))
    entropy = _token_entropy(model)
    return TurnLaw(
        meaning=meaning,
        entropy=(visits * entropy).sum(axis=-1),
        length=visits.sum(axis=-1),
        first_entropy=entropy[..., 0],
        reached=reached,
    )


def tables(model: TokensModel, law: TurnLaw) -> TabularModel:
    """The world as a tabular model whose actions are the meanings of turns."""
    turns, states, _ = law.meaning.shape
    prize = model.prize[:, None, None]
    chance = model.chance[np.arange(turns)[:, None, None], model.move]
    return TabularModel(
        logits=np.log(np.maximum(law.meaning, _LEAST)),
        chance=np.where(prize > 0, chance, 0.0),
        move=np.stack((model.move, model.move), axis=-1),
        reward=model.points[..., None] + prize[..., None] * np.array([0.0, 1.0]),
        hazard=model.hazard,
        starts=np.arange(states),
        goal=1.0 if model.setting.reward == "end" else None,
    )


def class_gradient(
    model: TokensModel, law: TurnLaw, values: TabularValues, occupancy: np.ndarray
) -> np.ndarray:
    """Exact gradient of the expected outcome in the class logits (turn, state, previous, class).

    dJ / dlogit[t, s, p, c] = occupancy * sum over (position, mode) of
    P(token drawn after p in the mode) * pi(c) * (Q - V), Q and V those of the token.
    `occupancy` is the probability that an episode reaches the turn in the state.
    """
    policy = np.exp(log_softmax(model.logits))
    gradient = np.zeros(policy.shape)
    rest = np.zeros((*policy.shape[:-1], model.setting.modes))
    for position in range(model.setting.limit - 1, -1, -1):
        is_last = position == model.setting.limit - 1
        ahead = np.empty((*policy.shape, model.setting.modes))
        for symbol in range(policy.shape[-1]):
            then = model.after[:, symbol]
            ends = symbol == STOP or is_last
            following = values.action_value[..., then] if ends else rest[:, :, symbol][..., then]
            ahead[..., symbol, :] = following[:, :, None]
        rest = (policy[..., None] * ahead).sum(axis=-2)
        flow = law.reached[position][..., None, :] * policy[..., None]
        gradient += (flow * (ahead - rest[..., None, :])).sum(axis=-1)
    return np.asarray(occupancy[..., None, None] * gradient)


def _sizes(setting: TokensSetting) -> np.ndarray:
    """One stop token; the rest dealt to the classes as evenly as can be."""
    rest, extra = divmod(setting.vocabulary - 1, setting.classes)
    return np.array([1, *(rest + (number < extra) for number in range(setting.classes))])


def _styles(rng: np.random.Generator, setting: TokensSetting, sizes: np.ndarray) -> np.ndarray:
    styles = setting.spread * rng.normal(size=(setting.styles, setting.vocabulary))
    parts = np.split(styles, np.cumsum(sizes)[:-1], axis=1)
    return np.concatenate([log_softmax(part) for part in parts], axis=1)


def _token_entropy(model: TokensModel) -> np.ndarray:
    """Entropy of the next token in each context: of its class, and within it."""
    logprob = log_softmax(model.logits)
    starts = np.cumsum(model.sizes) - model.sizes
    within = -np.add.reduceat(np.exp(model.styles) * model.styles, starts, axis=1)
    return np.asarray((np.exp(logprob) * (within[model.style_of] - logprob)).sum(axis=-1))
