"""How large a model is: sizes of its layers, and the parameters that follow from them.

Leaves out memory in bytes (`memory`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from trainer.config import ModelConfig
from twinstats.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a decoder with gated MLPs, grouped keys and RMS norms: Qwen2, Qwen3, Llama.

    Attributes:
        layers: Number of decoder layers.
        hidden: Size of the hidden state.
        intermediate: Size inside an MLP.
        heads: Query heads.
        kv_heads: Heads of keys and of values.
        head_size: Size of a head.
        vocabulary: Rows of the embedding table.
        is_tied: Whether the output layer is the embedding table.
        has_bias: Whether queries, keys and values have a bias.
        has_head_norms: Whether queries and keys are normalised.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    is_tied: bool
    has_bias: bool = True
    has_head_norms: bool = False

    @property
    def query(self) -> int:
        """Size of all queries of a token."""
        return self.heads * self.head_size

    @property
    def key(self) -> int:
        """Size of all keys of a token, and of all values."""
        return self.kv_heads * self.head_size

    @property
    def linear(self) -> int:
        """Weights of the matrices of one layer."""
        attention = self.hidden * (2 * self.query + 2 * self.key)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        bias = (self.query + 2 * self.key) * self.has_bias
        norms = 2 * self.hidden + 2 * self.head_size * self.has_head_norms
        return self.linear + bias + norms

    @property
    def table(self) -> int:
        """Parameters of the embedding table."""
        return self.vocabulary * self.hidden

    @property
    def root(self) -> int:
        """Parameters outside the layers: embeddings, output layer, last norm."""
        return self.table * (1 if self.is_tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.layer + self.root

    def adapters(self, rank: int) -> int:
        """Parameters of adapters (LoRA) on all matrices of all layers: rank * (in + out) each."""
        sides = 2 * (self.hidden + self.query) + 2 * (self.hidden + self.key)
        return self.layers * rank * (sides + 3 * (self.hidden + self.intermediate))


def _qwen(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int) -> Shape:
    """A Qwen2.5 model; those up to 3B have a smaller table, which is also their output layer."""
    is_small = hidden <= 2048
    return Shape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_size=hidden // heads,
        vocabulary=151_936 if is_small else 152_064,
        is_tied=is_small,
    )


KNOWN: Mapping[str, Shape] = MappingProxyType(
    {
        "Qwen2.5-0.5B": _qwen(24, 896, 4864, 14, 2),
        "Qwen2.5-1.5B": _qwen(28, 1536, 8960, 12, 2),
        "Qwen2.5-3B": _qwen(36, 2048, 11_008, 16, 2),
        "Qwen2.5-7B": _qwen(28, 3584, 18_944, 28, 4),
        "SmolLM2-135M": Shape(
            layers=30,
            hidden=576,
            intermediate=1536,
            heads=9,
            kv_heads=3,
            head_size=64,
            vocabulary=49_152,
            is_tied=True,
            has_bias=False,
        ),
    }
)
"""Published sizes by name, without the owner before it and "-Instruct" after it."""

_FAMILIES = {"qwen2": (True, False), "qwen3": (False, True), "llama": (False, False)}


def shape_of(model: ModelConfig) -> Shape:
    """The shape of a configuration's model; no weights are read.

    Raises:
        UsageError: A pretrained model that is neither known nor a folder, or a folder whose model
            is of another kind.
    """
    name = model.pretrained
    if not name:
        return Shape(
            layers=model.layers,
            hidden=model.hidden,
            intermediate=model.intermediate,
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_size=model.hidden // model.heads,
            vocabulary=model.vocabulary,
            is_tied=True,
        )
    known = name.rsplit("/", 1)[-1].removesuffix("-Instruct")
    if Path(name).is_dir():
        return _read(Path(name))
    if known in KNOWN:
        return KNOWN[known]
    raise UsageError(
        f"`model.pretrained`: the size of {name!r} is not known here; it must be a local folder "
        f"with a config.json, or one of {', '.join(KNOWN)}."
    )


def _read(folder: Path) -> Shape:
    """The shape that a folder's config.json tells, with the defaults of transformers."""
    from transformers import AutoConfig

    try:
        told = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"`model.pretrained`: {folder} has no config.json to read.") from error
    if told.model_type not in _FAMILIES:
        raise UsageError(
            f"`model.pretrained`: {folder} is a model of kind {told.model_type}; the estimate "
            f"knows {', '.join(_FAMILIES)}."
        )
    has_bias, has_head_norms = _FAMILIES[told.model_type]
    return Shape(
        layers=told.num_hidden_layers,
        hidden=told.hidden_size,
        intermediate=told.intermediate_size,
        heads=told.num_attention_heads,
        kv_heads=told.num_key_value_heads,
        head_size=getattr(told, "head_dim", None) or told.hidden_size // told.num_attention_heads,
        vocabulary=told.vocab_size,
        is_tied=told.tie_word_embeddings,
        has_bias=has_bias,
        has_head_norms=has_head_norms,
    )
