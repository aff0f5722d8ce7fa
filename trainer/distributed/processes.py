"""The processes that `torchrun` started, and what they tell each other.

Messages go from rank 0 to one rank and back as safetensors: nothing is unpickled. Leaves out what
is computed together (`trainer.learning`).
"""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from trainer.config import Config
from twinstats.errors import Stopped, UsageError

_ANSWER = timedelta(minutes=30)  # what one rank may be behind another within an update
_COMMAND = timedelta(days=7)  # what a rank waits for rank 0, which plays meanwhile
_VALUES = "values.json"
_STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Message:
    """What one process tells another.

    Attributes:
        command: What it is about.
        values: Numbers and nulls by name.
        tensors: Tensors by name.
    """

    command: str
    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The processes of a run, seen by one of them; by default it is alone.

    Attributes:
        rank: Its number; 0 leads.
        size: How many there are.
        device: Where its part of the model is.
        control: The group whose waits may be long; null for a single process.
        store: What all can reach without the others' help; null for a single process.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default=torch.device("cpu"))
    control: dist.ProcessGroup | None = None
    store: Store | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that plays, logs and decides."""
        return self.rank == 0

    def tell(self, messages: Message | Sequence[Message]) -> None:
        """Gives every rank but 0, which tells, its message of those by rank, or the only one."""
        for rank in range(1, self.size):
            self._send(messages if isinstance(messages, Message) else messages[rank], rank)

    def told(self) -> Message:
        """What rank 0 tells this rank next; waits while it plays."""
        return self._receive(0)

    def gathered(self, message: Message) -> list[Message]:
        """The messages of all ranks, by rank; empty on all but rank 0."""
        if not self.leads:
            self._send(message, 0)
            return []
        return [message, *(self._receive(rank) for rank in range(1, self.size))]

    def wait(self) -> None:
        """Returns once every rank is here."""
        if self.size > 1:
            dist.barrier(group=self.control)

    def first_to_end(self, how: str) -> str:
        """How the run ended, as the first of its processes to end it says; this one says `how`."""
        assert self.store is not None
        try:
            return self.store.compare_set("ended", "", how).decode()
        except dist.DistError:  # the store ended with the process that holds it
            return "unknown"

    def _send(self, message: Message, rank: int) -> None:
        values = {"command": message.command, "values": dict(message.values)}
        content = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
        tensors = {name: value.contiguous().cpu() for name, value in message.tensors.items()}
        data = torch.frombuffer(bytearray(save(tensors | {_VALUES: content})), dtype=torch.uint8)
        dist.send(torch.tensor(len(data)), rank, group=self.control)
        dist.send(data, rank, group=self.control)

    def _receive(self, rank: int) -> Message:
        length = torch.tensor(0)
        dist.recv(length, rank, group=self.control)
        data = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(data, rank, group=self.control)
        tensors = load(data.numpy().tobytes())
        told = json.loads(tensors.pop(_VALUES).numpy().tobytes())
        return Message(told["command"], told["values"], tensors)


ALONE = Processes()
"""A run of one process."""


@contextmanager
def joined() -> Iterator[Processes]:
    """The processes that this one was started with, together until the block is left.

    Without `torchrun` it is alone. Where one ends before the others all end: it says why, and the
    others, whose connection to it breaks, say nothing and exit with code 1, or with 0 where it was
    told to stop. All but rank 0 leave SIGTERM to that one.

    Raises:
        SystemExit: Another process ended first.
        RuntimeError: Another process is gone or silent, and did not say why.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    processes = _join()
    try:
        yield processes
    except BaseException as error:
        own = _STOPPED if isinstance(error, Stopped) else f"rank {processes.rank}"
        if (ended := processes.first_to_end(own)) != own:
            raise SystemExit(0 if ended == _STOPPED else 1) from error
        if _is_cut_off(error):
            raise RuntimeError(
                f"Process {processes.rank} lost another of the {processes.size}, which was killed "
                "or does not answer; the last checkpoint is whole, go on from it with --resume."
            ) from error
        raise
    dist.destroy_process_group()


def check_processes(config: Config, processes: Processes) -> None:
    """Refuses what several processes cannot do.

    Raises:
        UsageError: vLLM inside one of them, which would take their group for its own.
    """
    if processes.size > 1 and config.engine.name == "vllm" and not config.engine.servers:
        raise UsageError(
            f"`engine.servers` must be set for {processes.size} processes "
            "(--set engine.servers=HOST:PORT,HOST:PORT, one a GPU that samples, each started by "
            "python -m trainer.engines.serve): vLLM inside one of them would take the others for "
            "its own."
        )


def _join() -> Processes:
    store, rank, size = next(rendezvous("env://"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_ANSWER)
    control = dist.new_group(backend="gloo", timeout=_COMMAND)
    if rank > 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return Processes(rank=rank, size=size, device=device, control=control, store=store)


def _is_cut_off(error: BaseException) -> bool:
    """Whether a collective failed because of another process; gloo says so in words only."""
    words = ("gloo", "nccl", "Connection closed", "Connection reset")
    is_network = isinstance(error, dist.DistError) or any(word in str(error) for word in words)
    return isinstance(error, RuntimeError) and is_network
