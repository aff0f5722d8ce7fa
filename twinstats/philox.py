"""The counter-based generator Philox4x32-10, on arrays.

One 128-bit counter and a 64-bit key give four 32-bit words; any word can be computed alone, in
any order. Leaves out what the counters mean: see `noise`.
"""

import numpy as np

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_BUMPS = np.array([[n * weyl & 0xFFFFFFFF for weyl in _WEYL] for n in range(_ROUNDS)], np.uint64)


def philox4x32(counter: tuple, key: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The four words of each counter block, as uint64 arrays of values below 2**32.

    Args:
        counter: Four arrays (or integers) c0..c3 of values below 2**32 that broadcast together.
        key: Two arrays (or integers) k0, k1 of values below 2**32, broadcast with them.

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    # Both halves of a round go through the same calls: small arrays feel the number of calls.
    even, odd = np.stack((c0, c2)), np.stack((c1, c3))
    for round_keys in _schedule(key, c0.ndim):
        product = even * _MULTIPLIERS.reshape(2, *(1,) * c0.ndim)
        even = (product >> _SHIFT)[::-1] ^ odd ^ round_keys
        odd = (product & _LOW)[::-1]
    return even[0], odd[0], even[1], odd[1]


def _schedule(key: tuple, num_axes: int) -> np.ndarray:
    """The two key words of every round, (rounds, 2, ...), with as many axes as the counters."""
    words = np.stack(np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in key)))
    missing = (1,) * (num_axes + 1 - words.ndim)
    bumps = _BUMPS.reshape(_ROUNDS, 2, *(1,) * num_axes)
    return np.asarray((words.reshape(2, *missing, *words.shape[1:]) + bumps) & _LOW)


def uniform52(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Uniforms in (0, 1) from two 32-bit words: ((high * 2**20 + low // 2**12) + 1/2) * 2**-52.

    52 bits, because with 53 the largest value would round to 1.
    """
    bits = (high << np.uint64(20)) + (low >> np.uint64(12))
    return (bits.astype(np.float64) + 0.5) * 2.0**-52
