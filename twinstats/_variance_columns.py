"""The sums that an account of variance is made of: columns over pairs, statistics of their sums.

Every statistic is a function of (weighted) sums of columns, so that points and bootstrap draws
share one formula. Leaves out the draws themselves (`_variance_draws`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from twinstats._moments import centred
from twinstats._outcomes import Pairs, label_codes, outcome_array, rounding_of

Arrays = Mapping[str, np.ndarray]


def pair_column(name: str, values: Any, pairs: Pairs) -> tuple[np.ndarray, float]:
    """`values` for each pair asked for, NaN for null, and their relative rounding error.

    Raises:
        ValueError: Another shape, or something that is not a finite number or null.
    """
    array, rounding = outcome_array(name, values)
    num_rows = len(pairs.row) // pairs.num_twins
    shape = (num_rows,) if pairs.num_twins == 1 else (num_rows, pairs.num_twins)
    if array.shape != shape and array.shape != (num_rows, pairs.num_twins):
        raise ValueError(f"`{name}` must have the shape of `twin`, {shape}, got {array.shape}.")
    return array.ravel(), rounding


def equal_column(values: Any, pairs: Pairs) -> np.ndarray:
    """Whether the two decisions of each pair are equal: 1, 0 or NaN.

    Raises:
        ValueError: Something else, or the wrong shape.
    """
    column, _ = pair_column("equal", values, pairs)
    if not np.isin(column[~np.isnan(column)], (0.0, 1.0)).all():
        raise ValueError("`equal` must hold true, false or null.")
    return column


def fork_codes(fork: Any, luck: Any, pairs: Pairs) -> np.ndarray:
    """Fork of each row, after checking that no fork has one luck twice.

    Raises:
        ValueError: One of the two missing, K > 1 twins, or a (fork, luck) that repeats.
    """
    if fork is None or luck is None:
        raise ValueError("`fork` and `luck` must be given together.")
    if pairs.num_twins > 1:
        raise ValueError(f"`fork` needs one twin a factual, got {pairs.num_twins}.")
    forks = label_codes("fork", fork, len(pairs.row))
    lucks = label_codes("luck", luck, len(pairs.row))
    if len(np.unique(forks * (lucks.max() + 1) + lucks)) < len(forks):
        raise ValueError("`luck` must not repeat within a fork.")
    return forks


def base_columns(pairs: Pairs) -> dict[str, np.ndarray]:
    """Count, F, T, F - T about their means, their products, and F != T; 0 for failed pairs."""
    factual, twin = pairs.factual, pairs.twin
    share = np.full(len(factual), 1 / max(len(factual), 1))
    first = centred(factual, share, 4 * pairs.rounding[0] * np.abs(factual))
    second = centred(twin, share, 4 * pairs.rounding[1] * np.abs(twin))
    between = centred(factual - twin, share, rounding_of(factual, twin, pairs.rounding))
    columns = {
        "n": np.ones(len(factual)),
        "f": first,
        "t": second,
        "x": between,
        "ff": first**2,
        "tt": second**2,
        "ft": first * second,
        "xx": between**2,
        "differs": (factual != twin).astype(np.float64),
    }
    return {name: _spread(values, pairs.valid) for name, values in columns.items()}


def _spread(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    column = np.zeros(len(where))
    column[where] = values
    return column


def gain_columns(
    prefix: str,
    factual: np.ndarray,
    fresh_shared: tuple[np.ndarray, np.ndarray],
    errors: tuple[np.ndarray, np.ndarray],
) -> dict[str, np.ndarray]:
    """Columns of Var(fresh) / Var(shared) over the pairs in which both differences are known."""
    fresh, shared = fresh_shared
    where = ~(np.isnan(fresh) | np.isnan(shared))
    share = np.full(int(where.sum()), 1 / max(int(where.sum()), 1))
    level = centred(factual[where], share)
    left = centred(fresh[where], share, errors[0][where])
    right = centred(shared[where], share, errors[1][where])
    columns = {
        "n": np.ones(len(left)),
        "c": left,
        "cc": left**2,
        "s": right,
        "ss": right**2,
        "f": level,
        "fc": level * left,
        "fs": level * right,
    }
    return {f"{prefix}_{name}": _spread(values, where) for name, values in columns.items()}


def luck_columns(pairs: Pairs, forks: np.ndarray) -> dict[str, np.ndarray]:
    """Products of deviations from the mean of each fork, and its number of lucks less one."""
    codes = forks[pairs.valid]
    count = np.bincount(codes, minlength=int(forks.max()) + 1)[codes]
    deviations = []
    for values in (pairs.factual, pairs.twin):
        mean = np.bincount(codes, weights=values, minlength=int(forks.max()) + 1)[codes] / count
        deviation = values - mean
        noise = 8 * np.finfo(np.float64).eps * np.maximum(np.abs(values), np.abs(mean))
        deviations.append(np.where(np.abs(deviation) <= noise, 0.0, deviation))
    first, second = deviations
    columns = {
        "luck_degrees": 1 - 1 / count,
        "luck_ff": first**2,
        "luck_tt": second**2,
        "luck_ft": first * second,
    }
    return {name: _spread(values, pairs.valid) for name, values in columns.items()}


def mean_columns(prefix: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of a mean over the known `values`."""
    known = ~np.isnan(values)
    return {f"{prefix}_n": known.astype(np.float64), f"{prefix}_sum": np.where(known, values, 0.0)}


def statistics(sums: Arrays) -> dict[str, np.ndarray]:
    """All statistics that the columns allow; NaN or infinite where undefined.

    Variances divide by the sum of weights.
    """
    found: dict[str, np.ndarray] = {}
    with np.errstate(divide="ignore", invalid="ignore"):
        if "n" in sums:
            found |= _pair_statistics(sums)
        for prefix, name in (
            ("gain", "coupling_gain"),
            ("dedup", "coupling_gain_deduplicated"),
        ):
            if f"{prefix}_n" in sums:
                fresh = _variance(sums, f"{prefix}_n", f"{prefix}_c", f"{prefix}_cc")
                shared = _variance(sums, f"{prefix}_n", f"{prefix}_s", f"{prefix}_ss")
                found[name] = fresh / shared
        if "gain_n" in sums:
            found["rho_prefix"] = 1 - _covariance(sums, "s") / _covariance(sums, "c")
        if "luck_ff" in sums:
            first, second, both = sums["luck_ff"], sums["luck_tt"], sums["luck_ft"]
            found["rho_luck"] = _clipped(both / np.sqrt(first * second))
            found["noise_gain"] = 1 / (1 - 2 * both / (first + second))
        for name in ("floor", "equal_share"):
            if f"{name}_n" in sums:
                found[name] = sums[f"{name}_sum"] / sums[f"{name}_n"]
    return found


def _pair_statistics(sums: Arrays) -> dict[str, np.ndarray]:
    count = sums["n"]
    first, second = _variance(sums, "n", "f", "ff"), _variance(sums, "n", "t", "tt")
    covariance = sums["ft"] / count - (sums["f"] / count) * (sums["t"] / count)
    paired = _variance(sums, "n", "x", "xx")
    return {
        "variance_factual": first,
        "variance_twin": second,
        "covariance": covariance,
        "variance_paired": paired,
        "variance_independent": first + second,
        "rho": _clipped(covariance / np.sqrt(first * second)),
        "rho_eff": 1 - paired / (first + second),
        "discordance": sums["differs"] / count,
    }


def _variance(sums: Arrays, count: str, linear: str, square: str) -> np.ndarray:
    mean = sums[linear] / sums[count]
    return np.maximum(sums[square] / sums[count] - mean**2, 0.0)


def _covariance(sums: Arrays, difference: str) -> np.ndarray:
    """Of the factual with a difference over the pairs with a control."""
    count = sums["gain_n"]
    product = (sums["gain_f"] / count) * (sums[f"gain_{difference}"] / count)
    return np.asarray(sums[f"gain_f{difference}"] / count - product)


def _clipped(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(values, -1.0, 1.0))
