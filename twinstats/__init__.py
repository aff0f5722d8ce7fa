"""Same luck, different choice: statistics for paired ("twin") outcomes, and twin-world credit.

Logs (`twinstats.records`), credit methods (`twinstats.credit`) and the words of episodes
(`twinstats.episodes`) are modules of their own.
"""

from twinstats.allocation import Allocation, DiscordancePredictor, sqrt_allocation
from twinstats.complexity import ExponentFit, fit_exponent, regime
from twinstats.coupling import agreement, disagreement_bounds, joint, posterior_gumbel
from twinstats.noise import NoiseKey, gumbel, sample
from twinstats.pairs import PairedResult, paired
from twinstats.power import detectable_effect, paired_power, pairs_needed
from twinstats.sequential import PairedSequence
from twinstats.variance import VarianceAccount, variance_account

__all__ = [
    "Allocation",
    "DiscordancePredictor",
    "ExponentFit",
    "NoiseKey",
    "PairedResult",
    "PairedSequence",
    "VarianceAccount",
    "agreement",
    "detectable_effect",
    "disagreement_bounds",
    "fit_exponent",
    "gumbel",
    "joint",
    "paired",
    "paired_power",
    "pairs_needed",
    "posterior_gumbel",
    "regime",
    "sample",
    "sqrt_allocation",
    "variance_account",
]
