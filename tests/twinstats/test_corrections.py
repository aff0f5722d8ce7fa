"""P-values corrected for the number of tests."""

import numpy as np

from twinstats.corrections import holm


def naive(pvalues):
    """The k-th smallest of m times m - k + 1, never below a smaller one's and never above 1."""
    order = sorted(range(len(pvalues)), key=lambda one: pvalues[one])
    found, largest = [0.0] * len(pvalues), 0.0
    for rank, one in enumerate(order):
        largest = max(largest, (len(pvalues) - rank) * pvalues[one])
        found[one] = min(1.0, largest)
    return found


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_holm_equals_a_naive_second_implementation():
    pvalues = np.random.default_rng(0).random(20) ** 4
    np.testing.assert_allclose(holm(pvalues.tolist()), naive(pvalues.tolist()), rtol=1e-12)


def test_null_is_no_test_and_one_test_stays_as_it_is():
    assert holm([None, 0.02, None]) == [None, 0.02, None]
    assert holm([None]) == [None] and holm([]) == []
