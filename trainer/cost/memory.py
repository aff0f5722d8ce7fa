"""The memory of one GPU, in bytes by part: of the learner, and of what samples.

Upper bounds within the assumptions: every row of a micro-batch is as long as a row can be. Leaves
out what frameworks take for themselves (`OVERHEAD` stands for it) and fragmentation.
"""

from trainer.config import Config
from trainer.cost.shape import Shape
from trainer.cost.tokens import StepTokens
from trainer.learning.reference import needs_reference

FLOAT32, BFLOAT16 = 4, 2
OVERHEAD = 3 * 10**9
"""Assumed: the CUDA context, cuBLAS and NCCL buffers of a process, bytes."""

LOGIT_COPIES = 6
"""Of a chunk's logits in float32 at the peak: as they come, over the temperature, their
log-softmax, and three temporaries of the entropy. The backward pass needs fewer."""

GATHERED_LAYERS = 2
"""FSDP2: layers that are whole at a time, the one that computes and the one that comes next."""

Parts = dict[str, float]


def learner_memory(config: Config, shape: Shape, step: StepTokens, *, gpus: int) -> Parts:
    """Bytes of a learner's GPU, by part.

    Args:
        config: Precision, checkpointing, chunks, adapters, sharding and micro-batch.
        shape: The model's.
        step: How long rows are.
        gpus: Number of processes that share the batch, one a GPU.
    """
    is_sharded = config.learner.sharding == "fsdp2" and gpus > 1
    shard = gpus if is_sharded else 1
    rank = config.lora.rank
    adapters = shape.adapters(rank)
    trained = adapters if rank else shape.parameters
    parts = {
        "weights": FLOAT32 * (shape.parameters + adapters) / shard,
        "gradients": FLOAT32 * trained / shard,
        "optimizer": 2 * FLOAT32 * trained / shard,
    }
    if is_sharded:
        whole = GATHERED_LAYERS * shape.layer + shape.root
        parts["whole layers"] = FLOAT32 * whole * (1 if rank else 2)  # and their gradients
        parts["rank 0: the policy"] = FLOAT32 * (shape.parameters + adapters)
    if config.learner.precision == "bfloat16":
        parts["weights in bfloat16"] = BFLOAT16 * (shape.layers * shape.linear + shape.table)
    if needs_reference(config.loss) and not rank:
        parts["reference"] = FLOAT32 * shape.parameters / shard
    rows = min(config.loss.micro_rows, -(-step.rows // gpus))
    parts["activations"] = activations(config, shape, tokens=rows * step.most_length)
    parts["logits"] = logits(config, shape, tokens=rows * step.most_sampled)
    return parts | {"overhead": OVERHEAD}


def activations(config: Config, shape: Shape, *, tokens: int) -> float:
    """Bytes that the layers keep of some tokens for the backward pass.

    With gradient checkpointing that is each layer's input, and all of one layer at a time.
    """
    whole = layer_activations(shape, precision=config.learner.precision)
    if config.learner.gradient_checkpointing:
        return tokens * (shape.layers * FLOAT32 * shape.hidden + whole)
    return tokens * shape.layers * whole


def layer_activations(shape: Shape, *, precision: str) -> float:
    """Bytes that one layer keeps of one token.

    In float32: of two norms their input and what it is before the gain, 4 H, and two scales; of
    attention a scale a head. In the precision of products: what matrices multiply, 2 H (with
    autocast 5 H: each matrix has its input cast anew) and I; attention's queries, keys, values and
    output, 2 Q + 2 K; the gated product's factors, 3 I. H, Q, K, I are the sizes of the hidden
    state, of all queries, of all keys, and inside the MLP.
    """
    is_low = precision == "bfloat16"
    kept = FLOAT32 * (4 * shape.hidden + 2 + shape.heads)
    inputs = (5 if is_low else 2) * shape.hidden
    products = inputs + 2 * shape.query + 2 * shape.key + 4 * shape.intermediate
    return kept + (BFLOAT16 if is_low else FLOAT32) * products


def logits(config: Config, shape: Shape, *, tokens: int) -> float:
    """Bytes of the logits of some trained tokens while their loss is computed."""
    chunk = config.learner.chunk_tokens
    return LOGIT_COPIES * FLOAT32 * shape.vocabulary * (min(tokens, chunk) if chunk else tokens)


def kv_bytes(shape: Shape, *, size: int) -> int:
    """Bytes of the keys and values of one token in all layers."""
    return 2 * shape.layers * shape.key * size


def serving_memory(config: Config, shape: Shape, step: StepTokens, *, servers: int) -> Parts:
    """Bytes of a GPU that samples, by part; with `hf`, what is held besides the learner's.

    vLLM has its own weights, in bfloat16 on servers and as the policy has them (float32) in this
    process, and `engine.cache_mib` of keys and values. `hf` decodes with the learner's weights.

    Args:
        config: Names the engine.
        shape: The model's.
        step: How many rows there are, and how long.
        servers: Number of GPUs that only sample.
    """
    cache = float(config.engine.cache_mib * 2**20)
    if config.engine.name == "vllm":
        size = BFLOAT16 if servers else FLOAT32
        parts = {"weights": float(size * shape.parameters), "keys and values": cache}
        return parts | ({"overhead": float(OVERHEAD)} if servers else {})
    rows = min(config.rollout.max_batch, step.rows)
    decoded = rows * step.most_length * kv_bytes(shape, size=FLOAT32)
    return {"keys and values": cache + decoded}


def fitting_rows(config: Config, shape: Shape, step: StepTokens, *, servers: int) -> int:
    """How many rows of expected length a GPU's keys and values have room for at a time, up to all.

    At least 1: vLLM refuses to start with less.
    """
    if config.engine.name == "hf":
        return min(config.rollout.max_batch, step.rows)
    size = BFLOAT16 if servers else FLOAT32
    room = config.engine.cache_mib * 2**20 / kv_bytes(shape, size=size)
    share = -(-step.rows // max(1, servers))
    return max(1, min(share, int(room / step.row_length)))
