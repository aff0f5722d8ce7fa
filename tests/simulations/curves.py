"""A small learning study: few methods, tokens and seeds."""

from simulations.studies import learning
from simulations.worlds.chain_model import ChainSetting

CHAIN = ChainSetting(name="chain", horizon=5, density=0.6)


def small_setting(world=CHAIN, **kwargs):
    """A setting that takes a second at most for a few methods."""
    kwargs = {"total_tokens": 400, "step_sizes": (1.0, 4.0)} | kwargs
    return learning.Setting(world=world, **kwargs)


def small_curves(methods=("rloo", "dr_grpo", "independent", "twice"), num_seeds=2):
    """The rows of a few methods on a short chain."""
    setting = small_setting(methods=methods)
    return [row for seed in range(num_seeds) for row in learning.run(setting, seed)]
