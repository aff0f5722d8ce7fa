"""The counter-based generator Philox4x32-10, on arrays.

One 128-bit counter and a 64-bit key give four 32-bit words; any word can be computed alone, in
any order. Leaves out what the counters mean: see `noise`.
"""

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox4x32(counter: tuple, key: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The four words of each counter block, as uint64 arrays of values below 2**32.

    Args:
        counter: Four arrays (or integers) c0..c3 of values below 2**32 that broadcast together.
        key: Two arrays (or integers) k0, k1 of values below 2**32, broadcast with them.

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    k0, k1 = (np.asarray(word, np.uint64) for word in key)
    for number in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        bump0, bump1 = (np.uint64(number * weyl & 0xFFFFFFFF) for weyl in _WEYL)
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ ((k0 + bump0) & _LOW),
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ ((k1 + bump1) & _LOW),
            product0 & _LOW,
        )
    return c0, c1, c2, c3


def uniform52(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Uniforms in (0, 1) from two 32-bit words: ((high * 2**20 + low // 2**12) + 1/2) * 2**-52.

    52 bits, because with 53 the largest value would round to 1.
    """
    bits = (high << np.uint64(20)) + (low >> np.uint64(12))
    return (bits.astype(np.float64) + 0.5) * 2.0**-52
