"""Checks of a method's numeric options, each one clear sentence.

Leaves out options that are words (`errors.unknown`).
"""

import math

MOST_FORKS = 2**16 - 1
"""Decisions of one turn, or draws of its luck, that a noise key can number."""


def positive(**options: float) -> None:
    """Refuses what is not finite and above 0.

    Raises:
        ValueError: The first such option, by name.
    """
    for name, value in options.items():
        if not 0 < value < math.inf:
            raise ValueError(f"`{name}` must be positive and finite, got {value}.")


def at_least_zero(**options: float | int) -> None:
    """Refuses what is negative or not finite.

    Raises:
        ValueError: The first such option, by name.
    """
    for name, value in options.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"`{name}` must be at least 0 and finite, got {value}.")


def probability(**options: float) -> None:
    """Refuses what is outside [0, 1].

    Raises:
        ValueError: The first such option, by name.
    """
    for name, value in options.items():
        if not 0 <= value <= 1:
            raise ValueError(f"`{name}` must be in [0, 1], got {value}.")


def count(**options: int) -> None:
    """Refuses what is below 1.

    Raises:
        ValueError: The first such option, by name.
    """
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}.")


def at_most_forks(**options: float | int) -> None:
    """Refuses more than `MOST_FORKS`: such a method would ask for forks until memory ends.

    Raises:
        ValueError: The first such option, by name.
    """
    for name, value in options.items():
        if value > MOST_FORKS:
            raise ValueError(
                f"`{name}` must be at most {MOST_FORKS}, what noise keys can number, got {value}."
            )


def zero_or_one(**options: int) -> None:
    """Refuses what is neither 0 nor 1: the `ddof` of a group that may have two members.

    Raises:
        ValueError: The first such option, by name.
    """
    for name, value in options.items():
        if value not in (0, 1):
            raise ValueError(f"`{name}` must be 0 or 1, got {value}.")
