"""A leaderboard small enough for tests."""

from simulations.studies import leaderboard
from simulations.studies._leaderboard_entrants import Sweep
from simulations.worlds.chain_model import ChainSetting

SMALL = leaderboard.Setting(
    world=ChainSetting(name="small", horizon=4, density=0.5),
    sweep=Sweep(groups=(4, 8), knobs=(1, 9), ratios=(0, 1)),
    num_tasks=2,
    num_steps=1,
    num_burned=1,
)


def small_board(num_seeds=2):
    return [row for seed in range(num_seeds) for row in leaderboard.run(SMALL, seed)]
