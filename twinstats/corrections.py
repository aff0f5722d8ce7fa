"""P-values of several tests, corrected for their number.

Leaves out which tests belong together: the caller gives one family.
"""

from collections.abc import Sequence


def holm(pvalues: Sequence[float | None]) -> list[float | None]:
    """Holm's corrected p-values, in the order given; what is null stays, and counts as no test.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure, Scandinavian Journal
    of Statistics 6:65-70.

    >>> holm([0.03, None, 0.01])
    [0.03, None, 0.02]
    """
    from statsmodels.stats.multitest import multipletests  # slow to import

    known = [one for one in pvalues if one is not None]
    corrected = iter(multipletests(known, method="holm")[1].tolist() if known else ())
    return [None if one is None else next(corrected) for one in pvalues]
