"""Rules that predict gains, fitted on half of the settings and tested on the rest.

Leaves out the gains themselves (`gain`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from statsmodels.regression.linear_model import OLS

from twinstats.noise import generator

PAYS_AT = (1.25, 1.5, 2.0)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """log(gain) = intercept + the sum over features of slope * feature.

    Attributes:
        name: What it is called.
        features: Those it uses.
        is_fitted: Whether its numbers are fitted; otherwise the slopes are 1, the intercept 0.
        target: The gain that it predicts.
    """

    name: str
    features: tuple[str, ...]
    is_fitted: bool = True
    target: str = "gain"


RULES = (
    Rule(name="no gain", features=(), is_fitted=False),
    Rule(name="untouched", features=("untouched",), is_fitted=False),
    Rule(name="untouched, from logs", features=("untouched_logged",), is_fitted=False),
    Rule(name="untouched, fitted", features=("untouched",)),
    Rule(name="tail", features=("tail",)),
    Rule(name="equal", features=("equal",)),
    Rule(name="tail and equal", features=("tail", "equal")),
    Rule(name="all three", features=("untouched", "tail", "equal")),
    Rule(name="equal decisions", features=("equal",), is_fitted=False, target="deduplication_gain"),
)
_TARGETS = {"gain": "coupling", "deduplication_gain": "deduplication"}
_FACTORS = ("median", "p90", "worst", "bias")
_SLOPES = ("untouched", "tail", "equal")
_SAID = {
    "predicted": "untouched",
    "predicted_logged": "untouched, from logs",
    "predicted_fitted": "untouched, fitted",
    "predicted_all": "all three",
}


def rule_tables(cells: Sequence[Row]) -> dict[str, list[Row]]:
    """The tables `gain`, `gain_rule` and `gain_threshold` (`gain` documents them)."""
    halves = _halves(cells)
    rows = [
        cell | {"half": halves[cell["setting"]] if cell["gain"] is not None else None}
        for cell in cells
    ]
    parts = [row for row in rows if row["half"] and row["part"] != "all"]
    learnt = [row for row in parts if row["half"] == "fit"]
    numbers = {rule.name: _numbers(rule, learnt) for rule in RULES}
    known = {rule.name: rule for rule in RULES}
    said = [
        row | {name: _predicted(known[rule], numbers[rule], row) for name, rule in _SAID.items()}
        for row in rows
    ]
    rules = [line for rule in RULES for line in _rule_rows(rule, numbers[rule.name], parts)]
    return {"gain": said, "gain_rule": rules, "gain_threshold": list(_threshold_rows(parts))}


def feature(name: str, row: Row) -> float | None:
    """What rules see of a cell; null where it is unknown, or 1 - untouched is 0.

    "untouched" and "untouched_logged": -log(1 - x); "tail": log(1 + tail); "equal":
    -log(1 - equal_share).
    """
    if name == "tail":
        return float(np.log1p(row["tail"]))
    share = row["equal_share" if name == "equal" else name]
    return -float(np.log1p(-share)) if share is not None and share < 1 else None


def _halves(cells: Sequence[Row]) -> dict[str, str]:
    """Half of each world's settings at random: all cells and seeds of a setting go together."""
    settings: dict[str, dict[str, None]] = {}
    for cell in cells:
        settings.setdefault(cell["world"], {})[cell["setting"]] = None
    found = {}
    for world, own in settings.items():
        order = generator(0, f"gain/halves/{world}").permutation(len(own))
        for place, name in zip(order.tolist(), own, strict=True):
            found[name] = "test" if place % 2 else "fit"
    return found


def _numbers(rule: Rule, rows: Sequence[Row]) -> tuple[float, ...] | None:
    """Intercept and slopes, by least squares of the logarithm; null where not determined."""
    if not rule.is_fitted:
        return (0.0, *(1.0 for _ in rule.features))
    seen = [(row, [feature(name, row) for name in rule.features]) for row in rows]
    known = [(row, own) for row, own in seen if None not in own]
    design = np.array([[1.0, *own] for _, own in known], float).reshape(-1, len(rule.features) + 1)
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    target = [np.log(row[rule.target]) for row, _ in known]
    return tuple(float(number) for number in OLS(target, design).fit().params)


def _predicted(rule: Rule, numbers: Sequence[float] | None, row: Row) -> float | None:
    if numbers is None or row[rule.target] is None:
        return None
    seen = [feature(name, row) for name in rule.features]
    terms = [slope * x for slope, x in zip(numbers[1:], seen, strict=True) if x is not None]
    return float(np.exp(numbers[0] + sum(terms))) if len(terms) == len(seen) else None


def _rule_rows(rule: Rule, numbers: Sequence[float] | None, parts: Sequence[Row]) -> Iterator[Row]:
    """How far a rule is off, in each half and world."""
    slopes: Row = {"intercept": None} | {f"slope_{name}": None for name in _SLOPES}
    if numbers is not None:
        names = ["intercept", *(f"slope_{name.removesuffix('_logged')}" for name in rule.features)]
        slopes |= dict(zip(names, numbers, strict=True))
    for half in ("fit", "test"):
        for world in ("every", *dict.fromkeys(row["world"] for row in parts)):
            own = [row for row in parts if row["half"] == half]
            own = [row for row in own if world in ("every", row["world"])]
            pairs = [(row, _predicted(rule, numbers, row)) for row in own]
            known = [(row, value) for row, value in pairs if value is not None]
            yield {
                "rule": rule.name,
                "target": _TARGETS[rule.target],
                "half": half,
                "world": world,
                "num_cells": len(known),
                "num_settings": len({row["setting"] for row, _ in known}),
                **_errors([row[rule.target] for row, _ in known], [value for _, value in known]),
                **slopes,
                "reason": "too few cells" if numbers is None or not known else None,
            }


def _errors(truth: Sequence[float], predicted: Sequence[float]) -> Row:
    if not truth:
        return dict.fromkeys(("r2", *(f"{name}_factor" for name in _FACTORS)))
    aim = np.log(truth)
    error = np.log(predicted) - aim
    spread = float(((aim - aim.mean()) ** 2).sum())
    off = np.exp(np.abs(error))
    return {
        "r2": 1 - float((error**2).sum()) / spread if spread > 0 else None,
        "median_factor": float(np.median(off)),
        "p90_factor": float(np.quantile(off, 0.9)),
        "worst_factor": float(off.max()),
        "bias_factor": float(np.exp(error.mean())),
    }


def _threshold_rows(parts: Sequence[Row]) -> Iterator[Row]:
    """Above which value of one number twins pay, and how often that is right."""
    for predictor in ("untouched", "untouched_logged", "tail", "equal_share"):
        known = [row for row in parts if row[predictor] is not None]
        for pays_at in PAYS_AT:
            threshold = _best_threshold(
                [row for row in known if row["half"] == "fit"], predictor, pays_at
            )
            for half in ("fit", "test"):
                own = [row for row in known if row["half"] == half]
                yield {
                    "predictor": predictor,
                    "pays_at": pays_at,
                    "threshold": threshold,
                    "half": half,
                    **_rates(own, predictor, threshold, pays_at),
                }


def _best_threshold(rows: Sequence[Row], predictor: str, pays_at: float) -> float | None:
    """The threshold with the largest sensitivity + specificity; null where one class is empty."""
    value = np.array([row[predictor] for row in rows])
    pays = np.array([row["gain"] >= pays_at for row in rows])
    if pays.all() or not pays.any():
        return None
    order = np.argsort(value, kind="stable")
    value, pays = value[order], pays[order]
    missed = np.concatenate([[0], np.cumsum(pays)]) / pays.sum()
    spared = np.concatenate([[0], np.cumsum(~pays)]) / (~pays).sum()
    cuts = np.concatenate([[value[0]], (value[1:] + value[:-1]) / 2, [value[-1]]])
    distinct = np.concatenate([[True], value[1:] > value[:-1], [False]])
    return float(cuts[np.where(distinct, spared - missed, -1.0).argmax()])


def _rates(
    rows: Sequence[Row], predictor: str, threshold: float | None, pays_at: float
) -> dict[str, float | int | None]:
    pays = [row for row in rows if row["gain"] >= pays_at]
    rest = [row for row in rows if row["gain"] < pays_at]
    is_known = threshold is not None
    hits = [row for row in pays if is_known and row[predictor] >= threshold]
    clear = [row for row in rest if is_known and row[predictor] < threshold]
    return {
        "num_pays": len(pays),
        "num_not": len(rest),
        "sensitivity": len(hits) / len(pays) if pays and is_known else None,
        "specificity": len(clear) / len(rest) if rest and is_known else None,
    }
