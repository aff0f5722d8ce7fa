"""Compares the updates of several processes with those of one, on the same recorded episodes.

    torchrun --nproc-per-node N distributed_program.py CASES.json FOUND.json

A case has `rows`, `steps` and `settings`; what is found of each is told by `compared`.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from trainer.config import Config, ModelConfig, changed
from trainer.distributed.processes import Message, joined
from trainer.distributed.weights import whole
from trainer.learning.learner_state import make_learner, optimizer_tensors, restore_learner
from trainer.learning.optimizer import trained_parameters
from trainer.learning.worker import serve
from trainer.policy import Policy, build_model
from trainer.policy.lora import add_adapters
from twinstats.episodes import Credit, Episode, Task, Turn

MODEL = ModelConfig(
    layers=2, hidden=32, intermediate=64, heads=4, kv_heads=2, vocabulary=600, max_length=256
)


def recorded(rows, step):
    """Credit of both signs for episodes of one to four turns, of very different lengths."""
    rng = np.random.default_rng([7, step])
    episodes = [episode(rng, row) for row in range(rows)]
    return [Credit(episodes=episodes, values=[rng.normal(size=e.num_turns) for e in episodes])]


def episode(rng, row):
    turns = [turn(rng) for _ in range(rng.integers(1, 5))]
    ended = {"outcome": 0.5, "terminated": True, "truncated": False}
    return Episode(task=Task("a", {}), step=1, row=row, turns=turns, **ended)


def turn(rng):
    shown, action = (tuple(rng.integers(1, 600, rng.integers(1, 12)).tolist()) for _ in "ab")
    info = {"shown": shown, "logprobs": tuple(rng.normal(-6, 0.5, len(action)).tolist())}
    return Turn(
        action=action, logprob=0.0, entropy=None, num_tokens=len(action), state="", info=info
    )


def compared(case, processes):
    """Largest relative differences to one process; null on all ranks but 0.

    `metrics`, `weights` and `state` (of the optimizer) are after all steps. Then all processes
    take up weights and state of the one: `gradient` is of a step from there, and `resumed` the
    weights after it.
    """
    config = changed(Config(recipe="demo", model=MODEL), case["settings"])
    policy = policy_of(config)
    if processes.rank == 1:  # rank 0's weights are what counts
        with torch.no_grad():
            policy.model.get_output_embeddings().weight.fill_(7.0)
    together = make_learner(policy, config, processes)
    if not processes.leads:
        serve(together)
        gradients(together)
        return None
    both = together, make_learner(policy_of(config), config)
    told = [update(both, case["rows"], step) for step in range(1, case["steps"] + 1)]
    found = {
        "metrics": {name: largest(told, name) for name in told[0][0]},
        "weights": distance(*map(weights, both)),
        "state": distance(*(optimizer_tensors(one).values() for one in both)),
    }
    take_up(*both)
    update(both, case["rows"], case["steps"] + 1)
    processes.tell(Message("stop"))
    found["resumed"] = distance(*map(weights, both))
    return found | {"gradient": distance(*map(gradients, both))}


def policy_of(config):
    model = build_model(config.model, seed=0)
    add_adapters(model, config.lora, seed=0)
    return Policy(model, None)


def update(both, rows, step):
    return [one.update(recorded(rows, step), step) for one in both]


@torch.no_grad()
def take_up(together, alone):
    for mine, theirs in zip(weights(together), weights(alone), strict=True):
        mine.copy_(theirs)
    restore_learner(together, optimizer_tensors(alone))


def weights(learner):
    return [one.detach() for one in learner.policy.model.parameters()]


def gradients(learner):
    return [whole(one.grad) for one in trained_parameters(learner.model).values()]


def largest(told, name):
    pairs = [(own[name], other[name]) for own, other in told]
    return max(abs(own - other) / max(abs(other), 1e-3) for own, other in pairs)


def distance(own, other):
    """The largest norm of a difference over the norm, of lists of tensors."""
    pairs = zip(own, other, strict=True)
    return max(float((one - two).norm() / two.norm().clamp(min=1e-6)) for one, two in pairs)


def main(cases, found):
    torch.set_num_threads(1)
    with joined() as processes:
        told = [compared(case, processes) for case in json.loads(Path(cases).read_text())]
        if processes.leads:
            Path(found).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
