"""The columns of the tables that all commands share, and the version of their layout.

Other tables (one a study) bring their own columns. Leaves out reading and writing (`records`).
"""

from typing import Any

import polars as pl

SCHEMA_VERSION = 1

_TEXT, _INT, _REAL, _BOOL = pl.String, pl.Int64, pl.Float64, pl.Boolean
_ONE_OF_SEVERAL = {"decoding": _TEXT, "sample": _INT}  # of an evaluation's answers to a task

SCHEMAS: dict[str, dict[str, Any]] = {
    "metrics": {"step": _INT, "name": _TEXT, "value": _REAL, "reason": _TEXT},
    "episodes": {
        "step": _INT,
        "episode": _TEXT,
        "parent": _TEXT,
        "task": _TEXT,
        "row": _INT,
        "purpose": _TEXT,
        "fork_turn": _INT,
        "action": _TEXT,
        "luck": _TEXT,
        "alternative": _INT,
        "outcome": _REAL,
        "success": _BOOL,
        "terminated": _BOOL,
        "truncated": _BOOL,
        "num_turns": _INT,
        "sampled": _INT,
        "reason": _TEXT,
    },
    "turns": {
        "step": _INT,
        "episode": _TEXT,
        "turn": _INT,
        "slot": _INT,
        "num_tokens": _INT,
        "logprob": _REAL,
        "entropy": _REAL,
        "reward": _REAL,
        "state_class": _TEXT,
    },
    "pairs": {
        "step": _INT,
        "kind": _TEXT,
        "factual": _TEXT,
        "twin": _TEXT,
        "task": _TEXT,
        "turn": _INT,
        "slot": _INT,
        "alternative": _INT,
        "factual_outcome": _REAL,
        "twin_outcome": _REAL,
        "equal": _BOOL,
        "same_tokens": _BOOL,
        "sampled": _INT,
        "reason": _TEXT,
    },
    "allocations": {
        "step": _INT,
        "factual": _TEXT,
        "turn": _INT,
        "slot": _INT,
        "expected": _REAL,
        "count": _INT,
        "predicted_discordance": _REAL,
        "predicted_tail_tokens": _REAL,
        "price": _REAL,
    },
    "credit": {
        "step": _INT,
        "method": _TEXT,
        "episode": _TEXT,
        "turn": _INT,
        "value": _REAL,
        "share": _REAL,
        "truth": _REAL,
    },
    "texts": {
        "step": _INT,
        "episode": _TEXT,
        "turn": _INT,
        "role": _TEXT,
        "text": _TEXT,
    },
    "answers": {
        "step": _INT,
        "episode": _TEXT,
        "task": _TEXT,
        **_ONE_OF_SEVERAL,
        "part": _INT,
        "question": _TEXT,
        "answer": _TEXT,
        "relation": _TEXT,
        "hops": _TEXT,
        "data_source": _TEXT,
        "exact_match": _REAL,
        "f1": _REAL,
        "cover_match": _REAL,
    },
    "scores": {
        "step": _INT,
        "decoding": _TEXT,
        "metric": _TEXT,
        "kind": _TEXT,
        "group": _TEXT,
        "value": _REAL,
        "stderr": _REAL,
        "low": _REAL,
        "high": _REAL,
        "num_values": _INT,
        "num_tasks": _INT,
        "reason": _TEXT,
    },
}
"""Columns of the tables that all commands share. Other tables (one a study) bring their own.

`pairs.kind` is "twin" (shared luck), "control" (fresh luck), "draw" (numbered) or "null" (kept).
"""

SCHEMAS["evaluations"] = SCHEMAS["episodes"] | _ONE_OF_SEVERAL
