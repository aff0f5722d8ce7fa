import dataclasses
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, kstest

from twinstats.coupling import agreement, disagreement_bounds, joint, posterior_gumbel
from twinstats.noise import NoiseKey, gumbel, uniform

KEY = NoiseKey(7, 3, 5, 2)
COUPLINGS = ("gumbel", "maximal", "independent")


def random_pair(rng, size, concentration=0.5, zeros=False):
    p, q = rng.dirichlet(np.full(size, concentration), 2)
    if zeros and size > 2:
        p[rng.integers(size)] = 0
        q[rng.integers(size)] = 0
        p, q = p / p.sum(), q / q.sum()
    return p, q


def naive_agreement(p, q):
    """sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), term by term."""
    both = [i for i in range(len(p)) if p[i] > 0 and q[i] > 0]
    return sum(
        1 / sum(max(pj / p[i], qj / q[i]) for pj, qj in zip(p, q, strict=True)) for i in both
    )


def naive_joint(p, q, i, j):
    """The integral of the formula, by quadrature between its breakpoints."""
    low, high = p[j] / q[j], p[i] / q[i]
    if low >= high:
        return 0.0
    others = [k for k in range(len(p)) if k not in (i, j)]

    def density(r):
        rest = sum(max(p[k], q[k] * r) for k in others)
        return p[i] * q[j] / (p[i] + q[j] * r + rest) ** 2

    breaks = sorted({low, high, *(p[k] / q[k] for k in others if low < p[k] / q[k] < high)})
    return sum(
        quad(density, a, b, epsabs=0, epsrel=1e-11)[0]
        for a, b in zip(breaks, breaks[1:], strict=False)
    )


def test_reference_values():
    p, q = (0.5, 0.3, 0.2), (0.4, 0.4, 0.2)
    assert 1 - agreement(p, q) == pytest.approx(13 / 110, abs=1e-15)
    assert 1 - agreement(p, q, "maximal") == pytest.approx(0.1, abs=1e-15)
    assert 1 - agreement(p, q, "independent") == pytest.approx(0.64, abs=1e-15)
    law = joint(p, q, "gumbel")
    expected = np.array([[44, 9, 2], [0, 33, 0], [0, 2, 20]]) / 110
    np.testing.assert_allclose(law, expected, atol=1e-15)
    p, q = (0.7, 0.1, 0.1, 0.1), (0.1, 0.7, 0.1, 0.1)
    assert 1 - agreement(p, q) == pytest.approx(27 / 40, abs=1e-15)
    assert disagreement_bounds(p, q) == pytest.approx((0.6, 0.75))


def test_upper_bound_is_attained_on_disjoint_excess():
    p, q = (0.3, 0.0, 0.7), (0.0, 0.3, 0.7)
    assert 1 - agreement(p, q) == pytest.approx(6 / 13)
    assert disagreement_bounds(p, q)[1] == pytest.approx(6 / 13)


@pytest.mark.parametrize("seed", range(8))
def test_agreement_equals_the_naive_double_sum(seed):
    rng = np.random.default_rng(seed)
    p, q = random_pair(rng, int(rng.integers(2, 30)), zeros=bool(seed % 2))
    assert agreement(p, q) == pytest.approx(naive_agreement(p, q), rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_joint_equals_the_integral(seed):
    p, q = random_pair(np.random.default_rng(seed), 5, concentration=1.0)
    law = joint(p, q)
    for i in range(5):
        for j in range(5):
            if i != j:
                assert law[i, j] == pytest.approx(naive_joint(p, q, i, j), rel=1e-8, abs=1e-15)


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("zeros", [False, True])
def test_joint_has_the_marginals_and_the_agreement(coupling, zeros):
    rng = np.random.default_rng(1)
    for size in (2, 3, 17, 200):
        p, q = random_pair(rng, size, concentration=0.2, zeros=zeros)
        law = joint(p, q, coupling)
        assert law.min() >= 0
        np.testing.assert_allclose(law.sum(axis=1), p, atol=1e-14)
        np.testing.assert_allclose(law.sum(axis=0), q, atol=1e-14)
        assert np.trace(law) == pytest.approx(agreement(p, q, coupling), abs=1e-13)


def test_counterfactual_stability():
    """i turns into j only if the odds of j against i rose."""
    p, q = random_pair(np.random.default_rng(3), 12)
    law = joint(p, q)
    rose = q[None, :] / p[None, :] > q[:, None] / p[:, None]
    off = ~np.eye(12, dtype=bool)
    assert np.all(law[off & ~rose] == 0) and np.all(law[off & rose] > 0)


def test_disagreement_lies_within_its_bounds():
    rng = np.random.default_rng(4)
    for _ in range(200):
        p, q = random_pair(rng, int(rng.integers(2, 12)), concentration=0.3)
        low, high = disagreement_bounds(p, q)
        assert low - 1e-14 <= 1 - agreement(p, q) <= high + 1e-14
        assert 1 - agreement(p, q, "maximal") == pytest.approx(low, abs=1e-14)


def test_two_categories_reach_the_total_variation():
    p, q = (0.85, 0.15), (0.2, 0.8)
    assert 1 - agreement(p, q) == pytest.approx(0.65)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_swapping_the_worlds_transposes_the_law(coupling):
    p, q = random_pair(np.random.default_rng(5), 9)
    np.testing.assert_allclose(joint(p, q, coupling), joint(q, p, coupling).T, atol=1e-15)
    assert agreement(p, q, coupling) == pytest.approx(agreement(q, p, coupling), rel=1e-13)


def test_equal_and_disjoint_worlds():
    p = np.random.default_rng(6).dirichlet(np.ones(50))
    assert agreement(p, p) == pytest.approx(1) and agreement(p, p, "maximal") == 1.0
    np.testing.assert_allclose(joint(p, p, "maximal"), np.diag(p))
    np.testing.assert_allclose(joint(p, p), np.diag(p), atol=1e-16)
    assert agreement((1, 0), (0, 1)) == 0.0
    assert joint((1, 0), (0, 1)).tolist() == [[0, 1], [0, 0]]
    assert disagreement_bounds((1, 0), (0, 1)) == (1.0, 1.0)


def test_extreme_probabilities_stay_exact():
    p, q = (1 - 1e-200, 1e-200, 0.0), (1e-310, 0.5, 0.5)
    for coupling in COUPLINGS:
        law = joint(p, q, coupling)
        assert np.all(np.isfinite(law))
        np.testing.assert_allclose(law.sum(axis=0), q, atol=1e-15)


def test_a_hundred_thousand_categories():
    rng = np.random.default_rng(7)
    logits = rng.normal(size=100_000) * 3
    p, q = (np.exp(x) / np.exp(x).sum() for x in (logits, logits + rng.normal(size=100_000) * 0.1))
    low, high = disagreement_bounds(p, q)
    assert low < 1 - agreement(p, q) < high


def test_agreement_is_what_the_noise_does():
    """Shared keyed Gumbels, 1,000 positions: the joint law cell by cell."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    counts, runs = np.zeros((3, 3)), 1_000
    for position in range(runs):
        noise = gumbel(KEY, position, np.arange(3))
        counts[np.argmax(np.log(p) + noise), np.argmax(np.log(q) + noise)] += 1
    low, high = binom.interval(1 - 1e-6, runs, joint(p, q))
    assert np.all((counts >= low) & (counts <= high))


@pytest.mark.parametrize(
    ("p", "q", "message"),
    [
        ((0.5, 0.5), (1.0,), "`q` must have as many entries as `p`"),
        ((0.5, 0.6), (0.5, 0.5), "`p` must add up to 1, got 1.1"),
        ((0.5, 0.5), (1.5, -0.5), "`q` must be a list of probabilities"),
        ((0.5, math.nan), (0.5, 0.5), "`p` must be a list of probabilities"),
        ((), (), "`p` must add up to 1, got 0"),
    ],
)
def test_what_is_no_distribution_is_refused(p, q, message):
    for call in (agreement, joint, disagreement_bounds):
        with pytest.raises(ValueError, match=message):
            call(p, q)


def test_unknown_couplings_name_the_known_ones():
    for call in (agreement, joint):
        with pytest.raises(ValueError, match="Unknown coupling 'gumbl'.* Did you mean 'gumbel'"):
            call((0.5, 0.5), (0.5, 0.5), "gumbl")


def test_posterior_noise_is_the_formula_of_the_design():
    logits, temperature, index, position = np.array([0.3, -1.0, 2.0]), 0.7, 1, 11
    derived = dataclasses.replace(KEY, purpose="sample~posterior")
    scaled = logits / temperature
    top = float(uniform(derived, position, 2**31))
    winner = np.log(np.exp(scaled).sum()) - np.log(-np.log(top))
    u = uniform(derived, position, np.arange(3))
    expected = -np.log(np.exp(scaled - winner) - np.log(u))
    expected[index] = winner - scaled[index]
    found = posterior_gumbel(logits, index, KEY, position, temperature)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_posterior_noise_always_explains_the_token():
    rng = np.random.default_rng(9)
    for position in range(200):
        logits = rng.normal(size=40) * 10.0 ** rng.integers(-2, 9)
        index, temperature = int(rng.integers(40)), float(rng.uniform(0.2, 2))
        noise = posterior_gumbel(logits, index, KEY, position, temperature)
        assert np.all(np.isfinite(noise))
        score = logits / temperature + noise
        assert np.all(np.delete(score, index) < score[index])


def test_logits_too_large_for_their_noise_still_give_the_token():
    logits = np.full(4, 1e17)
    for position in range(20):
        assert np.argmax(logits + posterior_gumbel(logits, 3, KEY, position)) == 3


def test_averaged_over_sampled_tokens_posterior_noise_is_standard_gumbel():
    logits = np.array([0.0, 1.0, -0.5, 2.0])
    p = np.exp(logits) / np.exp(logits).sum()
    tokens = np.random.default_rng(10).choice(4, size=1_000, p=p)
    noise = np.array(
        [posterior_gumbel(logits, int(i), KEY, position) for position, i in enumerate(tokens)]
    )
    for v in range(4):
        assert kstest(noise[:, v], lambda x: np.exp(-np.exp(-x))).pvalue > 1e-4
    assert np.abs(np.corrcoef(noise.T) - np.eye(4)).max() < 5 / math.sqrt(1_000)


def test_the_counterfactual_token_has_the_joint_law():
    """Posterior noise of token i, then another world's logits: J[i, j] / p_i."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])
    counts, runs = np.zeros(3), 1_000
    for position in range(runs):
        counts[np.argmax(np.log(q) + posterior_gumbel(np.log(p), 0, KEY, position))] += 1
    low, high = binom.interval(1 - 1e-6, runs, np.clip(joint(p, q)[0] / p[0], 0, 1))
    assert np.all((counts >= low) & (counts <= high))


def test_truncated_tokens_keep_their_prior_noise():
    logits = np.array([1.0, -np.inf, 0.0, -np.inf])
    noise = posterior_gumbel(logits, 2, KEY, 4)
    np.testing.assert_array_equal(noise[[1, 3]], gumbel(KEY, 4, [1, 3]))
    assert np.argmax(logits + noise) == 2


def test_posterior_noise_of_the_only_token_left():
    noise = posterior_gumbel([-np.inf, 3.0], 1, KEY, 0)
    assert np.all(np.isfinite(noise))


def test_same_key_same_noise_and_shifted_logits_too():
    logits = np.array([0.5, 1.0, -2.0])
    first = posterior_gumbel(logits, 0, KEY, 9)
    np.testing.assert_array_equal(first, posterior_gumbel(logits, 0, KEY, 9))
    np.testing.assert_allclose(first, posterior_gumbel(logits + 5, 0, KEY, 9), rtol=1e-12)
    other = dataclasses.replace(KEY, luck=1)
    assert not np.allclose(first, posterior_gumbel(logits, 0, other, 9))


@pytest.mark.parametrize(
    ("logits", "index", "temperature", "message"),
    [
        ([0.0, math.nan], 0, 1.0, "`logits` must be finite or -inf"),
        ([0.0, math.inf], 0, 1.0, "`logits` must be finite or -inf"),
        ([0.0, 1e300], 0, 1e-20, "`logits` must be finite or -inf"),
        ([], 0, 1.0, "`logits` must be a list"),
        ([0.0, -math.inf], 1, 1.0, "`index` must be an id that can be sampled"),
        ([0.0, 0.0], 2, 1.0, "`index` must be an id that can be sampled"),
        ([0.0, 0.0], -1, 1.0, "`index` must be an id that can be sampled"),
        ([0.0, 0.0], 0, 0.0, "`temperature` must be positive"),
    ],
)
def test_what_posterior_noise_cannot_explain_is_refused(logits, index, temperature, message):
    with pytest.raises(ValueError, match=message):
        posterior_gumbel(logits, index, KEY, 0, temperature)
