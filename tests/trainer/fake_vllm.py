"""A server that speaks as vLLM's does, with a model of its own; goes wrong as it is told."""

import copy
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from safetensors.torch import load_file

from trainer.processors.request import request_of, sample

MAX_LENGTH = 200


def completion(body, tokens, logprobs, cached):
    """What vLLM answers."""
    return {
        "id": f"cmpl-{body['request_id']}",
        "choices": [
            {
                "token_ids": tokens,
                "prompt_token_ids": body["prompt"],
                "logprobs": {"token_logprobs": logprobs},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens_details": {"cached_tokens": cached}},
    }


def changed(**changes):
    """A fault: the answer's only choice with other values."""
    return lambda reply: {**reply, "choices": [{**reply["choices"][0], **changes}]}


def of_tokens(change):
    """A fault: other tokens, with as many log-probabilities."""

    def fault(reply):
        tokens = change(reply["choices"][0]["token_ids"])
        return changed(token_ids=tokens, logprobs={"token_logprobs": [-1.0] * len(tokens)})(reply)

    return fault


def of_logprobs(change):
    """A fault: other log-probabilities."""

    def fault(reply):
        told = change(reply["choices"][0]["logprobs"]["token_logprobs"])
        return changed(logprobs={"token_logprobs": told})(reply)

    return fault


NONSENSE = {
    "no object": lambda reply: [reply],
    "no fields": lambda reply: {},
    "two choices": lambda reply: {**reply, "choices": reply["choices"] * 2},
    "no token ids": changed(token_ids=None),
    "no tokens": of_tokens(lambda tokens: []),
    "an id outside the vocabulary": of_tokens(lambda tokens: [600, *tokens[1:]]),
    "a negative id": of_tokens(lambda tokens: [-1, *tokens[1:]]),
    "a fraction as an id": of_tokens(lambda tokens: [1.5, *tokens[1:]]),
    "true as an id": of_tokens(lambda tokens: [True, *tokens[1:]]),
    "more tokens than asked": of_tokens(lambda tokens: [599] * 7),
    "a turn that is cut": of_tokens(lambda tokens: [599]),
    "tokens past a stop": of_tokens(lambda tokens: [0, *tokens]),
    "another request": lambda reply: {**reply, "id": "cmpl-0"},
    "another prompt": changed(prompt_token_ids=[1, 2]),
    "too few log-probabilities": of_logprobs(lambda told: told[1:]),
    "NaN": of_logprobs(lambda told: [float("nan"), *told[1:]]),
    "a positive log-probability": of_logprobs(lambda told: [0.5, *told[1:]]),
    "null log-probabilities": of_logprobs(lambda told: [None, *told[1:]]),
    "more cached than asked": lambda reply: {
        **reply,
        "usage": {"prompt_tokens_details": {"cached_tokens": 10_000}},
    },
}
"""Faults of an answer that is well-formed JSON."""

BYTES = {
    "no JSON": b"<html>hello</html>",
    "no text": b"\xff\xfe\x00",
    "nothing": b"",
    "a nest": b"[" * 200_000,
}
"""Faults of an answer that is none."""


class FakeServer:
    """One server.

    `fault(number)` names what goes wrong with the number-th turn that it is asked for (probes do
    not count): a name in NONSENSE or BYTES, a status, or "dies", "hangs", "drips", "floods".
    """

    def __init__(self, model, *, max_length=MAX_LENGTH, fault=lambda number: None):
        self.model, self.max_length, self.fault = copy.deepcopy(model).eval(), max_length, fault
        self.draws = lambda logits, request, done: int(sample(logits, [request], [done])[0])
        self.loads_weights, self.is_invariant, self.delay = True, False, 0.0
        self.asked, self.paths, self.cached = [], [], 0
        self.released = threading.Event()
        self._lock = threading.Lock()
        self._start(0)

    @property
    def address(self):
        return f"http://127.0.0.1:{self._port}"

    def kill(self):
        """Ends it as a crash would: nobody listens any more."""
        self.is_dead = True
        self._server.shutdown()
        self._server.server_close()

    def revive(self, model):
        """Starts it anew at the same address, with a model."""
        self.model = copy.deepcopy(model).eval()
        self._start(self._port)

    def close(self):
        self.released.set()
        if not self.is_dead:
            self.kill()

    def answer(self, method, path, body):
        """Status and JSON."""
        self.paths.append(path)
        if path == "/v1/completions":
            return self._complete(body)
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            weights = load_file(body["kwargs"]["weights_path"] + "/model.safetensors")
            if self.loads_weights:
                self.model.load_state_dict(weights, strict=False)
            return 200, {"results": [None]}
        replies = {
            "/reset_prefix_cache?reset_running_requests=true": {"success": True},
            "/v1/models": {"data": [{"max_model_len": self.max_length}]},
            "/server_info?config_format=json": {
                "vllm_env": {"VLLM_BATCH_INVARIANT": self.is_invariant}
            },
        }
        return (200, replies[path]) if path in replies else (404, {"detail": "Not Found"})

    def _start(self, port):
        self.is_dead = False
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads, self._server.block_on_close = True, False
        self._port = self._server.server_address[1]
        serve = {"target": self._server.serve_forever, "kwargs": {"poll_interval": 0.01}}
        threading.Thread(**serve, daemon=True).start()

    def _complete(self, body):
        if max(body["prompt"]) >= 600:
            return 400, {"error": {"message": "Token id is out of vocabulary"}}
        time.sleep(self.delay)
        request = request_of(body["vllm_xargs"])
        fault = None
        if request.key.purpose != "parity":
            with self._lock:
                self.asked.append(request.key)
                fault = self.fault(len(self.asked) - 1)
        reply = completion(body, *self._sample(body, request), self.cached)
        return 200 if fault is None else fault, reply

    @torch.inference_mode()
    def _sample(self, body, request):
        tokens, logprobs = [], []
        while len(tokens) < body["max_tokens"]:
            ids = torch.tensor([body["prompt"] + tokens])
            logits = self.model(ids).logits[:, -1].float()
            tokens.append(self.draws(logits, request, len(tokens)))
            logprobs.append(float(torch.log_softmax(logits, -1)[0, tokens[-1]]))
            if tokens[-1] in body["stop_token_ids"]:
                break
        return tokens, logprobs


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self._reply("GET", None)

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        self._reply("POST", json.loads(self.rfile.read(length)) if length else None)

    def _reply(self, method, body):
        status, reply = self.fake.answer(method, self.path, body)
        if self.fake.is_dead or status == "dies":
            self.close_connection = True
            if not self.fake.is_dead:
                self.fake.kill()
        elif status in ("hangs", "drips", "floods"):
            self._misbehave(status)
        elif status in BYTES:
            self._send(200, BYTES[status])
        elif status in NONSENSE:
            self._send(200, json.dumps(NONSENSE[status](reply)).encode())
        else:
            self._send(status, json.dumps(reply).encode())

    def _send(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if status == 307:
            self.send_header("Location", "http://127.0.0.1:9/")
        self.end_headers()
        self.wfile.write(content)

    def _misbehave(self, how):
        self.close_connection = True
        if how == "hangs":
            self.fake.released.wait(30)
            return
        self.send_response(200)
        self.end_headers()
        piece, pause = (b"[" * 2**16, 0.0) if how == "floods" else (b" ", 0.02)
        try:
            for _ in range(1000):
                if not self.fake.released.wait(pause):
                    self.wfile.write(piece)
        except OSError:
            pass  # the client had enough
