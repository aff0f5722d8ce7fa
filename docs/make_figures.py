"""Draws the figures of docs/statistics.md: `python docs/make_figures.py`.

Every number in them is exact: expectations over a small joint law, and exact sample sizes.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from twinstats import paired, pairs_needed

FOLDER = Path(__file__).parent
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555")
EFFECTS = np.geomspace(0.2, 0.001, 24)

# Shared luck u: the factual succeeds if u < 0.6, the twin if u < 0.5. The effect is 0.1.
FACTUAL, TWIN = np.array([1, 1, 0]), np.array([1, 0, 0])
MASS = np.array([0.5, 0.1, 0.4])


def expected_estimate(chance: np.ndarray, *, is_weighted: bool = False) -> float:
    """What `paired` comes to over very many twins that are chosen with these chances."""
    weights = MASS * chance / chance if is_weighted else MASS * chance
    return float(paired(FACTUAL, TWIN, weights=weights).estimate or 0.0)


def law_one(ratios: np.ndarray) -> dict[str, list[float]]:
    """The expected estimate against how many times as likely a pair is to be chosen."""
    one = np.ones(3)
    by_outcome = [np.where(FACTUAL == 0, ratio, one) for ratio in ratios]
    by_length = [np.where(FACTUAL != TWIN, ratio, one) for ratio in ratios]
    return {
        "by length (long where the decision mattered)": [expected_estimate(x) for x in by_length],
        "by outcome (failures more often)": [expected_estimate(x) for x in by_outcome],
        "by outcome, weighted by 1 / chance": [
            expected_estimate(x, is_weighted=True) for x in by_outcome
        ],
        "by history (nothing of this episode's luck)": [
            expected_estimate(ratio * one) for ratio in ratios
        ],
    }


def law_two() -> dict[str, list[int]]:
    """Exact pairs needed (power 0.8, level 0.05) in each regime, by effect."""
    regimes = {
        "independent pairs, rate 1/2": lambda effect: (1 - effect**2) / 2,
        "cancelling: discordance stays 0.2": lambda effect: np.full_like(effect, 0.2),
        "random grader: effect + 0.02": lambda effect: effect + 0.02,
        "discordance = 2 effect": lambda effect: 2 * effect,
        "discordance = effect": lambda effect: effect,
    }
    return {
        name: [
            pairs_needed(effect, discordance=min(discordance, 1.0))
            for effect, discordance in zip(EFFECTS, law(EFFECTS), strict=True)
        ]
        for name, law in regimes.items()
    }


def draw_law_one(axes: Axes) -> None:
    """Bias of the estimate, by what decided which pairs are made."""
    ratios = np.geomspace(1, 16, 33)
    styles = ("-", "-", "-", (0, (4, 4)))
    for colour, style, (name, values) in zip(
        COLOURS, styles, law_one(ratios).items(), strict=False
    ):
        axes.plot(ratios, values, color=colour, linestyle=style, linewidth=2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.set_xlabel("how many times as likely the favoured episodes are to get a twin")
    axes.axhline(0.1, color="black", linewidth=0.8, zorder=0)
    axes.set_ylabel("expected estimate (truth 0.1)")
    axes.set_ylim(0, None)
    axes.legend(frameon=False, title="twins chosen", alignment="left")


def draw_law_two(axes: Axes) -> None:
    """Pairs needed against the effect, log-log, one line a regime."""
    for colour, (name, pairs) in zip(COLOURS[::-1], law_two().items(), strict=True):
        axes.plot(EFFECTS, pairs, color=colour, linewidth=2, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.invert_xaxis()
    axes.set_xticks([0.2, 0.1, 0.01, 0.001], ["0.2", "0.1", "0.01", "0.001"])
    axes.minorticks_off()
    axes.set_xlabel("effect (smaller to the right)")
    axes.set_ylabel("pairs needed, exact McNemar, power 0.8")
    axes.legend(frameon=False)


def main() -> None:
    """Writes both figures next to the page."""
    for name, draw in (("law_one", draw_law_one), ("law_two", draw_law_two)):
        figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        draw(axes)
        figure.savefig(FOLDER / f"{name}.png", dpi=150, metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
