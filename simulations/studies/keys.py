"""What the noise's key is worth: twins under turn keys, sequence positions, a running generator.

The first turn of every episode is resampled, and the same decision is played with shared and with
fresh luck. Keyings: "slot" (the house's), "maximal" (the same, with the maximal coupling),
"position" (in the sequence), "generator" (running count of sampled tokens), "collide" (rows share
their noise). Pairs are told apart by how many tokens longer the resampled turn is than the
factual's; only the first turn's meaning and the luck behind it differ.

A later turn is equal where both worlds say the same, token by token; one that a world lacks is
not. gain is E[D^2] with fresh over shared luck on the same decisions; deduplicated with D = 0 for
equal decisions under fresh luck too. Coverage: `paired` on samples of consecutive rows, whose
effect is exactly 0; clustered is by the rows that share (or would share) a key.

Table `keys_cells` (one row a seed, keying and reading): setting, seed, vocabulary, keying, reading
("coupling" or "coverage"), pairs ("all", or "different": unequal decisions), longer (tokens, -3
and 3 hold what is beyond; null: all), num_pairs; for "coupling" sums over pairs: later_turns,
later_equal, fresh_turns, fresh_equal (the same of the fresh fork), sum_factual, sum_twin,
square_factual, square_twin, product, square_shared, square_fresh, square_fresh_deduplicated; for
"coverage" sums over samples: num_samples, covered, covered_clustered, sum_stderr,
sum_stderr_clustered, square_estimate.
Table `keys` (pooled over seeds): setting, vocabulary, keying, pairs, longer, num_pairs, metric
(later_equal, later_equal_fresh, rho_eff, gain, gain_deduplicated), value, low, high (95%, jackknife
over seeds), num_seeds, reason (why one is null).
Table `keys_coverage`: setting, vocabulary, keying, num_pairs (a sample), num_samples, deviation
(of the estimates about 0), stderr, stderr_clustered (means), coverage, coverage_clustered (of 95%
intervals, each with _low and _high).
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit
from scipy.stats import binomtest

from simulations.worlds.tokens import Tokens
from simulations.worlds.tokens_model import Keying, TokensSetting
from twinstats.episodes import FRESH, Episode, Fork
from twinstats.pairs import PairedResult, paired
from twinstats.rows import is_equal_decision

TABLE = "keys_cells"
KEYINGS: dict[str, Keying] = {
    "slot": "slot",
    "maximal": "slot",
    "position": "position",
    "generator": "generator",
    "collide": "collide",
}
FURTHEST = 3
_ROLLOUTS = 4
_Row = dict[str, Any]
_Sums = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One world, and how much of it is played.

    Attributes:
        world: The tokens world; its keying is replaced by each in turn.
        num_pairs: Episodes that are forked, a multiple of `sample_size`.
        sample_size: Pairs of one sample whose interval is checked.
    """

    world: TokensSetting
    num_pairs: int
    sample_size: int = 48

    @property
    def name(self) -> str:
        """The world's name."""
        return self.world.name


def _world(name: str, density: float, vocabulary: int, horizon: int = 8) -> TokensSetting:
    return TokensSetting(
        name=f"{name}, vocabulary {vocabulary}",
        horizon=horizon,
        vocabulary=vocabulary,
        density=density,
        contrast=0.3,
        luck=0.0,
        ends=0.1,
        colliding=8,
    )


_MOVES, _PAYS = ("decision moves the state", 1.0), ("decision only pays", 0.25)

SETTINGS = (
    *(
        Setting(world=_world(*kind, vocabulary), num_pairs=1920)
        for kind in (_MOVES, _PAYS)
        for vocabulary in (100, 5000)
    ),
    Setting(world=_world(*_MOVES, 100_000), num_pairs=240),
)
QUICK = (Setting(world=_world(*_MOVES, 100, horizon=4), num_pairs=144),)
DEMO = tuple(Setting(world=_world(*kind, 100), num_pairs=480) for kind in (_MOVES, _PAYS))
SEEDS = {"full": 12, "quick": 4, "demo": 4}


def run(setting: Setting, seed: int) -> list[_Row]:
    """Sums over the pairs of one seed, for each keying."""
    rows = []
    for keying in KEYINGS:
        known = {
            "setting": setting.name,
            "seed": seed,
            "vocabulary": setting.world.vocabulary,
            "keying": keying,
        }
        found = _played(setting, keying, seed)
        rows += [known | cell for cell in (*_coupling(found), _coverage(setting, found))]
    return rows


def summarise(rows: Sequence[_Row]) -> dict[str, list[_Row]]:
    """The tables `keys` and `keys_coverage`."""
    cells: dict[tuple[str, ...], list[_Row]] = defaultdict(list)
    for row in rows:
        key = row["reading"], row["setting"], row["keying"], row["pairs"], str(row["longer"])
        cells[key].append(row)
    tables: dict[str, list[_Row]] = {"keys": [], "keys_coverage": []}
    for (reading, *_), parts in cells.items():
        if reading == "coverage":
            tables["keys_coverage"].append(_coverage_row(parts))
        else:
            tables["keys"] += [_metric_row(parts, metric) for metric in METRICS]
    return tables


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pairs:
    """Factuals, their twins and controls, one entry a pair."""

    factual: np.ndarray
    twin: np.ndarray
    control: np.ndarray
    is_equal: np.ndarray
    longer: np.ndarray
    later: np.ndarray  # equal later turns, and all of them (pair, 2)
    fresh: np.ndarray  # the same of the control


def _played(setting: Setting, keying: str, seed: int) -> _Pairs:
    world = Tokens(dataclasses.replace(setting.world, keying=KEYINGS[keying]), seed=seed)
    episodes = world.play(world.tasks(setting.num_pairs // _ROLLOUTS), _ROLLOUTS, step=0)
    coupling: Any = "maximal" if keying == "maximal" else "gumbel"
    twins = world.fork([Fork(episode, 0, coupling=coupling) for episode in episodes])
    controls = world.fork([Fork(episode, 0, luck=FRESH) for episode in episodes])
    tokens = [[e.turns[0].num_tokens for e in played] for played in (episodes, twins)]
    return _Pairs(
        factual=_outcomes(episodes),
        twin=_outcomes(twins),
        control=_outcomes(controls),
        is_equal=np.array([is_equal_decision(twin) for twin in twins]),
        longer=np.clip(np.subtract(tokens[1], tokens[0]), -FURTHEST, FURTHEST),
        later=np.array([_later(*pair) for pair in zip(episodes, twins, strict=True)]),
        fresh=np.array([_later(*pair) for pair in zip(episodes, controls, strict=True)]),
    )


def _outcomes(episodes: Sequence[Episode]) -> np.ndarray:
    return np.array([episode.outcome for episode in episodes])


def _later(factual: Episode, twin: Episode) -> tuple[int, int]:
    """Later turns that are the same token by token, and how many either world has."""
    said = [[turn.action for turn in episode.turns[1:]] for episode in (factual, twin)]
    same = sum(one == other for one, other in zip(*said, strict=False))
    return same, max(map(len, said))


def _coupling(found: _Pairs) -> list[_Row]:
    """Sums over all pairs, and over those of unequal decisions by length."""
    everything = np.ones(len(found.factual), bool)
    cells: list[tuple[str, int | None, np.ndarray]] = [
        ("all", None, everything),
        ("different", None, ~found.is_equal),
    ]
    for longer in range(-FURTHEST, FURTHEST + 1):
        cells.append(("different", longer, ~found.is_equal & (found.longer == longer)))
    return [
        _EMPTY | {"reading": "coupling", "pairs": pairs, "longer": longer} | _sums(found, chosen)
        for pairs, longer, chosen in cells
    ]


def _sums(found: _Pairs, chosen: np.ndarray) -> dict[str, float]:
    factual, twin = found.factual[chosen], found.twin[chosen]
    fresh = (factual - found.control[chosen]) ** 2
    sums = {
        "later_equal": found.later[chosen, 0],
        "later_turns": found.later[chosen, 1],
        "fresh_equal": found.fresh[chosen, 0],
        "fresh_turns": found.fresh[chosen, 1],
        "sum_factual": factual,
        "sum_twin": twin,
        "square_factual": factual**2,
        "square_twin": twin**2,
        "product": factual * twin,
        "square_shared": (factual - twin) ** 2,
        "square_fresh": fresh,
        "square_fresh_deduplicated": fresh * ~found.is_equal[chosen],
    }
    counts = {"num_pairs": float(chosen.sum())}
    return counts | {name: float(values.sum()) for name, values in sums.items()}


def _coverage(setting: Setting, found: _Pairs) -> _Row:
    """How often 95% intervals of samples of consecutive rows hold the exact effect, 0."""
    size, together = setting.sample_size, setting.world.colliding
    rows = np.arange(len(found.factual)).reshape(-1, size)
    plain = [paired(found.factual[own], found.twin[own]) for own in rows]
    clustered = [
        paired(found.factual[own], found.twin[own], cluster=own // together) for own in rows
    ]
    return _EMPTY | {
        "reading": "coverage",
        "pairs": "all",
        "num_pairs": float(size),
        "num_samples": float(len(rows)),
        "covered": _covered(plain),
        "covered_clustered": _covered(clustered),
        "sum_stderr": float(sum(result.stderr or 0.0 for result in plain)),
        "sum_stderr_clustered": float(sum(result.stderr or 0.0 for result in clustered)),
        "square_estimate": float(sum((result.estimate or 0.0) ** 2 for result in plain)),
    }


def _covered(results: Sequence[PairedResult]) -> float:
    ends = [result.confidence_interval() for result in results]
    return float(sum(end is not None and end[0] <= 0.0 <= end[1] for end in ends))


_EMPTY: _Row = dict.fromkeys(
    (
        "reading",
        "pairs",
        "longer",
        "num_pairs",
        "later_turns",
        "later_equal",
        "fresh_turns",
        "fresh_equal",
        "sum_factual",
        "sum_twin",
        "square_factual",
        "square_twin",
        "product",
        "square_shared",
        "square_fresh",
        "square_fresh_deduplicated",
        "num_samples",
        "covered",
        "covered_clustered",
        "sum_stderr",
        "sum_stderr_clustered",
        "square_estimate",
    )
)


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _rho_eff(sums: _Sums) -> float | None:
    n = sums["num_pairs"]
    if n < 2:
        return None
    covariance = sums["product"] - sums["sum_factual"] * sums["sum_twin"] / n
    spread = sum(sums[f"square_{one}"] - sums[f"sum_{one}"] ** 2 / n for one in ("factual", "twin"))
    return _ratio(2 * covariance, spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metric:
    """A ratio of sums and its range; what has no upper end has its interval in logarithms."""

    of: Callable[[_Sums], float | None]
    low: float = 0.0
    high: float = math.inf


METRICS = {
    "later_equal": _Metric(of=lambda s: _ratio(s["later_equal"], s["later_turns"]), high=1.0),
    "later_equal_fresh": _Metric(of=lambda s: _ratio(s["fresh_equal"], s["fresh_turns"]), high=1.0),
    "rho_eff": _Metric(of=_rho_eff, low=-1.0, high=1.0),
    "gain": _Metric(of=lambda s: _ratio(s["square_fresh"], s["square_shared"])),
    "gain_deduplicated": _Metric(
        of=lambda s: _ratio(s["square_fresh_deduplicated"], s["square_shared"])
    ),
}


def _metric_row(parts: Sequence[_Row], name: str) -> _Row:
    """A metric of the pooled sums; its interval from leaving out one seed at a time."""
    metric = METRICS[name]
    sums = [column for column, value in parts[0].items() if isinstance(value, float)]
    total = {column: sum(part[column] for part in parts) for column in sums}
    value = metric.of(total)
    left = [metric.of({c: total[c] - part[c] for c in sums}) for part in parts]
    ends, reason = None, None
    if value is None:
        reason = "no pair, or nothing that varies"
    elif len(parts) < 2:
        reason = "one seed has no interval"
    elif any(one is None or (one <= 0 and metric.high == math.inf) for one in left):
        reason = "what varies does so in one seed alone"
    else:
        ends = _jackknife(metric, value, [one for one in left if one is not None])
    return {column: parts[0][column] for column in _KNOWN} | {
        "num_pairs": int(total["num_pairs"]),
        "metric": name,
        "value": value,
        "low": None if ends is None else ends[0],
        "high": None if ends is None else ends[1],
        "num_seeds": len(parts),
        "reason": reason,
    }


_KNOWN = ("setting", "vocabulary", "keying", "pairs", "longer")


def _jackknife(metric: _Metric, value: float, left: Sequence[float]) -> tuple[float, float]:
    """Value -+ t * stderr, from the values without one seed each; ratios in logarithms."""
    is_log = metric.high == math.inf
    spread = np.var(np.log(left) if is_log else left)
    half = float(stdtrit(len(left) - 1, 0.975) * math.sqrt((len(left) - 1) * spread))
    if is_log:
        return value * math.exp(-half), value * math.exp(half)
    return max(metric.low, value - half), min(metric.high, value + half)


def _coverage_row(parts: Sequence[_Row]) -> _Row:
    number = int(sum(part["num_samples"] for part in parts))
    row = {name: parts[0][name] for name in _KNOWN[:3]} | {
        "num_pairs": int(parts[0]["num_pairs"]),
        "num_samples": number,
        "deviation": math.sqrt(sum(part["square_estimate"] for part in parts) / number),
    }
    for kind in ("", "_clustered"):
        covered = int(sum(part[f"covered{kind}"] for part in parts))
        ends = binomtest(covered, number).proportion_ci()
        row |= {
            f"stderr{kind}": sum(part[f"sum_stderr{kind}"] for part in parts) / number,
            f"coverage{kind}": covered / number,
            f"coverage{kind}_low": float(ends.low),
            f"coverage{kind}_high": float(ends.high),
        }
    return row
