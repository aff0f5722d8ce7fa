"""The engine `vllm` in this process, where the model makes no law of a row: without vLLM."""

import sys
from types import SimpleNamespace

import torch

from trainer.engines.requests import Ending
from trainer.engines.vllm import VllmEngine
from trainer.processors.request import request_of
from twinstats.noise import NoiseKey

SICK, STOP = 66, 5


class Llm:
    """What the engine uses of vLLM: it says the prompt's last id and stops; `SICK` makes NaN."""

    def __init__(self):
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=50))
        self.waiting, self.requests, self.aborted = [], [], []

    def collective_rpc(self, method, kwargs):
        pass

    def reset_prefix_cache(self):
        return True

    def abort_request(self, names):
        self.aborted += names

    def add_request(self, name, prompt, params):
        self.requests.append(request_of(params.extra_args))
        self.waiting.append((name, prompt["prompt_token_ids"], params))

    def step(self):
        done, self.waiting = self.waiting, []
        return [self._output(*one) for one in done]

    def _output(self, name, prompt, params):
        is_sick = SICK in prompt
        ids = [0] * params.max_tokens if is_sick else [prompt[-1], STOP]
        told = [-1.0] + [torch.nan if is_sick else -2.0] * (len(ids) - 1)
        logprobs = [
            {token: SimpleNamespace(logprob=one)} for token, one in zip(ids, told, strict=True)
        ]
        sampled = SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason="stop")
        return SimpleNamespace(request_id=name, outputs=[sampled], num_cached_tokens=0)


class Line:
    """A session of two turns, each followed by the ids that it was given."""

    def __init__(self, row, prompt, shown):
        self.row, self.prompt, self.shown = row, prompt, shown
        self.turns, self.reason = [], None

    def start(self):
        return self.prompt

    def key(self):
        return NoiseKey(7, 1, self.row, len(self.turns))

    def advance(self, turn):
        self.turns.append(turn)
        return None if len(self.turns) == 2 else self.shown

    def fail(self, reason):
        self.reason = reason


def test_a_turn_without_logits_ends_its_session_alone(monkeypatch):
    module = SimpleNamespace(SamplingParams=SimpleNamespace)
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=2))
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)
    llm = Llm()
    engine = VllmEngine(
        SimpleNamespace(model=torch.nn.Linear(1, 1)),
        llm,
        ending=Ending(stop=frozenset({STOP}), max_tokens=4),
        parity=SimpleNamespace(probes=(), check=lambda answers, before, where: None),
        timeout_seconds=60,
    )
    lines = [Line(0, [1, 2], [3]), Line(1, [SICK], [3]), Line(2, [1, 7], [SICK]), Line(3, [9], [8])]
    engine.run(lines, temperature=1.0)
    assert [[turn.tokens for turn in one.turns] for one in lines] == [
        [(2, STOP), (3, STOP)],
        [],
        [(7, STOP)],
        [(9, STOP), (8, STOP)],
    ]
    assert [one.reason for one in (lines[0], lines[3])] == [None, None]
    for one in lines[1:3]:
        key = NoiseKey(7, 1, one.row, len(one.turns))
        assert one.reason == f"vLLM's logits were NaN or infinite at token 1 of {key}"
    assert all(one.is_tolerant for one in llm.requests) and llm.aborted == []
    engine.run([Line(5, [9], [8])], temperature=1.0)  # it is fit for use
