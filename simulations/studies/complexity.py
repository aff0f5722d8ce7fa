"""How many pairs resolve an effect, as it shrinks: twin against independent, in every regime.

Two readings. "power": the pairs that give the exact test power .8 at level .05, from the known
law; no noise. "stopping": the median number of pairs at which the anytime-valid test stops, over
simulated sequences, where fewer than half of them hit the cap on discordant pairs.
The exponent is fitted with the known curvature of the variance, log(1 - effect^2 / discordance),
as an offset (continuous: log(1 - effect^2 / E[D^2])).

Table `complexity` (one row a setting, effect and reading): setting, seed, regime, coupling
(shared, fresh), reading, effect, discordance, square (E[D^2]), pairs, rollouts (2 * pairs),
stderr_log_pairs (null for "power"), censored (share of runs at the cap), num_runs.
Table `complexity_fit` (one row a regime, coupling and reading): regime, coupling, reading, slope,
low, high (95%), local_slope_largest, local_slope_smallest (between the two largest and the two
smallest effects), chi2_pvalue, num_points, smallest_effect, largest_effect, reason.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from simulations.worlds.bandit import REGIMES, BanditSetting, Regime, pair_law
from twinstats.complexity import fit_exponent
from twinstats.noise import generator
from twinstats.power import pairs_needed
from twinstats.sequential import log_wealth

TABLE = "complexity"
Curve = Regime | Literal["continuous"]
_ALPHA = 0.05
_CHUNK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A regime and a coupling over a range of effects.

    Attributes:
        name: What the setting is called.
        regime: One of the bandit's, or "continuous".
        coupling: Shared luck (twins) or fresh luck (independent pairs).
        num_effects: Effects between 0.25 and 2.5e-5, evenly spaced in their logarithm.
        num_runs: Simulated sequences an effect.
        cap: Discordant pairs after which a sequence is cut off.
    """

    name: str
    regime: Curve
    coupling: Literal["shared", "fresh"]
    num_effects: int = 13
    num_runs: int = 400
    cap: int = 20_000

    @property
    def effects(self) -> list[float]:
        """The effects, largest first."""
        return [float(e) for e in np.geomspace(0.25, 2.5e-5, self.num_effects)]


def _settings(**dials: Any) -> tuple[Setting, ...]:
    regimes: tuple[Curve, ...] = (*REGIMES, "continuous")
    couplings: tuple[Literal["shared", "fresh"], ...] = ("shared", "fresh")
    return tuple(
        Setting(name=f"{regime}, {coupling}", regime=regime, coupling=coupling, **dials)
        for regime in regimes
        for coupling in couplings
    )


SETTINGS = _settings(num_effects=17, num_runs=1000, cap=50_000)
QUICK = tuple(s for s in _settings(num_effects=5, num_runs=50, cap=2000) if s.regime == "smooth")
DEMO = _settings(num_effects=9, num_runs=200, cap=12_000)
SEEDS = {"full": 1, "quick": 1, "demo": 1}


def run(setting: Setting, seed: int) -> list[dict[str, Any]]:
    """Both readings at every effect of a regime and coupling."""
    rows = []
    for effect in setting.effects:
        law = pair_law(_world(setting.regime, effect), setting.coupling)
        square = law.variance_paired + effect**2
        known = {
            "setting": setting.name,
            "seed": seed,
            "regime": setting.regime,
            "coupling": setting.coupling,
            "effect": effect,
            "discordance": law.discordance,
            "square": square,
        }
        readings = [_power_reading(setting.regime, effect, law.discordance, square)]
        if setting.regime != "continuous":
            readings.append(_stopping_reading(setting, effect, law.discordance, seed))
        for reading in readings:
            pairs = reading["pairs"]
            rows.append(known | reading | {"rollouts": None if pairs is None else 2 * pairs})
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The table `complexity_fit`: an exponent for each regime, coupling and reading."""
    curves: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        curves[row["regime"], row["coupling"], row["reading"]].append(row)
    return {"complexity_fit": [_fit_row(key, curve) for key, curve in curves.items()]}


def stopping_pairs(
    rng: np.random.Generator, *, effect: float, discordance: float, num_runs: int, cap: int
) -> np.ndarray:
    """Pairs until the anytime test of "no effect" rejects; NaN where the cap came first.

    Ties leave the wealth alone, so only discordant pairs are drawn; the ties between them come in
    one negative binomial draw.
    """
    wins_share = (1 + effect / discordance) / 2
    wins, needed = np.zeros(num_runs, np.int64), np.full(num_runs, -1)
    level = -math.log(_ALPHA)
    for done in range(0, cap, _CHUNK):
        open_ = np.flatnonzero(needed < 0)
        if not len(open_):
            break
        signs = rng.random((len(open_), min(_CHUNK, cap - done))) < wins_share
        won = wins[open_, None] + signs.cumsum(axis=1)
        played = done + np.arange(1, signs.shape[1] + 1)
        stops = log_wealth(won, played - won) >= level
        hit = stops.any(axis=1)
        needed[open_[hit]] = played[stops[hit].argmax(axis=1)]
        wins[open_] = won[:, -1]
    finished = needed > 0
    pairs = np.full(num_runs, np.nan)
    pairs[finished] = needed[finished]
    if discordance < 1:
        pairs[finished] += rng.negative_binomial(needed[finished], discordance)
    return pairs


def _world(regime: Curve, effect: float) -> BanditSetting:
    if regime == "continuous":
        return BanditSetting(name=regime, effect=effect, spread=0.5)
    return BanditSetting(name=regime, regime=regime, effect=effect)


def _power_reading(regime: str, effect: float, discordance: float, square: float) -> dict[str, Any]:
    if regime == "continuous":
        pairs = pairs_needed(effect, sd=math.sqrt(square - effect**2), alpha=_ALPHA)
    else:
        pairs = pairs_needed(effect, discordance=discordance, alpha=_ALPHA)
    return {
        "reading": "power",
        "pairs": float(pairs),
        "stderr_log_pairs": None,
        "censored": 0.0,
        "num_runs": None,
    }


def _stopping_reading(
    setting: Setting, effect: float, discordance: float, seed: int
) -> dict[str, Any]:
    """Median and its standard error from the lower quantiles, which a cap leaves alone."""
    row: dict[str, Any] = {
        "reading": "stopping",
        "pairs": None,
        "stderr_log_pairs": None,
        "censored": 1.0,
        "num_runs": setting.num_runs,
    }
    if 10 * (discordance / effect) ** 2 > 4 * setting.cap:  # about ten times that many are needed
        return row
    rng = generator(seed, f"complexity/{setting.name}/{effect:.6e}")
    pairs = stopping_pairs(
        rng, effect=effect, discordance=discordance, num_runs=setting.num_runs, cap=setting.cap
    )
    censored = float(np.isnan(pairs).mean())
    if censored >= 0.5:
        return row | {"censored": censored}
    ranked = np.sort(np.where(np.isnan(pairs), np.inf, pairs))
    low, middle = (float(ranked[int(share * len(pairs))]) for share in (0.1587, 0.5))
    stderr = math.sqrt(math.pi / 2 / len(pairs)) * math.log(middle / low)
    return row | {"pairs": middle, "stderr_log_pairs": stderr, "censored": censored}


def _fit_row(key: tuple[str, str, str], curve: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kept = [row for row in curve if row["pairs"] is not None and row["censored"] < 0.5]
    kept.sort(key=lambda row: -row["effect"])
    effect = np.array([row["effect"] for row in kept])
    square = np.array([row["square"] for row in kept])
    is_noisy = key[2] == "stopping"
    fit = fit_exponent(
        effect,
        np.array([row["pairs"] for row in kept]),
        stderr=np.array([row["stderr_log_pairs"] for row in kept]) if is_noisy else None,
        censored=np.array([row["censored"] for row in kept]),
        offset=np.log1p(-(effect**2) / square),
    )
    reasons = list(fit.warnings)
    if len(kept) < len(curve):
        reasons.append(f"{len(curve) - len(kept)} smaller effects hit the cap and are left out.")
    low, high = fit.interval or (None, None)
    return {
        "regime": key[0],
        "coupling": key[1],
        "reading": key[2],
        "slope": fit.slope,
        "low": low,
        "high": high,
        "local_slope_largest": fit.local_slopes[0] if fit.local_slopes else None,
        "local_slope_smallest": fit.local_slopes[-1] if fit.local_slopes else None,
        "chi2_pvalue": fit.chi2_pvalue,
        "num_points": fit.num_points,
        "smallest_effect": float(effect.min()) if len(kept) else None,
        "largest_effect": float(effect.max()) if len(kept) else None,
        "reason": " ".join(reasons) or None,
    }
