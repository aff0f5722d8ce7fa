"""vLLM in this process: keyed noise inside, continuous batching, prefix caching, weights by hand.

Leaves out several servers (`servers`) and more than one GPU. Drafts are not used: the engine's own
prefix cache serves forks. What has run where is told in docs/vllm.md.
"""

import itertools
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from trainer.engines import Counts, Session
from trainer.engines.parity import Parity, Reading
from trainer.engines.requests import Answer, Ending, Player, TurnRequest
from trainer.policy import Policy
from trainer.policy.lora import plain_weights
from twinstats.errors import UsageError

_THREADS = 32  # environments that are played at once


def make_llm(
    policy: Policy,
    *,
    max_length: int,
    max_batch: int,
    cache_mib: int,
    batch_invariant: bool = False,
    **changes: Any,
) -> Any:
    """A `vllm.LLMEngine` of the policy's architecture, with keyed noise and arbitrary weights.

    Args:
        policy: Its configuration and number format are taken; weights come with the first sync.
        max_length: Tokens of a context.
        max_batch: Requests decoded together.
        cache_mib: Memory of its keys and values, MiB.
        batch_invariant: Logits that do not depend on batch mates (VLLM_BATCH_INVARIANT).
        changes: Other engine arguments of vLLM.

    Raises:
        UsageError: `batch_invariant` comes too late: vLLM was imported without it.
    """
    _prepare(batch_invariant)
    from vllm import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine

    from trainer.processors.vllm import processor

    if current_platform.is_cpu():
        keep_plain_weights()
    with tempfile.TemporaryDirectory() as folder:
        policy.model.config.save_pretrained(folder)
        arguments = {
            "model": folder,
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "dtype": str(policy.model.dtype).removeprefix("torch."),
            "enforce_eager": current_platform.is_cpu(),
            "max_model_len": max_length,
            "max_num_seqs": max_batch,
            "kv_cache_memory_bytes": cache_mib * 2**20,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            **changes,
        }
        arguments["logits_processors"] = [processor(**arguments)]
        return LLMEngine.from_engine_args(EngineArgs(**arguments))


def keep_plain_weights() -> None:
    """Keeps vLLM's CPU build from packing copies of weights, which would ignore later ones."""
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False


def _prepare(batch_invariant: bool) -> None:
    """Sets what vLLM reads from the environment when it is imported."""
    # Its core in this process, or the learner's tensors would have to be sent to another.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if batch_invariant and os.environ.get("VLLM_BATCH_INVARIANT") != "1":
        if "vllm" in sys.modules:
            raise UsageError(
                "`engine.batch_invariant` comes too late, vLLM was imported before: "
                "set VLLM_BATCH_INVARIANT=1 in the environment."
            )
        os.environ["VLLM_BATCH_INVARIANT"] = "1"


class VllmEngine:
    """Samples turns with vLLM in this process.

    A session's next turn joins the batch as soon as its environment has answered; environments are
    played on threads of their own meanwhile, each session by one thread at a time.

    Args:
        policy: The learner, whose weights `sync` takes up; the first time is now.
        llm: What `make_llm` returned.
        ending: When a turn is over.
        parity: The check after each sync.
        timeout_seconds: Without any turn finished for so long, `run` gives up.

    Raises:
        RuntimeError: What `sync` raises.
    """

    def __init__(
        self, policy: Policy, llm: Any, *, ending: Ending, parity: Parity, timeout_seconds: float
    ) -> None:
        self._policy, self._llm, self._ending = policy, llm, ending
        self._parity, self._timeout_seconds = parity, timeout_seconds
        self._max_length: int = llm.vllm_config.model_config.max_model_len
        self._names = itertools.count()
        self._moved = time.monotonic()
        self._is_broken = False
        self.counts = Counts()
        self.explains = False
        self._reading: Reading | None = None
        self.sync()

    def run(self, sessions: Sequence[Session], *, temperature: float) -> None:
        """Plays all sessions to their ends.

        Raises:
            UsageError: The noise of a turn is more than a key; asked of all before any is sent.
            RuntimeError: vLLM finished no turn for too long, or failed in an earlier call.
        """
        self._check_works()
        ending = self._ending
        players = [Player(one, ending=ending, temperature=temperature) for one in sessions]
        running: dict[str, Player] = {}
        thinking: dict[Future, Player] = {}
        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                for player in players:
                    self._start(player, running)
                while running or thinking:
                    for player, answer in self._finished(running):
                        thinking[pool.submit(player.take, answer)] = player
                    for future in _done(thinking, patient=not running):
                        future.result()  # a bug of the session is raised here
                        player = thinking.pop(future)
                        if not player.is_over:
                            self._start(player, running)
        finally:
            if running and not self._is_broken:
                self._llm.abort_request(list(running))

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether a turn is over with the last of these tokens: a stop id, or all it may have."""
        return self._ending.ends(tokens)

    def sync(self) -> None:
        """Copies the policy's weights into vLLM, forgets cached prefixes, and compares the two.

        Raises:
            RuntimeError: vLLM's log-probabilities or tokens are not the learner's afterwards, or
                its cache could not be emptied.
        """
        self._check_works()
        weights = plain_weights(self._policy.model)
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache after new weights.")
        answers = self._answers(self._parity.probes)
        self._reading = self._parity.check(answers, before=self._reading, where="vLLM")

    def _check_works(self) -> None:
        if self._is_broken:
            raise RuntimeError("vLLM failed in an earlier call: make the engine anew.")

    def _start(self, player: Player, running: dict[str, Player]) -> None:
        """Submits a player's turn; without room for it the session fails."""
        reason = player.request.excess(self._max_length)
        if reason is None:
            running[self._submit(player.request)] = player
        else:
            player.fail(reason)

    def _submit(self, request: TurnRequest) -> str:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        name = str(next(self._names))
        params = SamplingParams(
            temperature=0,  # the processor has left one token
            extra_args=request.keyed.extra_args(),
            max_tokens=request.max_tokens,
            stop_token_ids=sorted(request.ending.pauses),
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._llm.add_request(name, {"prompt_token_ids": list(request.prompt)}, params)
        self._moved = time.monotonic()
        return name

    def _finished(self, running: dict[str, Player]) -> list[tuple[Player, Answer]]:
        """Takes a step; the players whose turn is over leave `running`."""
        finished = []
        for name, (answer, reason) in (self._step() if running else {}).items():
            player = running.pop(name)
            if not all(map(math.isfinite, answer.logprobs)):
                player.fail(f"vLLM's logits were NaN or infinite {_place(answer, player)}")
                continue
            if not player.request.fits(answer.tokens):
                sampled = len(answer.tokens)
                player.fail(f"vLLM cut the turn after {sampled} tokens: {reason}")
                continue
            player.count(answer, self.counts)
            finished.append((player, answer))
        return finished

    def _step(self) -> dict[str, tuple[Answer, str]]:
        """One pass of the model; by name, the answers that it completed and why they ended.

        Raises:
            RuntimeError: Nothing was finished for too long.
        """
        self._is_broken = True  # and stays so where vLLM raises, for it may never return again
        outputs = self._llm.step()
        self._is_broken = False
        self.counts.passes += 1
        if outputs:
            self._moved = time.monotonic()
        elif time.monotonic() - self._moved > self._timeout_seconds:
            raise RuntimeError(
                f"vLLM finished no turn in {self._timeout_seconds:g} seconds "
                "(`engine.timeout_seconds`)."
            )
        return {output.request_id: _answer(output) for output in outputs}

    def _answers(self, requests: Sequence[TurnRequest]) -> list[Answer]:
        """What vLLM samples for requests, outside any run."""
        passes = self.counts.passes
        names = [self._submit(request) for request in requests]
        found: dict[str, tuple[Answer, str]] = {}
        while len(found) < len(names):
            found |= self._step()
        self.counts.passes = passes
        return [found[name][0] for name in names]


def _answer(output: Any) -> tuple[Answer, str]:
    """A finished output of vLLM, and why it ended."""
    (sampled,) = output.outputs
    tokens = tuple(sampled.token_ids)
    pairs = zip(tokens, sampled.logprobs, strict=True)
    answer = Answer(
        tokens=tokens,
        logprobs=tuple(found[token].logprob for token, found in pairs),
        cached=output.num_cached_tokens or 0,
    )
    return answer, str(sampled.finish_reason)


def _place(answer: Answer, player: Player) -> str:
    """Where the first log-probability stands that is not finite."""
    (first, *_) = (n for n, told in enumerate(answer.logprobs) if not math.isfinite(told))
    return f"at token {len(player.request.sampled) + first} of {player.request.keyed.key}"


def _done(thinking: dict[Future, Player], *, patient: bool) -> list[Future]:
    """The environments that have answered; waits for one if there is nothing else to do."""
    done, _ = wait(thinking, timeout=None if patient else 0, return_when=FIRST_COMPLETED)
    return list(done)
