"""What the leaderboard of exact worlds does not reach; the rest is in `tests/simulations`."""

import numpy as np
import pytest

from twinstats.board import METRICS, board, curves, equal_error, read, split


def point(method="twice", seed=0, knob=1, tokens=2.0, **numbers):
    """A method whose credit is the truth of mean square 1, over four turns."""
    known = {"setting": "s", "world": "w", "horizon": 2, "density": None, "method": method}
    known |= {"seed": seed, "knob": knob, "reason": None, "claims_unbiased": True}
    known |= {"estimates_advantage": True, "reconstructed": False}
    sums = {"tokens": tokens, "auxiliary_tokens": tokens - 1, "base_tokens": 1.0, "num_turns": 4}
    sums |= {"error": 0.0, "credit_square": 4.0, "credit_truth": 4.0, "truth_square": 4.0}
    return known | sums | numbers


def only(rows):
    return curves(rows)["s"]["twice"]


def test_the_truths_noise_is_taken_out_of_error_and_size_on_average():
    """Credit A + c and truth A + e, all of known spread: the error is that of c alone."""
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(400):
        advantage, own, noise = (rng.normal(0, size, 50) for size in (1.0, 0.5, 0.7))
        credit, truth = advantage + own, advantage + noise
        row = point(seed=seed, num_turns=50.0, error=float((credit - truth).sum()))
        row |= {"credit_square": float(credit @ credit), "credit_truth": float(credit @ truth)}
        rows.append(row | {"truth_square": float(truth @ truth), "truth_noise": 50 * 0.49})
    found = only(rows).metrics["mse"][:, 0]
    assert found.mean() == pytest.approx(0.25, abs=5 * found.std() / 20)
    raw = only([{k: v for k, v in row.items() if k != "truth_noise"} for row in rows])
    assert raw.metrics["mse"].mean() > 0.4  # (0.25 + 0.49) / 1.49


def test_the_size_of_a_noisy_truth_is_that_of_all_seeds_and_an_error_may_be_negative():
    rows = [
        point(seed=seed, truth_square=size, truth_noise=2.0, credit_square=4.0, credit_truth=4.0)
        for seed, size in ((0, 3.0), (1, 7.0))
    ]
    # mean square (1 + 5) / 8; errors (4 - 8 + 1) / 4 and (4 - 8 + 5) / 4
    expected = np.array([[-3 / 4], [1 / 4]]) / (6 / 8)
    np.testing.assert_allclose(only(rows).metrics["mse"], expected)
    assert read(only(rows), "mse", 2.0)[0] == pytest.approx(expected[:, 0])


BLANK = dict.fromkeys(("tokens", "auxiliary_tokens", "base_tokens", "num_turns", "error"))
BLANK |= dict.fromkeys(("credit_square", "credit_truth", "truth_square"))


def test_a_seed_that_no_method_has_numbers_of_is_left_out_of_all():
    rows = [
        point(method=method, seed=seed, credit_square=5.0 + seed)
        | ({} if seed else BLANK | {"reason": "no turn has a reference"})
        for method in ("twice", "vine")
        for seed in range(3)
    ]
    found = curves(rows)["s"]
    rest = curves([row for row in rows if row["seed"]])["s"]
    for method, curve in found.items():
        assert curve.seeds == (1, 2) and curve.reason is None
        assert read(curve, "mse", 2.0)[0].tolist() == read(rest[method], "mse", 2.0)[0].tolist()
    none = curves([row for row in rows if not row["seed"]])["s"]["vine"]
    assert none.knobs == () and read(none, "mse", 2.0)[1] == "no turn has a reference"


def test_a_method_without_numbers_where_others_have_some_says_why():
    rows = [point(method=method, seed=seed) for method in ("twice", "vine") for seed in range(2)]
    rows[1] |= BLANK | {"reason": "no credit"}
    found = curves(rows)["s"]
    assert read(found["twice"], "mse", 2.0)[1] == "no credit"
    assert found["vine"].seeds == (0, 1) and found["vine"].reason is None


def test_no_noise_is_the_exact_truth_bit_for_bit():
    rows = [point(seed=seed, credit_square=5.0 + seed) for seed in range(2)]
    exact = only(rows).metrics
    noiseless = only([row | {"truth_noise": 0.0} for row in rows]).metrics
    for name in METRICS:
        np.testing.assert_array_equal(exact[name], noiseless[name])


@pytest.mark.parametrize(
    "truth", [{"truth_square": 1.0, "truth_noise": 1.5}, {"truth_square": 0.0}]
)
def test_a_truth_without_size_leaves_errors_undefined_with_the_reason(truth):
    curve = only([point(seed=seed, **truth) for seed in range(3)])
    values, reason = read(curve, "mse", 2.0)
    assert len(values) == 0
    assert reason == "the truth does not differ from 0 by more than its noise"


def test_what_was_not_measured_is_null_and_says_so():
    curve = only([point(seed=seed) for seed in range(2)])
    assert read(curve, "cosine", 2.0)[1] == "not measured"
    told = {row["metric"]: row for row in board({"s": {"twice": curve}}, (2.0,))}
    assert told["kendall"]["value"] is None and told["kendall"]["reason"] == "not measured"
    assert told["mse"]["value"] == 0 and told["mse"]["reason"] is None
    ranked = only([point(seed=seed, cosine=0.5) for seed in range(2)])
    assert read(ranked, "cosine", 2.0)[0].tolist() == [0.5, 0.5]


def test_sums_may_be_whole_numbers():
    rows = [point(seed=seed) for seed in range(2)]
    whole = [{k: int(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    np.testing.assert_array_equal(only(whole).metrics["mse"], only(rows).metrics["mse"])


def swept(method, errors, *, estimates=True):
    """Squared errors of two seeds at knobs 1 and 3, which take 2 and 4 tokens."""
    return [
        point(method, seed, knob, tokens, credit_square=4 + 4 * error, truth_noise=0.0)
        | {"estimates_advantage": estimates}
        for seed in range(2)
        for (knob, tokens), error in zip(((1, 2.0), (3, 4.0)), errors, strict=True)
    ]


def test_another_reference_is_another_target():
    own = curves([*swept("vine", (2.0, 1.0)), *swept("twice", (1.5, 0.5))])

    def found(knob):
        rows = equal_error(own, reference=("vine", knob))
        return {row["method"]: row for row in rows if row["metric"] == "mse"}

    assert [found(knob)["vine"]["target"] for knob in (1, 3)] == pytest.approx([2.0, 1.0])
    assert found(1)["twice"]["is_bound"] and not found(3)["twice"]["is_bound"]
    # from error 1.5 at 2 tokens to .5 at 4, straight in both logarithms; the base takes 1
    needed = 2 * 2 ** (np.log(1.5) / np.log(3)) - 1
    assert found(3)["twice"]["ratio"] == pytest.approx(needed / 3)
    assert {row["reason"] for row in equal_error(own)} == {"vine was not played at 9"}


def test_one_replicate_has_no_interval():
    trio = ("independent_raw", "independent", "twice")
    rows = [r for m in (*trio, "vine") for r in swept(m, (2.0, 1.0)) if r["seed"] == 0]
    own, known = curves(rows), {"low": None, "high": None, "reason": "one replicate: no interval"}
    found = [r for r in equal_error(own, reference=("vine", 3)) if r["metric"] == "mse"]
    assert len(found) == 4
    for row in found:
        assert row["ratio"] == pytest.approx(1) and known.items() <= row.items()
    (tokens,) = split(own, (), reference=("vine", 3))
    assert tokens["both"] == pytest.approx(1) and tokens["reason"] == known["reason"]
    assert tokens["both_low"] is tokens["both_high"] is None


def test_a_target_below_0_is_no_target():
    own = curves([*swept("vine", (2.0, -0.1)), *swept("twice", (1.0, 0.5))])
    reason = "the error of vine is below 0, less than the noise of the truth"
    rows = [row for row in equal_error(own, reference=("vine", 3)) if row["metric"] == "mse"]
    assert {row["reason"] for row in rows} == {reason}
    trio = ("independent_raw", "independent", "twice")
    more = curves([r for m in trio for r in swept(m, (1.0, 0.5))] + swept("vine", (2.0, -0.1)))
    lost = split(more, (3.0,), reference=("vine", 3))
    assert [(row["quantity"], row["reason"]) for row in lost] == [
        ("mse", reason),
        ("tokens", reason),
    ]
