"""Small logs with known numbers, written as the trainer and the studies write theirs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from twinstats.records import Run, create_run, metric_rows


def train_run(
    folder: Path,
    *,
    method: str = "twice",
    seed: int = 0,
    steps: int = 6,
    recipe: str = "demo",
    parts: int = 4,
    texts: Mapping[str, str] | None = None,
    reward: str = "",
    exact: bool = True,
) -> Path:
    """A training run with metrics, pairs, credit and texts.

    A `reward` of its own pays 3 less than the task does; `exact`: the task tells exact match.
    """
    run = create_run(
        folder,
        command=f"twice train {recipe}",
        configuration={
            "recipe": recipe,
            "seed": seed,
            "reward": reward,
            "task": {"parts": parts},
            "credit": {"method": method, "twins": 1},
        },
        seed=seed,
        started="2026-01-01T00:00:00Z",
    )
    rng = np.random.default_rng([seed, len(method)])
    total = 0
    for step in range(steps + 1):
        values: dict[str, float | int | None] = {}
        if step % 3 == 0:
            right = 0.2 + 0.05 * step + 0.01 * seed
            values |= {"eval/num_questions_count": 200, "eval/total_tokens": total}
            if exact:
                values |= {"eval/exact_match_share": right, "eval/stderr_share": 0.03}
                write_scores(run, step, right)
            if reward:
                values |= {"eval/outcome_share": right - 3, "eval/outcome_stderr_share": 0.2}
        if step < steps:
            auxiliary = 500 if method in ("twice", "vine") else 0
            total += 1000 + auxiliary
            values |= {
                "train/outcome_share": 0.3 + 0.05 * step - 3 * bool(reward),
                "train/sampled_tokens": 1000,
                "train/auxiliary_tokens": auxiliary,
                "train/total_tokens": total,
                "pairs/equal_share": 0.5,
                "loss/policy_nats": None if step == 1 else 0.1,
                "time/step_seconds": 0.25,
            }
            if method == "twice":
                write_pairs(run, step, rng)
        run.write("metrics", step, metric_rows(step, values))
    if method == "twice":
        write_texts(run, texts or {})
    run.finish("2026-01-01T00:10:00Z")
    return folder


def write_scores(run: Run, step: int, value: float) -> None:
    """Scores of an evaluation over all its questions."""
    known = {"kind": "all", "group": "", "value": value}
    rows = [
        known | {"decoding": decoding, "metric": metric}
        for decoding in ("sampled", "greedy")
        for metric in ("exact_match", "f1")
    ]
    run.write("scores", step, rows)


def write_pairs(run: Run, step: int, rng: np.random.Generator, num: int = 24) -> None:
    """Twins, their controls and null twins: shared luck keeps most outcomes."""
    pairs, credit = [], []
    for row in range(num):
        factual, turn = f"{step}/{row}", row % 3
        outcome = float(rng.random() < 0.5)
        equal = bool(rng.random() < 0.4)
        twin = outcome if equal or rng.random() < 0.7 else 1.0 - outcome
        base = {
            "factual": factual,
            "task": f"task-{row % 12}",
            "turn": turn,
            "slot": turn,
            "alternative": 0,
            "factual_outcome": outcome,
            "same_tokens": equal,
        }
        name = f"{factual}/{turn}.0."
        pairs.append(
            base
            | {"kind": "twin", "twin": f"{name}shared.resample", "twin_outcome": twin}
            | {"equal": equal, "sampled": 10}
        )
        if row % 2 == 0:
            pairs.append(
                base
                | {"kind": "control", "twin": f"{name}fresh.resample", "sampled": 20}
                | {"twin_outcome": float(rng.random() < 0.5), "equal": equal}
            )
        if row % 8 == 0:
            pairs.append(
                base
                | {"kind": "null", "twin": f"{name}shared.keep", "twin_outcome": outcome}
                | {"equal": True, "same_tokens": True, "sampled": 30}
            )
        credit += [
            {"method": "twice", "episode": factual, "turn": t, "value": outcome - 0.25 * t}
            for t in range(4)
        ]
    run.write("pairs", step, pairs)
    run.write("credit", step, credit)


def write_texts(run: Run, said: Mapping[str, str]) -> None:
    """Texts of one factual and one twin that is forked at its turn 1, in a step of its own."""
    step = 90
    factual, twin = f"{step}/0", f"{step}/0/1.0.shared.resample"
    pair = {
        "kind": "twin",
        "factual": factual,
        "twin": twin,
        "task": said.get("task", "chad-neighbours"),
        "turn": 1,
        "slot": 1,
        "alternative": 0,
        "factual_outcome": 1.0,
        "twin_outcome": 0.0,
        "equal": False,
        "same_tokens": False,
        "sampled": 12,
    }
    run.write("pairs", step, [pair])
    values = [{"episode": factual, "turn": t, "value": 0.5 - t, "method": "twice"} for t in (0, 1)]
    run.write("credit", step, values)
    texts = [
        (factual, 0, "observation", said.get("question", "Currency of Chad's neighbours?")),
        (factual, 0, "action", "search neighbours of Chad"),
        (factual, 1, "observation", said.get("document", "Libya, Sudan, Niger")),
        (factual, 1, "action", said.get("action", "search currency of Libya")),
        (factual, 2, "observation", "Libya uses the Libyan dinar."),
        (factual, 2, "action", "answer dinar"),
        (twin, 1, "observation", said.get("document", "Libya, Sudan, Niger")),
        (twin, 1, "action", "search capital of Libya"),
        (twin, 2, "observation", "The capital of Libya is Tripoli."),
        (twin, 2, "action", "answer Tripoli"),
    ]
    names = ("episode", "turn", "role", "text")
    run.write("texts", step, [dict(zip(names, row, strict=True)) for row in texts])


def study_run(folder: Path, *, group_size: int = 1, **tables: list[dict]) -> Path:
    """A run of a study, with `group_size` episodes a task: each table's rows as step 0."""
    run = create_run(
        folder,
        command="twice simulate",
        configuration={"studies": sorted(tables), "oracle": {"group_size": group_size}},
        seed=1,
        started="2026-01-01T00:00:00Z",
    )
    for name, rows in tables.items():
        run.write(name, 0, rows)
    return folder


def complexity_rows(effects: tuple[float, ...] = (0.4, 0.1, 0.02, 0.004)) -> list[dict]:
    """Twins need 2 / effect pairs, independent rollouts 4 / effect**2."""
    rows = []
    for coupling, constant, power in (("shared", 2.0, 1), ("fresh", 4.0, 2)):
        for effect in effects:
            pairs = constant / effect**power
            base = {"setting": "smooth", "seed": 0, "regime": "smooth", "coupling": coupling}
            base |= {"effect": effect, "discordance": effect, "rollouts": 2 * pairs}
            rows += [
                base
                | {"reading": "power", "pairs": pairs, "stderr_log_pairs": None, "censored": 0.0},
                base
                | {"reading": "stopping", "pairs": pairs, "stderr_log_pairs": 0.1, "censored": 0.1},
            ]
    return rows


def fit_rows() -> list[dict]:
    """The exponents of `complexity_rows`."""
    return [
        {"regime": "smooth", "coupling": coupling, "reading": reading, "slope": slope}
        | {"low": slope - 0.1, "high": slope + 0.1, "num_points": 4}
        for coupling, slope in (("shared", -1.0), ("fresh", -2.0))
        for reading in ("power", "stopping")
    ]


def variance_rows() -> list[dict]:
    """One bandit setting whose two seeds measured .4 and .6, and a chain of two turns."""
    rows = []
    for seed, ratio in ((0, 0.4), (1, 0.6)):
        rows.append(_variance_row("smooth-1", seed, ratio, world="bandit", regime="smooth"))
        for turn in (0, 1):
            rows.append(_variance_row("chain-1", seed, ratio, world="chain", turn=turn))
    return rows


def _variance_row(setting: str, seed: int, ratio: float, **own: object) -> dict:
    gain = 1 / ratio
    row: dict = {"setting": setting, "seed": seed, "regime": None, "turn": None} | own
    row |= {"ratio": ratio, "ratio_low": ratio - 0.06, "ratio_high": ratio + 0.08}
    row |= {"predicted": 0.5, "num_pairs": 100, "equal_share": 0.25}
    for name, value in (("coupling_gain", gain), ("deduplicated_gain", gain - 0.5)):
        row |= {name: value, f"{name}_low": value - 0.3, f"{name}_high": value + 0.3}
    return row


def leaderboard_rows() -> list[dict]:
    """Two methods at two budgets; one error is not positive, one cosine undefined."""
    rows = []
    for method, scale, is_rebuilt in (("rloo", 1.2, False), ("twice", 0.5, True)):
        for budget in (1.0, 2.0):
            base = {"setting": "chain-8", "world": "chain", "method": method, "budget": budget}
            base |= {
                "horizon": 8,
                "density": 0.3,
                "num_seeds": 4,
                "reconstructed": is_rebuilt,
                "estimates_advantage": True,
                "reason": None,
            }
            mse = 0.0 if (method, budget) == ("rloo", 2.0) else scale / budget
            cosine = None if (method, budget) == ("rloo", 1.0) else 0.5
            rows += [
                base | {"metric": name, "value": mse, "low": mse * 0.8, "high": mse * 1.2}
                for name in ("mse", "mse_scaled")
            ]
            rows.append(base | {"metric": "cosine", "value": cosine, "low": 0.4, "high": 0.6})
    return rows


def leaderboard_tables() -> dict[str, list[dict]]:
    """The tables of the leaderboard; twice reaches vine's error, rloo does not."""
    known = {"setting": "chain-8", "world": "chain", "horizon": 8, "density": 0.3}
    tokens = []
    for metric in ("mse", "mse_scaled"):
        own = known | {"metric": metric, "is_bound": False, "reason": None}
        tokens.append(own | {"method": "twice", "ratio": 0.25, "low": 0.2, "high": None})
        tokens.append(own | {"method": "rloo", "ratio": None, "low": None, "high": None})
        tokens[-1]["reason"] = "not reached: its floor is above the target"
    difference = known | {"method": "rloo", "reference": "twice", "budget": 1.0}
    difference |= {"ratio": 2.4, "pvalue": 0.01, "pvalue_holm": 0.04}
    return {
        "leaderboard": leaderboard_rows(),
        "leaderboard_tokens": tokens,
        "leaderboard_differences": [difference],
        "leaderboard_split": split_rows(),
        "leaderboard_bias": bias_rows(),
    }


def split_rows() -> list[dict]:
    """Twins gain 2 by equal decisions and 3 by luck, from budget 2 on; tokens are not reached."""
    known = {"setting": "chain-8", "world": "chain", "horizon": 8, "density": 0.3}
    rows = []
    for quantity, budget, reason in (
        ("mse", 1.0, "independent_raw: starts at budget 1.9"),
        ("mse", 2.0, None),
        ("mse", 3.0, None),
        ("tokens", None, "twice: not reached"),
    ):
        row: dict = known | {"form": "twins", "quantity": quantity, "budget": budget}
        for part, factor in (("deduplication", 2.0), ("coupling", 3.0), ("both", 6.0)):
            value = None if reason else factor * (budget or 0) / 2
            row |= {part: value, f"{part}_low": value and value - 0.5}
            row |= {f"{part}_high": value and value + 0.5}
        rows.append(row | {"is_bound": False, "reason": reason})
    return rows


def bias_rows() -> list[dict]:
    """Of those that claim no bias, twice has shown it and independent has not; grpo claims none."""
    rows = []
    for method, wide, claimed in (
        ("independent", 0.3, True),
        ("twice", 0.1, True),
        ("grpo", 9, False),
    ):
        for place, width in (("all", wide / 2), ("0", wide)):
            row = {"setting": "chain-8", "world": "chain", "horizon": 8, "density": 0.3}
            row |= {"method": method, "reconstructed": method == "twice", "place": place}
            row |= {"bias": 0.01, "low": 0.01 - width, "high": 0.01 + width, "margin": 0.25}
            row |= {"equivalent": width < 0.24, "excludes_zero": False, "claimed": claimed}
            rows.append(row)
    return rows


def gain_rows() -> list[dict]:
    """A base and a longer horizon of two tables each: gains 2 and 8, then 4; and adverse bets."""
    rows = []
    for setting, dial, horizon, gains in (
        ("chain", "base", 10.0, (2.0, 8.0)),
        ("chain, horizon 20", "horizon", 20.0, (4.0, 4.0)),
    ):
        for seed, gain in enumerate(gains):
            half = "fit" if dial == "base" else "test"
            base = {"setting": setting, "world": "chain", "dial": dial, "horizon": horizon}
            base |= {"density": 0.5, "sharpness": 1.0, "luck": 0.5, "ends": 0.0, "half": half}
            base |= {"skill": None, "contrary": None, "seed": seed, "gain": gain}
            base |= {"raw_gain": 2 * gain, "predicted": gain / 2, "untouched": 1 - 2 / gain}
            base |= {"tail": 5.0, "equal_share": 0.5}
            rows += [base | {"part": part} for part in ("all", "opening")]
    blank = {"setting": "bets", "world": "bets", "part": "opening", "half": "test", "gain": 0.5}
    blank |= {"dial": "base", "contrary": 1.0, "raw_gain": 1.0, "predicted": 1.0, "untouched": 0.0}
    return [*rows, dict.fromkeys(rows[0]) | blank | {"seed": 0, "tail": 5.0, "equal_share": 0.5}]


def gain_rule_rows() -> list[dict]:
    """One rule, on both halves."""
    errors = {"r2": 0.9, "median_factor": 1.1, "p90_factor": 1.5, "worst_factor": 3.0}
    return [
        {"rule": "untouched", "target": "coupling", "half": half, "world": world} | errors
        for half in ("fit", "test")
        for world in ("every", "chain")
    ]


def learning_rows() -> list[dict]:
    """Returns at two budgets of three methods in two worlds; one return is null."""
    rows = []
    for setting, best, ends in (
        ("chain-8", 2.0, {"rloo": 0.8, "twice": 1.1, "ppo": 0.95, "grpo": None}),
        ("errand-8", 1.0, {"rloo": 0.6, "ppo": 0.8}),
    ):
        for method, end in ends.items():
            base = {"setting": setting, "world": setting.split("-")[0], "method": method}
            base |= {
                "best_return": best,
                "num_seeds": 3,
                "updates": 4.0,
                "auxiliary_share": 0.5,
                "step_size": 2.0,
                "is_edge": method == "twice",
                "estimates_advantage": True,
                "reconstructed": method == "twice",
                "helpers": "value" if method == "ppo" else None,
            }
            rows.append(base | {"budget": 100.0, "return": 0.5, "low": None, "high": None})
            low, high = (None, None) if end is None else (end - 0.1, end + 0.1)
            rows.append(base | {"budget": 200.0, "return": end, "low": low, "high": high})
    rows = [row | ({"return": None} if row["method"] == "grpo" else {}) for row in rows]
    return [row | {"reading": reading} for reading in ("end", "mean") for row in rows]


def all_studies(folder: Path, **tables: list[dict]) -> Path:
    """A run with the tables of all studies that figures are drawn from, and more."""
    return study_run(
        folder,
        complexity=complexity_rows(),
        complexity_fit=fit_rows(),
        variance=variance_rows(),
        gain=gain_rows(),
        gain_rule=gain_rule_rows(),
        **leaderboard_tables(),
        learning=learning_rows(),
        **tables,
    )
