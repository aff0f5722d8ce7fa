"""The configuration of a run: a tree of fields, and changes to it by `path=value`."""

from trainer.config.changes import changed, from_dict, parse
from trainer.config.machine import LENGTH, MACHINE
from trainer.config.paths import paths
from trainer.config.tree import (
    CheckpointConfig,
    Config,
    CreditConfig,
    EngineConfig,
    EvaluationConfig,
    KlKind,
    LearnerConfig,
    LengthConfig,
    LogConfig,
    LoraConfig,
    LossConfig,
    ModelConfig,
    NeedsConfig,
    OptimizerConfig,
    RolloutConfig,
    TaskConfig,
    WarmupConfig,
)

__all__ = [
    "LENGTH",
    "MACHINE",
    "CheckpointConfig",
    "Config",
    "CreditConfig",
    "EngineConfig",
    "EvaluationConfig",
    "KlKind",
    "LearnerConfig",
    "LengthConfig",
    "LogConfig",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "NeedsConfig",
    "OptimizerConfig",
    "RolloutConfig",
    "TaskConfig",
    "WarmupConfig",
    "changed",
    "from_dict",
    "parse",
    "paths",
]
