"""How far a chain's twins end apart, exactly: second moments under shared and fresh luck.

Leaves out how they are computed (`tabular_twins`).
"""

from simulations.worlds import tabular_twins
from simulations.worlds.chain_model import ChainModel, tables
from simulations.worlds.tabular_twins import TwinMoments


def twin_moments(model: ChainModel, start: int = 0) -> TwinMoments:
    """The exact moments for episodes that start in state `start`."""
    return tabular_twins.twin_moments(tables(model), [start])
