"""One vLLM server over HTTP: asks for turns and checks every word of the answers.

A server may be dead, hang, drip, or answer nonsense: all that is a `ServerError`, after a bounded
time. Leaves out what becomes of its requests then (`servers`).
"""

import json
import math
import time
import uuid
import weakref
from pathlib import Path
from typing import Any

import httpx

from trainer.engines.requests import Answer, TurnRequest

_MAX_BYTES = 2**24  # of an answer; a turn of 30,000 tokens takes a tenth of it
_SHOWN = 200  # letters of a foreign text that a message shows


class ServerError(Exception):
    """The server cannot be relied on; the message says what it did."""


class Refusal(Exception):
    """The server works, but not for this request; the message is the server's."""


class Client:
    """A server started by `trainer.engines.serve`.

    Args:
        address: Where it listens: http://127.0.0.1:8001.
        vocabulary: Ids that it may answer are below this.
        timeout_seconds: An answer must be complete after so long.
    """

    def __init__(self, address: str, *, vocabulary: int, timeout_seconds: float) -> None:
        self.address = address
        self._vocabulary, self._timeout_seconds = vocabulary, timeout_seconds
        # a proxy of the environment has no business between a learner and its servers
        self._http = httpx.Client(
            base_url=address,
            timeout=httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, 10.0)),
            trust_env=False,
            # shorter than the server's own, or it might hang up just when a request is sent
            limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),
        )
        weakref.finalize(self, self._http.close)

    def sample(self, request: TurnRequest) -> Answer:
        """The turn that a request asks for.

        Raises:
            ServerError: No answer in time, or one that is not an answer to this request.
            Refusal: The server refuses the request.
        """
        name = uuid.uuid4().hex
        body = {
            "request_id": name,
            "prompt": list(request.prompt),
            "max_tokens": request.max_tokens,
            "stop_token_ids": sorted(request.ending.pauses),
            "ignore_eos": True,
            "temperature": 0,  # the processor has left one token
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "vllm_xargs": request.keyed.extra_args(),
        }
        return self._checked(self._call("POST", "/v1/completions", body), request, name)

    def load(self, folder: Path) -> None:
        """Makes the server take up the weights in a folder that it sees, and forget its cache.

        Raises:
            ServerError: It does not.
        """
        rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        try:
            self._call("POST", "/collective_rpc", rpc)
            # requests of ours that we gave up may still hold blocks
            path = "/reset_prefix_cache?reset_running_requests=true"
            reply = self._call("POST", path, None)
        except Refusal as error:
            raise ServerError(f"takes up no weights: {error}") from error
        if not isinstance(reply, dict) or reply.get("success") is not True:
            raise ServerError(f"did not empty its prefix cache: {_shown(reply)}")

    def max_length(self) -> int:
        """Tokens of the server's context.

        Raises:
            ServerError: It does not tell.
        """
        try:
            length = self._call("GET", "/v1/models", None)["data"][0]["max_model_len"]
        except (Refusal, LookupError, TypeError) as error:
            raise ServerError(f"does not tell its context's length: {error}") from error
        if not _is_count(length):
            raise ServerError(f"tells {_shown(length)} as its context's length")
        return length

    def is_batch_invariant(self) -> bool:
        """Whether the server was started with VLLM_BATCH_INVARIANT=1.

        Raises:
            ServerError: It does not tell.
        """
        try:
            told = self._call("GET", "/server_info?config_format=json", None)
            return bool(told["vllm_env"].get("VLLM_BATCH_INVARIANT", False))
        except (Refusal, LookupError, TypeError, AttributeError) as error:
            raise ServerError(f"does not tell its environment: {error}") from error

    def _call(self, method: str, path: str, body: Any) -> Any:
        """The JSON that the server answers, bounded in time and size."""
        deadline = time.monotonic() + self._timeout_seconds
        content = b""
        try:
            with self._http.stream(method, path, json=body) as response:
                for piece in response.iter_bytes():
                    content += piece
                    if len(content) > _MAX_BYTES:
                        raise ServerError(f"answers more than {_MAX_BYTES} bytes")
                    if time.monotonic() > deadline:
                        raise ServerError(
                            f"did not finish its answer in {self._timeout_seconds:g} seconds"
                        )
        except httpx.TimeoutException as error:
            raise ServerError(
                f"did not answer in {self._timeout_seconds:g} seconds ({type(error).__name__})"
            ) from error
        except httpx.HTTPError as error:
            is_unreachable = isinstance(error, httpx.ConnectError)
            what = "cannot be reached" if is_unreachable else "broke a request off"
            raise ServerError(f"{what} ({type(error).__name__}: {error})") from error
        return _read(response.status_code, content)

    def _checked(self, reply: Any, request: TurnRequest, name: str) -> Answer:
        """An answer that is one to the request."""
        try:
            (choice,) = reply["choices"]
            tokens, prompt = tuple(choice["token_ids"]), tuple(choice["prompt_token_ids"])
            logprobs = tuple(choice["logprobs"]["token_logprobs"])
            details = reply["usage"].get("prompt_tokens_details") or {}
            cached, named = details.get("cached_tokens") or 0, reply["id"]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ServerError(
                f"answers something else than a completion ({error}): {_shown(reply)}"
            ) from error
        rules = {
            f"an id outside the vocabulary of {self._vocabulary}": not all(
                _is_count(token) and token < self._vocabulary for token in tokens
            ),
            "another request": named != f"cmpl-{name}" or prompt != request.prompt,
            f"no whole turn of at most {request.max_tokens} tokens": not request.fits(tokens),
            "not one log-probability a token": len(logprobs) != len(tokens)
            or not all(map(_is_logprob, logprobs)),
            "more cached tokens than the prompt has": not _is_count(cached) or cached > len(prompt),
        }
        for what, is_so in rules.items():
            if is_so:
                raise ServerError(f"answers {what}: {_shown(reply)}")
        return Answer(tokens=tokens, logprobs=logprobs, cached=cached)


def _read(status: int, content: bytes) -> Any:
    """The JSON of an answer, if it is a good one."""
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        raise ServerError(f"answers status {status} and no JSON: {_shown(content)}") from None
    if status == 200:
        return reply
    error = reply.get("error") if isinstance(reply, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if status == 400 and isinstance(message, str):
        raise Refusal(f"{message:.{_SHOWN}}")
    raise ServerError(f"answers status {status}: {_shown(reply)}")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_logprob(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value < 1e-3


def _shown(reply: Any) -> str:
    """The beginning of what a server said."""
    return f"{reply!r:.{_SHOWN}}"
