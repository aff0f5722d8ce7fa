"""What breaks the replay of twins: the floor of null twins, and the coupling gain that is left.

Leaves out what the gain is worth where the replay is exact (`twins`, `oracle`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper import coupling, logs, oracle, style
from paper.figures.variance import FEWEST_CONTROLS
from twinstats import logged_pairs

NEEDS = ("oracle_floor",)
COMMAND = "twice oracle RECIPE --floor --out runs/floor"

MOST_ROWS = 4
PANELS = {
    "floor": "mean squared difference\nof outcomes",
    "differing": "null twins that drew\nother tokens, share",
    "deduplicated": "coupling gain,\ndeduplicated",
}
"""The series with a panel; "pairs" stands beside "floor", "raw" is in the table only."""

SCHEMA = {
    "setting": pl.String,
    "outcome": pl.String,
    "variant": pl.String,
    "series": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "is_bound": pl.Boolean,
    "num_pairs": pl.Int64,
    "num_episodes": pl.Int64,
    "num_failed": pl.Int64,
    "equal_share": pl.Float64,
}

_SPREAD = 0.8  # of a variant's outcomes together, in distances between variants
_POINT = {"ls": "", "elinewidth": 0.9, "capsize": 1.5, "markersize": 4}
_FAINT = "#c4c4c4"  # bounds, which are long where nothing was seen
_PAIRS = "twins (left)"
_PAIRS_LOOK = {"color": style.MUTED, "alpha": 0.6, "label": _PAIRS}


def table(runs: Sequence[Path]) -> pl.DataFrame:
    """Rows of each setting, outcome and variant, with 95% intervals clustered by episode.

    `series` "floor": E[(F - N)^2] of factuals F and their null twins N. "pairs": E[(F - T)^2] of
    factuals and their twins T, of which the floor is a part. "differing": the share of null twins
    that drew other tokens, or failed. "logprob": how far the log-probability of one of their tokens
    is from the factual's at most, nats, before any token differs. "raw" and "deduplicated": the
    coupling gain of the twins, null where undefined, left out with fewer than 20 pairs that have a
    control. `num_failed` counts the null twins or the twins that have no outcome, `equal_share` the
    decisions that came out equal.

    Where none of n episodes shows a difference, `is_bound` is true and `high` is the exact 95%
    bound on the share of episodes that do, 1 - .05^(1 / n), about 3 / n (the rule of three; one
    episode's forks are not independent, so its n is not theirs). With outcomes in 0..1 it bounds
    a mean square too.

    Raises:
        MissingLogs: The study was not run, or has no null twin.
    """
    forks = oracle.read(runs, "oracle_floor")
    rows: list[dict[str, Any]] = []
    if forks is not None:
        key = [*oracle.PLACE, "variant"]
        for names, own in forks.group_by(key, maintain_order=True):
            known = dict(zip(key, map(str, names), strict=True))
            found = (*_squares(own), *_logprobs(own), *_gains(own))
            rows += [known | row for row in found]
    if not any(row["series"] == "differing" for row in rows):
        raise logs.missing("floor", NEEDS, runs, COMMAND, rows="null twin")
    return pl.DataFrame(rows, schema=SCHEMA)


def _squares(forks: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Mean squares over null twins and over twins, and the share of null twins that differ."""
    nulls, twins = forks.filter(kind="null"), forks.filter(kind="twin")
    same = pl.col("same_tokens").cast(pl.Boolean).fill_null(False).cast(pl.Float64)
    asked = {
        "floor": nulls,
        "pairs": twins,
        "differing": nulls.with_columns(factual=pl.lit(1.0), fork=same),
    }
    for series, own in asked.items():
        played = own.drop_nulls("fork")
        if not played.is_empty():
            failed = {"num_failed": (twins if series == "pairs" else nulls)["fork"].null_count()}
            equal = {"equal_share": played["equal"].cast(pl.Float64).mean()}
            yield {"series": series} | failed | equal | oracle.mean_square(played)


def _logprobs(forks: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The largest gap of log-probabilities; no interval, as it is a maximum."""
    told = forks.filter(kind="null").drop_nulls("logprob_gap")
    if not told.is_empty():
        counts = {"num_pairs": len(told), "num_episodes": told.n_unique(["run", "episode"])}
        gap = {"value": told["logprob_gap"].cast(pl.Float64).max(), "is_bound": False}
        yield {"series": "logprob"} | counts | gap


def _gains(forks: pl.DataFrame) -> Iterator[dict[str, Any]]:
    pairs = oracle.beside_controls(forks, "twin")
    if pairs["control_outcome"].count() < FEWEST_CONTROLS:
        return
    account = logged_pairs.account(pairs)
    assert account is not None
    counts = {
        "num_pairs": pairs["control_outcome"].count(),
        "num_episodes": account.num_clusters,
        "num_failed": forks.filter(kind="twin")["fork"].null_count(),
        "equal_share": account.equal_share,
        "is_bound": False,
    }
    for series, gain in coupling.gains(account).items():
        yield counts | gain | {"series": series}


@style.styled
def draw(table: pl.DataFrame) -> Figure:
    """A row of panels a setting, a line a variant: floor, null twins that differ, gain."""
    settings = _settings(table)[:MOST_ROWS]
    most = max(len(_variants(table, setting)) for setting in settings)
    figure, rows = style.grid(len(settings), len(PANELS), height=0.9 + 0.36 * most)
    looks = style.looks(table["outcome"].unique(maintain_order=True).to_list())
    for panels, setting in zip(rows, settings, strict=True):
        own, variants = table.filter(setting=setting), _variants(table, setting)
        for panel, series in zip(panels, PANELS, strict=True):
            _draw_panel(panel, own, series, variants, looks)
        panels[0].set_yticks(range(len(variants)), variants)
        panels[0].set_ylabel(setting)
    for panel, text in zip(rows[-1], PANELS.values(), strict=True):
        panel.set_xlabel(text)
    style.shared_legend(figure, [panel for row in rows for panel in row], last=_PAIRS)
    return figure


def _settings(table: pl.DataFrame) -> list[str]:
    return table["setting"].unique(maintain_order=True).to_list()


def _variants(table: pl.DataFrame, setting: str) -> list[str]:
    return table.filter(setting=setting)["variant"].unique(maintain_order=True).to_list()


def _draw_panel(
    panel: Axes,
    table: pl.DataFrame,
    series: str,
    variants: Sequence[str],
    looks: dict[str, dict[str, Any]],
) -> None:
    """A line a variant from the top, with its outcomes a little beside each other.

    Twins have a line of their own under that of their floor: bounds are long.
    """
    panel.set_yticks(range(len(variants)), [""] * len(variants))
    panel.set_ylim(len(variants) - 0.5, -0.5)
    outcomes = [name for name in looks if len(table.filter(outcome=name))]
    shown = outcomes if series != "differing" else outcomes[:1]  # tokens are the same in all
    apart, below = _SPREAD / len(shown), 0.0
    if series == "floor":
        below = apart / 2
    for index, outcome in enumerate(shown):
        aside = apart * (index - (len(shown) - 1) / 2) - below / 2
        lines = {name: line + aside for line, name in enumerate(variants)}
        own = table.filter(outcome=outcome).drop_nulls("value")
        look = looks[outcome] | {"label": outcome}
        if series == "floor":
            under = {name: line + below for name, line in lines.items()}
            _draw_points(panel, own.filter(series="pairs"), under, look | _PAIRS_LOOK)
        if series == "differing":
            look = {"color": style.MUTED, "marker": "s"}
        _draw_points(panel, own.filter(series=series), lines, look)
    if series == "deduplicated":
        panel.axvline(1, color=style.MUTED, lw=0.8, ls="--")
    panel.set_xlim(left=0)


def _draw_points(
    panel: Axes, rows: pl.DataFrame, lines: dict[str, float], look: dict[str, Any]
) -> None:
    """Points with their intervals; hollow where nothing differed, with the bar up to the bound."""
    for row in rows.to_dicts():
        low, high = (row["value"] if row[end] is None else row[end] for end in ("low", "high"))
        bar = [[max(row["value"] - low, 0)], [max(high - row["value"], 0)]]
        fill = {"markerfacecolor": "white", "ecolor": _FAINT} if row["is_bound"] else {}
        shown: dict[str, Any] = _POINT | look | fill
        drawn = panel.errorbar(row["value"], lines[row["variant"]], xerr=bar, **shown)
        drawn[0].set_clip_on(False)  # half of a marker at 0 is outside


def caption(table: pl.DataFrame) -> str:
    """What the panels show, how much they rest on, and what nothing was seen of."""
    bounds = table.filter(pl.col("is_bound") & (pl.col("series") == "differing"))
    text = (
        "Replays of the same tasks that are exact, in bfloat16 (what a token is batched with moves "
        "its law, and forks are batched otherwise than their factuals), retokenised (forks go on "
        "from ids encoded anew from text), and with a search that is randomly off by one, whose "
        "luck twins share (keyed) or not. Left: mean squared difference of outcome between "
        "factuals and their null twins (same decision, same luck: the floor), and twins, of which "
        "the floor is a part. Middle: null twins that drew other tokens. Right: what shared luck "
        "saves, equal decisions counting as difference 0 for fresh luck. Every fork plays its own "
        "tail. Bars: 95% intervals clustered by episode."
    )
    if len(bounds):
        text += (
            " Hollow: no difference was seen; the pale bar ends at the exact 95% bound on the "
            "share of episodes with one (1 - .05^(1/n), about 3 / n: the rule of three)."
        )
    return text + "".join(_counts(table, setting) for setting in _settings(table)) + _lost(table)


def _counts(table: pl.DataFrame, setting: str) -> str:
    """Variant by variant: null twins, episodes, failures, and how far log-probabilities moved."""
    own = table.filter(setting=setting).unique(["variant", "series"], maintain_order=True)
    gaps = dict(own.filter(series="logprob").select("variant", "value").iter_rows())
    told = [
        f"{row['variant']} {row['num_pairs']} in {row['num_episodes']}"
        + (f", {row['num_failed']} failed" if row["num_failed"] else "")
        + (f", {gaps[row['variant']]:.2g} nats" if row["variant"] in gaps else "")
        for row in own.filter(series="differing").to_dicts()
    ]
    return (
        f" {setting}, null twins in episodes, and the most that the log-probability of a token "
        f"moved before any token differed: {'; '.join(told)}."
    )


def _lost(table: pl.DataFrame) -> str:
    """What is not drawn: settings without a place, and gains that are undefined."""
    lost = _settings(table)[MOST_ROWS:]
    undefined = table.filter((pl.col("series") == "deduplicated") & pl.col("value").is_null())
    text = f" In the table only: {'; '.join(lost)}." if lost else ""
    return text + (f" Undefined gains, not drawn: {len(undefined)}." if len(undefined) else "")
