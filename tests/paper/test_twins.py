import numpy as np
import polars as pl
import pytest

from paper import logs
from paper.figures import twins
from tests.paper import oracle_logs, synthetic
from twinstats.variance import variance_account

FORKS = oracle_logs.forks(("facts",), ("f1", "exact_match"), num_episodes=20)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("twins") / "run"
    return twins.table([synthetic.study_run(folder, oracle_forks=FORKS)])


def of(kind, keep, outcome="f1"):
    """The forks of a kind that `keep` takes, and the controls of the same decisions."""
    own = [f for f in FORKS if f["kind"] == kind and f["outcome"] == outcome and keep(f)]
    fresh = {
        (f["episode"], f["turn"], f["alternative"]): f["fork"]
        for f in FORKS
        if f["kind"] == "control"
    }
    return own, [fresh[f["episode"], f["turn"], f["alternative"]] for f in own]


def account(kind, keep):
    own, control = of(kind, keep)
    return variance_account(
        [f["factual"] for f in own],
        [f["fork"] for f in own],
        control=control,
        equal=[f["equal"] for f in own],
        cluster=[f["episode"] for f in own],
    )


def cell(table, **where):
    (row,) = table.filter(outcome="f1", **where).to_dicts()
    return row


@pytest.mark.parametrize("kind", twins.KINDS)
def test_gains_by_turn_are_accounts_clustered_by_task(table, kind):
    found = account(kind, lambda fork: fork["slot"] == 1)
    raw = cell(table, panel="slot", kind=kind, series="raw", place=1.0)
    dedup = cell(table, panel="slot", kind=kind, series="deduplicated", place=1.0)
    assert raw["value"] == pytest.approx(found.coupling_gain)
    assert dedup["value"] == pytest.approx(found.coupling_gain_deduplicated)
    assert (raw["low"], raw["high"]) == pytest.approx(found.intervals["coupling_gain"])
    assert raw["num_pairs"] == 20 * 3 and raw["equal_share"] == found.equal_share
    assert (raw["equal_low"], raw["equal_high"]) == pytest.approx(found.intervals["equal_share"])
    assert raw["value"] > dedup["value"]


def test_episodes_of_a_group_are_one_task(table, tmp_path):
    """Rows of a step go task by task: 0..3 are of one task, 4..7 of the next."""
    run = synthetic.study_run(tmp_path / "run", group_size=4, oracle_forks=FORKS)
    own, control = of("twin", lambda fork: fork["slot"] == 1)
    found = variance_account(
        [f["factual"] for f in own],
        [f["fork"] for f in own],
        control=control,
        equal=[f["equal"] for f in own],
        cluster=[int(f["episode"].removeprefix("0/")) // 4 for f in own],
    )
    raw = {"panel": "slot", "kind": "twin", "series": "raw", "place": 1.0}
    row = cell(twins.table([run]), **raw)
    assert (row["low"], row["high"]) == pytest.approx(found.intervals["coupling_gain"])
    assert (row["equal_low"], row["equal_high"]) == pytest.approx(found.intervals["equal_share"])
    assert row["value"] == pytest.approx(cell(table, **raw)["value"])


def test_tails_are_in_quarters(table):
    lengths = [f["tail_tokens"] for f in of("twin", lambda fork: True)[0]]
    edge = np.quantile(lengths, 0.25)
    shortest = [length for length in lengths if length <= edge]
    row = cell(table, panel="tail", kind="twin", series="raw", place=float(np.median(shortest)))
    found = account("twin", lambda fork: fork["tail_tokens"] <= edge)
    assert row["num_pairs"] == len(shortest)
    assert row["value"] == pytest.approx(found.coupling_gain)


def test_the_share_of_equal_decisions_is_that_of_the_other_alternatives(table):
    """A share with the pair's own decision in it would choose pairs by what is measured."""
    own = of("twin", lambda fork: True)[0]
    others = {
        (f["episode"], f["turn"], f["alternative"]): np.mean(
            [
                g["equal"]
                for g in own
                if (g["episode"], g["turn"]) == (f["episode"], f["turn"])
                and g["alternative"] != f["alternative"]
            ]
        )
        for f in own
    }
    found = account("twin", lambda f: others[f["episode"], f["turn"], f["alternative"]] == 0)
    row = cell(table, panel="equal", kind="twin", series="raw", place=0.0)
    assert row["value"] == pytest.approx(found.coupling_gain)
    assert row["num_pairs"] == found.num_pairs and 0 < row["equal_share"] < 1


def test_agreement_is_of_forks_whose_decision_is_another(table):
    own, _ = of("twin", lambda f: f["slot"] == 0 and not f["equal"])
    row = cell(table, panel="agreement", kind="twin", place=0.0)
    agreement = [fork["agree_turns"] for fork in own]
    assert row["value"] == pytest.approx(np.mean(agreement)) and row["num_pairs"] == len(own)
    assert row["low"] < row["value"] < row["high"]
    assert cell(table, panel="agreement", kind="control", place=0.0)["value"] == 0.25
    assert table.filter(panel="agreement", place=3.0).is_empty()  # no later turn


def test_no_difference_counts_as_the_longest(table):
    own, _ = of("twin", lambda f: not f["equal"])
    first = [np.inf if f["first_differing"] is None else f["first_differing"] for f in own]
    median = float(np.median(first))
    found = table.filter(panel="first", kind="twin", outcome="f1")["value"].to_list()
    assert found == [median if np.isfinite(median) else None]
    control = cell(table, panel="first", kind="control")
    told = f"control {control['value']:g} [{control['low']:g}, "
    assert told in twins.caption(table)


def test_the_medians_interval_is_that_of_tasks_drawn_anew(table):
    """Not of forks, of which a task has many."""
    own, _ = of("control", lambda f: not f["equal"])
    episodes = sorted({f["episode"] for f in own})
    parts = {
        episode: [
            np.inf if f["first_differing"] is None else f["first_differing"]
            for f in own
            if f["episode"] == episode
        ]
        for episode in episodes
    }
    rng = np.random.default_rng(1)
    draws = [
        np.quantile(
            np.concatenate([parts[name] for name in rng.choice(episodes, len(episodes))]),
            0.5,
            method="inverted_cdf",
        )
        for _ in range(2000)
    ]
    row = cell(table, panel="first", kind="control")
    assert row["low"] <= row["value"] <= row["high"]
    assert (row["low"], row["high"]) == tuple(np.quantile(draws, (0.025, 0.975)))


def test_an_end_of_the_median_is_open_where_half_may_never_differ(tmp_path):
    """Twins of 12 of 20 episodes differ after 3 tokens, those of the others never."""
    firsts = [3 if int(f["episode"][2:]) < 12 else None for f in FORKS]
    forks = [f | {"first_differing": first} for f, first in zip(FORKS, firsts, strict=True)]
    table = twins.table([synthetic.study_run(tmp_path / "run", oracle_forks=forks)])
    row = cell(table, panel="first", kind="control")
    assert (row["value"], row["low"], row["high"]) == (3.0, 3.0, None)
    assert "control 3 [3, ∞]" in twins.caption(table)


def test_null_twins_that_are_exact_have_the_bound_of_their_episodes(table, tmp_path):
    row = cell(table, panel="null")
    assert (row["value"], row["low"], row["num_pairs"]) == (0.0, 0.0, 20 * 4)
    assert (1 - row["high"]) ** 20 == pytest.approx(0.05)
    assert "Of 80 null twins, facts, drew other tokens: none, at most 13.9%" in twins.caption(table)
    broken = [f | ({"fork": None} if f["kind"] == "null" and f["turn"] == 0 else {}) for f in FORKS]
    lost = twins.table([synthetic.study_run(tmp_path / "run", oracle_forks=broken)])
    assert cell(lost, panel="null")["value"] == 0.25
    assert "Of 80 null twins, facts, drew other tokens: 25.0%." in twins.caption(lost)


def test_failed_forks_are_no_pairs(tmp_path):
    lost = [f | ({"fork": None, "equal": None} if f["alternative"] == 0 else {}) for f in FORKS]
    table = twins.table([synthetic.study_run(tmp_path / "run", oracle_forks=lost)])
    row = cell(table, panel="slot", kind="twin", series="raw", place=1.0)
    assert row["num_pairs"] == 20 * 2


def test_a_row_of_panels_for_each_outcome_and_what_has_no_place_is_named(table, tmp_path):
    figure = twins.draw(table)
    assert len(figure.axes) == 2 * len(twins.PANELS)
    assert figure.axes[0].get_ylabel() == "facts\nf1\ncoupling gain"
    assert "table only" not in twins.caption(table)
    names = [pl.lit(f"facts {number}") for number in range(3)]
    many = pl.concat([table.with_columns(setting=name) for name in names])
    assert len(twins.draw(many).axes) == twins.MOST_ROWS * len(twins.PANELS)
    assert "In the table only: facts 1, exact_match; facts 2, exact_match." in twins.caption(many)


def test_a_gain_that_is_undefined_or_0_is_counted(table):
    blank = table.with_columns(value=pl.when(panel="slot", place=0.0).then(None).otherwise("value"))
    undrawn = len(table.filter(panel="slot", place=0.0))
    assert f"not drawn: {undrawn}." in twins.caption(blank)
    assert twins.draw(blank).axes


def test_too_few_controls_are_told_from_no_logs(tmp_path):
    few = [f for f in FORKS if f["episode"] in ("0/0", "0/1")]
    reason = "no identified gain .20 twins of a turn that have a control, .* in oracle_forks in "
    for name, own in {"all": few, "equal": [f for f in few if f["equal"]]}.items():
        run = synthetic.study_run(tmp_path / name, oracle_forks=own)
        with pytest.raises(logs.MissingLogs, match=reason + name):
            twins.table([run])
    empty = synthetic.study_run(tmp_path / "empty", other=[{"x": 1}])
    with pytest.raises(logs.MissingLogs, match="twins: no oracle_forks in empty; make it with"):
        twins.table([empty])


def test_outcomes_that_never_differ_have_no_gain_to_draw(tmp_path):
    alike = [fork | {"factual": 0.0, "fork": 0.0} for fork in FORKS]
    run = synthetic.study_run(tmp_path / "run", oracle_forks=alike)
    with pytest.raises(logs.MissingLogs, match="outcomes that differ: more oracle.episodes give"):
        twins.table([run])


def test_every_gain_axis_names_enough_numbers(table):
    """Also where the gains lie close together."""
    close = table.with_columns(pl.col("value", "low", "high") ** 0.2)
    for numbers in (table, close):
        figure = twins.draw(numbers)
        for panel in figure.axes:
            low, high = panel.get_ylim()
            assert sum(low <= tick <= high for tick in panel.get_yticks()) >= 3


def test_an_outcome_without_any_gain_has_no_row(table):
    is_blank = (table["outcome"] == "f1") & (table["panel"] != "agreement")
    blank = table.with_columns(value=table["value"].set(is_blank, None))
    figure = twins.draw(blank)
    assert len(figure.axes) == len(twins.PANELS)
    assert figure.axes[0].get_ylabel() == "facts\nexact_match\ncoupling gain"
    assert "In the table only: facts, f1." in twins.caption(blank)
