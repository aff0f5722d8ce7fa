"""Which engine a run samples with: `config.engine`."""

import importlib.util

from trainer.config import Config
from trainer.engines import Engine
from trainer.engines.hf import HfEngine
from trainer.engines.parity import Parity
from trainer.engines.requests import Ending
from trainer.engines.servers import ServerEngine, addresses_in
from trainer.engines.stops import StopTexts
from trainer.engines.vllm import VllmEngine, make_llm
from trainer.noise import sources
from trainer.noise.sources import Sampler
from trainer.policy import Policy
from twinstats.errors import UsageError


def check_engine(config: Config) -> None:
    """Refuses an engine that cannot be made, before anything is paid for it.

    Raises:
        UsageError: What is vLLM's for another engine, addresses that are none, vLLM in this
            process without memory or where it is not installed, or a coupling that it lacks.
    """
    engine = config.engine
    servers = addresses_in(engine.servers)
    if engine.name == "hf" and servers:
        raise UsageError("`engine.servers` are vLLM's: set `engine.name=vllm` too.")
    if engine.name == "hf" and engine.batch_invariant:
        raise UsageError("`engine.batch_invariant` is vLLM's: set `engine.name=vllm` too.")
    if engine.name == "vllm" and config.credit.options.get("coupling") == "maximal":
        raise UsageError("`credit.options.coupling=maximal` needs `engine.name=hf`: vLLM lacks it.")
    if engine.name == "vllm" and not servers and engine.cache_mib < 1:
        raise UsageError("`engine.cache_mib` must be at least 1 with vLLM in this process, got 0.")
    if engine.name == "vllm" and not servers and importlib.util.find_spec("vllm") is None:
        raise UsageError(
            "`engine.name=vllm` needs vLLM in this environment "
            "(`pip install 'twinstats[vllm]'`, a GPU) or `engine.servers`."
        )


def make_engine(
    policy: Policy,
    config: Config,
    *,
    stop: frozenset[int],
    texts: StopTexts | None = None,
    sampler: Sampler = sources.sample,
) -> Engine:
    """The engine of a run, in sync with the policy.

    Args:
        policy: Model and tokenizer.
        config: The run's.
        stop: Ids that end a turn.
        texts: Texts that end a turn as well.
        sampler: What draws the tokens in `hf`; vLLM has keyed noise inside.

    Raises:
        UsageError: What `check_engine` refuses.
        ValueError: vLLM with a sampler of its own.
        RuntimeError: vLLM does not sample from the policy's weights, or no server works.
    """
    check_engine(config)
    if config.engine.name == "hf":
        return HfEngine(
            policy.model,
            stop=stop,
            max_turn_tokens=config.rollout.max_turn_tokens,
            texts=texts,
            max_batch=config.rollout.max_batch,
            drafts=config.engine.drafts,
            cache_mib=config.engine.cache_mib,
            sampler=sampler,
        )
    if sampler is not sources.sample:
        raise ValueError("`sampler` needs `engine.name=hf`: vLLM draws with keyed noise alone.")
    ending = Ending(stop=stop, max_tokens=config.rollout.max_turn_tokens, texts=texts)
    return _vllm_engine(policy, config, ending)


def _vllm_engine(policy: Policy, config: Config, ending: Ending) -> Engine:
    engine, max_length = config.engine, config.model.max_length
    parity = Parity(policy, longest=max_length, tolerance=engine.parity_nats)
    if engine.servers:
        return ServerEngine(
            policy,
            addresses_in(engine.servers),
            ending=ending,
            parity=parity,
            max_length=max_length,
            max_requests=config.rollout.max_batch,
            timeout_seconds=engine.timeout_seconds,
            batch_invariant=engine.batch_invariant,
        )
    llm = make_llm(
        policy,
        max_length=max_length,
        max_batch=config.rollout.max_batch,
        cache_mib=engine.cache_mib,
        batch_invariant=engine.batch_invariant,
    )
    return VllmEngine(
        policy, llm, ending=ending, parity=parity, timeout_seconds=engine.timeout_seconds
    )
