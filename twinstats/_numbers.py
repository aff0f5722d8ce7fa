"""The types of numbers that public functions take, wider than `float` because callers are."""

from collections.abc import Sequence

import numpy as np

Number = int | float | np.integer | np.floating
Numbers = np.ndarray | Sequence | Number
