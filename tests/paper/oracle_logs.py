"""Small logs of the oracle study with known numbers, as its tables are laid out."""

import numpy as np

OUTCOMES = ("exact_match", "f1")
SIZE = 0.04  # the mean squared advantage
NOISE = 0.01  # the reference's mean squared error
METHODS = {
    # mean squared error over SIZE, times auxiliary tokens over base tokens, and a floor
    "twice": (0.5, 0.02, (1, 3, 9)),
    "twice_maximal": (0.4, 0.02, (1, 3, 9)),
    "independent": (1.2, 0.02, (1, 3, 9)),
    "vine": (2.0, 0.0, (1, 3, 9)),
    "vine_coupled": (1.0, -0.15, (1, 3, 9)),
    "tree_grpo": (0.6, 0.5, (1, 3, 9)),
    "rloo": (0.9, 0.0, (8, 16)),
}


def points(settings=("facts", "text"), outcomes=OUTCOMES, num_batches=6):
    """Rows of `oracle_points`; errors are exact but for a factor a batch whose mean is 1."""
    return [
        _point(setting, outcome, batch, method, knob, 1 + 0.1 * (batch - (num_batches - 1) / 2))
        for setting in settings
        for outcome in outcomes
        for batch in range(num_batches)
        for method, (_, _, knobs) in METHODS.items()
        for knob in knobs
    ]


def _point(setting, outcome, batch, method, knob, factor):
    slope, floor, _ = METHODS[method]
    turns, base = 40.0, 1000.0
    auxiliary = 0.0 if method == "rloo" else base * knob * (3.0 if method == "vine" else 1.0)
    tokens = base * knob / 8 if method == "rloo" else base + auxiliary
    share = slope if method == "rloo" else slope * base / auxiliary + floor
    error = factor * share * SIZE * turns
    truth = (SIZE + NOISE) * turns
    cross = SIZE * turns  # credit = A + noise of its own
    return {
        "setting": setting,
        "outcome": outcome,
        "world": setting,
        "horizon": 8,
        "density": None,
        "seed": batch,
        "method": method,
        "knob": float(knob),
        "estimates_advantage": method != "tree_grpo",
        "reconstructed": method in ("twice", "twice_maximal", "tree_grpo"),
        "claims_unbiased": method in ("twice", "independent", "vine"),
        "reason": None,
        "tokens": tokens,
        "auxiliary_tokens": auxiliary,
        "base_tokens": base,
        "num_turns": turns,
        "num_groups": 1.0,
        "error": 0.0,
        "credit_square": error + 2 * cross - SIZE * turns,
        "credit_truth": cross,
        "truth_square": truth,
        "truth_noise": NOISE * turns,
        "error_square": error + NOISE * turns,
    }


def refused(settings=("facts", "text"), outcomes=OUTCOMES, num_batches=6):
    """Rows of a method that was not played, with the reason."""
    first = next(row for row in points(settings[:1], outcomes[:1], 1) if row["method"] == "rloo")
    numbers = [name for name, value in first.items() if isinstance(value, float)]
    blank = first | dict.fromkeys(numbers) | {"method": "spader", "reason": "it needs 'entities'"}
    return [
        blank | {"setting": setting, "world": setting, "outcome": outcome, "seed": batch}
        for setting in settings
        for outcome in outcomes
        for batch in range(num_batches)
    ]


def turns(settings=("facts", "text"), outcomes=OUTCOMES, num_episodes=6):
    """Rows of `oracle_turns`: references of size .2 whose noise is a fifth of their square.

    Steps of two episodes that end alike: in .25, .5, .25 and so on.
    """
    return [
        {
            "setting": setting,
            "outcome": outcome,
            "episode": f"{row // 2}/{row % 2}",
            "turn": turn,
            "slot": turn,
            "part": 0,
            "tail_tokens": 10 * (4 - turn),
            "factual": 0.5 if row // 2 % 2 else 0.25,
            "reference": 0.2 * (-1) ** row,
            "reference_stderr": 0.2 / np.sqrt(5),
            "num_rollouts": 64,
            "value": 0.5,
        }
        for setting in settings
        for outcome in outcomes
        for row in range(num_episodes)
        for turn in range(4)
    ]


def forks(settings=("facts", "text"), outcomes=OUTCOMES, num_episodes=30, seed=0):
    """Rows of `oracle_forks`: early forks leave much luck that twins share, late ones none.

    Half of the decisions are equal. A twin whose decision is another keeps its factual's outcome
    with probability .8 - .2 * turn more than a control does; a maximal one a little oftener.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for setting in settings:
        for row in range(num_episodes):
            for turn in range(4):
                for alternative in range(3):
                    rows += _decision(rng, setting, outcomes, row, turn, alternative)
                rows += _fork(rng, setting, outcomes, row, turn, "null", 0, True, 1.0)
    return rows


def _decision(rng, setting, outcomes, row, turn, alternative):
    equal = bool(rng.random() < 0.5)
    kept = {"twin": 0.8 - 0.2 * turn, "maximal": 0.9 - 0.2 * turn, "control": 0.0}
    return [
        fork
        for kind, share in kept.items()
        for fork in _fork(rng, setting, outcomes, row, turn, kind, alternative, equal, share)
    ]


def _fork(rng, setting, outcomes, row, turn, kind, alternative, equal, kept):
    factual = float(np.random.default_rng([row, 5]).random() < 0.5)  # of the episode
    same = (equal and kind != "control") or rng.random() < kept
    other = factual if same else float(rng.random() < 0.5)
    base = {
        "setting": setting,
        "episode": f"0/{row}",
        "turn": turn,
        "slot": turn,
        "tail_tokens": 10 * (4 - turn) + row % 5,
        "kind": kind,
        "alternative": alternative,
        "equal": equal,
        "tokens": 10 * (4 - turn),
        "first_differing": None if same else int(rng.integers(1, 9)),
        "agree_turns": None if turn == 3 else (1.0 if same else 0.25),
        "luck": "fresh" if kind == "control" else "shared",
    }
    return [base | {"outcome": outcome, "factual": factual, "fork": other} for outcome in outcomes]


def floor(outcomes=OUTCOMES, num_episodes=30):
    """Rows of `oracle_floor` of two variants: all null twins are exact, or every other one is not.

    Those that are not miss the factual's outcome by .5. Both have the same twins and controls.
    """
    own = [fork for fork in forks(("facts",), outcomes, num_episodes) if fork["kind"] != "maximal"]
    return [fork | _replay(fork, variant) for variant in ("exact", "noisy") for fork in own]


def _replay(fork, variant):
    row = int(fork["episode"].removeprefix("0/"))
    is_null = fork["kind"] == "null"
    same = fork["first_differing"] is None and not (is_null and variant == "noisy" and row % 2)
    gap = {"exact": 1e-6, "noisy": 0.02 * (1 + fork["turn"])}[variant]
    told = {"variant": variant, "same_tokens": same, "reason": None}
    if is_null:
        told |= {"logprob_gap": gap, "fork": fork["factual"] - (0.0 if same else 0.5)}
    return {"logprob_gap": None} | told


def tables(settings=("facts", "text"), outcomes=OUTCOMES, num_episodes=30):
    """All tables by name."""
    return {
        "oracle_points": points(settings, outcomes) + refused(settings, outcomes),
        "oracle_turns": turns(settings, outcomes),
        "oracle_forks": forks(settings, outcomes, num_episodes),
        "oracle_floor": floor(outcomes, num_episodes),
    }
