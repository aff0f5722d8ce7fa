"""How fast a world plays and methods without forks credit: `python -m benchmarks.simulations`."""

import sys
from collections.abc import Callable

from benchmarks.measure import Limit, report
from simulations.measure import can_play
from simulations.worlds import Chain
from simulations.worlds.chain_model import ChainSetting
from twinstats.credit import METHODS, Method, assign, make
from twinstats.episodes import group_by_task

TURNS, HORIZON, ROLLOUTS = 20_000, 10, 8
TURNS_PER_SECOND = 100_000
"""What one core is to play and credit."""

_REGRESSOR = "t2spo"  # fits a regressor a group: that is what would be measured


def main(*, quick: bool = False) -> None:
    """Prints the table."""
    world = Chain(ChainSetting(name="speed", horizon=HORIZON, density=0.3), seed=0)
    methods = [make(name) for name, entry in METHODS.items() if entry.knob is None]
    rows = [
        Limit(
            what=f"{TURNS:,} turns of a chain, {method.name}",
            ours=_step(world, method),
            limit=TURNS / TURNS_PER_SECOND,
        )
        for method in methods
        if method.name != _REGRESSOR and can_play(world, method)
    ]
    report("Played and credited on one core", rows, repeats=3 if quick else 9)


def _step(world: Chain, method: Method) -> Callable[[], object]:
    tasks = world.tasks(TURNS // (ROLLOUTS * HORIZON))

    def step() -> object:
        episodes = world.play(tasks, ROLLOUTS, 0)
        return assign(world, group_by_task(episodes, seed=0, step=0), method)

    return step


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
