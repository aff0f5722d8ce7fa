"""Loaded into each worker of a server on a CPU before its weights are: they stay replaceable.

Importing it is all it does; vLLM imports what `--worker-extension-cls` names (`serve`).
"""

from trainer.engines.vllm import keep_plain_weights

keep_plain_weights()


class PlainWeights:
    """Adds nothing to a worker."""
