"""What every process but rank 0 does: its share of each update, until rank 0 says stop."""

from collections.abc import Callable

from trainer.distributed.processes import Message
from trainer.learning.collectives import add_up, bring_together
from trainer.learning.learner import Learner, new_sums, ready
from trainer.learning.learner_state import take_up
from trainer.learning.optimizer import gathered_optimizer
from trainer.learning.shares import unpacked
from trainer.learning.update_sums import UpdateSums


def serve(learner: Learner) -> None:
    """Computes with the others what rank 0 tells; returns when the run is over.

    Raises:
        RuntimeError: The connection to another process is lost.
    """
    sums = new_sums(learner.config)
    commands: dict[str, Callable[[Message], object]] = {
        "policy": lambda message: _pass(learner, message),
        "reference": lambda message: _pass(learner, message),
        "update": lambda message: _update(learner, message, sums),
        "finish": lambda _: _finish(learner, sums),
        "save": lambda _: gathered_optimizer(learner.optimizer),
        "load": lambda message: take_up(learner, message, {}),
    }
    with ready(learner.model, checkpoints=learner.config.learner.gradient_checkpointing):
        while (message := learner.processes.told()).command != "stop":
            commands[message.command](message)
            if message.command == "finish":
                sums = new_sums(learner.config)


def _pass(learner: Learner, message: Message) -> None:
    batch, _ = unpacked(message, learner.processes.device)
    logp_RL = learner.pass_over(message.command, batch)
    learner.processes.gathered(Message(message.command, tensors={"logp": logp_RL}))


def _update(learner: Learner, message: Message, sums: UpdateSums) -> None:
    batch, given = unpacked(message, learner.processes.device)
    learner.take_update(batch, given, sums, rate=message.values["rate"])


def _finish(learner: Learner, sums: UpdateSums) -> None:
    add_up(learner.processes, sums)
    bring_together(learner.policy, learner.model, learner.processes)
