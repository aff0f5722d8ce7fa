import pytest

from twinstats import cli
from twinstats.power import detectable_effect, paired_power, pairs_needed


def twice(capsys, line):
    """The exit code of `twice plan ...`, and what it wrote to output and error."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plan", *line.split()])
    written = capsys.readouterr()
    return stopped.value.code, written.out, written.err


def cells(out):
    """The cells of each row of the table, by the name of its test."""
    lines = [line for line in out.splitlines() if line.startswith("│")]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def test_each_test_has_its_row(capsys):
    code, out, err = twice(capsys, "--effect .2 --discordance .3")
    assert (code, err) == (0, "")
    assert cells(out) == {"exact": ["61"], "midp": ["53"], "connor": ["57"], "wald": ["52"]}
    assert "alpha 0.05 two-sided, power 0.8, effect 0.2" in out
    assert "discordance / |effect| = 1.5, linear" in out


@pytest.mark.parametrize(
    "discordance, law", [(".1", "linear"), (".25", "undecided"), (".9", "quadratic")]
)
def test_the_law_is_named(capsys, discordance, law):
    _, out, _ = twice(capsys, f"--effect .05 --discordance {discordance}")
    assert f"{float(discordance) / 0.05:g}, {law}" in out


def test_twins_against_independent_pairs(capsys):
    code, out, _ = twice(capsys, "--effect .1 --discordance .2 --base-rate .5")
    assert code == 0 and "Independent pairs: discordance 0.5." in out
    for test, row in cells(out).items():
        expected = [pairs_needed(0.1, discordance=d, test=test) for d in (0.2, 0.5)]
        assert row == [str(number) for number in expected]


def test_clusters_one_side_level_and_power(capsys):
    line = "--effect -.2 --discordance .3 --cluster-size 5 --icc .3 --alternative less"
    code, out, _ = twice(capsys, f"{line} --alpha .01 --power .9 --test exact")
    options = {"cluster_size": 5, "icc": 0.3, "alternative": "less", "alpha": 0.01, "power": 0.9}
    assert code == 0 and "2.2 times the pairs" in out
    assert cells(out) == {"exact": [str(pairs_needed(-0.2, discordance=0.3, **options))]}


def test_other_outcomes(capsys):
    _, out, _ = twice(capsys, "--effect .5 --sd 1")
    assert cells(out) == {"t": ["34"], "wald": ["32"]} and "1/effect^2" in out
    _, out, _ = twice(capsys, "--effect .1 --sd 1 --rho .9")
    assert cells(out)["wald"] == ["157", "1570"]


def test_the_inverse_questions(capsys):
    _, out, _ = twice(capsys, "--effect .2 --discordance .3 --pairs 40")
    for test, (_, power, effect) in cells(out).items():
        assert float(power) == pytest.approx(
            paired_power(0.2, 40, discordance=0.3, test=test), rel=1e-3
        )
        assert float(effect) == pytest.approx(
            detectable_effect(40, discordance=0.3, test=test), rel=1e-3
        )
    _, out, _ = twice(capsys, "--pairs 61 --discordance .3 --test exact")
    assert cells(out) == {"exact": ["0.199"]}
    code, out, _ = twice(capsys, "--pairs 5 --discordance .5 --test exact")
    assert code == 0 and cells(out) == {"exact": ["none"]}


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("--effect .4 --discordance .3", "`effect` must be in [-0.3, 0.3], got 0.4."),
        ("--effect 0 --discordance .3", "`effect` must be different from 0"),
        ("--effect -.1 --discordance .3 --alternative greater", "`effect` must be positive"),
        ("--effect .1", "Exactly one of `discordance`"),
        ("--discordance .3", "`--effect` (pairs to find it) or `--pairs`"),
        ("--effect .1 --sd 1 --rho 1", "`rho` must lie in [-1, 1)"),
        ("--effect .1 --discordance .3 --test exakt", "Did you mean 'exact'?"),
        ("--effect .2 --discordance .3 --base-rate .9", "`--base-rate` must lie in [0, 0.8]"),
        ("--effect .1 --discordance .9 --base-rate .1", "`--discordance` must be at most 0.3"),
        ("--effect .1 --sd 1 --base-rate .1", "`--base-rate` needs"),
        ("--effect .1 --discordance .3 --pairs 0", "`num_pairs` must be a whole number"),
        ("--effect .1 --discordance .3 --power 1", "`power` must lie in (0, 1)"),
        ("--effect much --discordance .3", "Invalid value for '--effect'"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(capsys, line, sentence):
    code, out, err = twice(capsys, line)
    assert (code, out) == (2, "")
    assert sentence in err and err.startswith("twice: ") and len(err.splitlines()) == 1
