"""What engine and rollout did in a step, as metrics by name."""

import math
from collections.abc import Mapping
from dataclasses import asdict

from trainer.engines import Counts

PLAY_COUNTS = ("turns", "unstable_turns", "drift", "overfull")
"""What is counted of plays: `Play.counts`."""


def rollout_metrics(engine: Counts, plays: Mapping[str, int]) -> dict[str, float]:
    """The engine's counts and those of the plays, by the names of the log.

    Args:
        engine: What the engine did.
        plays: Sums of `Play.counts`; what is not there is 0.

    Returns:
        Tokens, counts, and `rollout/accepted_share`: of the drafted tokens, null without any.
    """
    counted: dict[str, float] = {f"rollout/{k}_tokens": v for k, v in asdict(engine).items()}
    counted["rollout/passes_count"] = counted.pop("rollout/passes_tokens")
    share = engine.accepted / engine.drafted if engine.drafted else math.nan
    counted["rollout/accepted_share"] = share
    return counted | {f"rollout/{name}_count": plays.get(name, 0) for name in PLAY_COUNTS}
