"""A vLLM server for `trainer.engines.servers`: keyed noise inside, weights taken up on request.

    python -m trainer.engines.serve MODEL --port 8001    [what `vllm serve` takes]

It is `vllm serve` with our processor, without the sampling defaults that come with a model, and
with vLLM's developer endpoints, through which it takes up weights. Whoever reaches those can do
with the server as they like: it listens to this machine alone, unless `--host` says otherwise.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

PLAIN_WEIGHTS = "trainer.engines.plain_weights.PlainWeights"


def main(words: Sequence[str]) -> None:
    """Serves until it is stopped.

    Args:
        words: The model, and what `vllm serve` takes.
    """
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # read when vLLM is imported
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup

    cli_env_setup()
    command = ServeSubcommand()
    arguments = parse(words)
    command.validate(arguments)
    command.cmd(arguments)


def parse(words: Sequence[str]) -> Any:
    """The command line of `vllm serve`, with our processor and defaults of our own."""
    from vllm import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from trainer.processors.vllm import processor

    parser = make_arg_parser(FlexibleArgumentParser(prog="trainer.engines.serve"))
    parser.set_defaults(
        host="127.0.0.1",
        generation_config="vllm",
        enable_prefix_caching=True,
        enable_prompt_tokens_details=True,
    )
    if current_platform.is_cpu():
        parser.set_defaults(worker_extension_cls=PLAIN_WEIGHTS)
    arguments = parser.parse_args(list(words))
    arguments.model = arguments.model_tag or arguments.model
    engine = EngineArgs.from_cli_args(arguments)
    given = {field.name: getattr(engine, field.name) for field in dataclasses.fields(engine)}
    arguments.logits_processors = [*(engine.logits_processors or []), processor(**given)]
    return arguments


if __name__ == "__main__":
    main(sys.argv[1:])
