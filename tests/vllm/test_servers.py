"""Two real vLLM servers on this machine, started by `trainer.engines.serve`; one is killed.

Minutes: each server is three processes that import vLLM.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
import torch

from tests.vllm import agents
from tests.vllm.lab import IS_V2
from trainer.engines.servers import ServerEngine

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(IS_V2, reason="servers have no Triton to interpret"),
]

START_SECONDS = 300


class Server:
    """A server process with children of its own."""

    def __init__(self, folder, log):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address, self.log = f"http://127.0.0.1:{self.port}", log
        settings = {
            "--port": self.port,
            "--dtype": "float32",
            "--max-model-len": agents.MODEL.max_length,
            "--max-num-seqs": 8,
            "--block-size": 32,
            "--kv-cache-memory-bytes": 2**24,
        }
        words = [str(word) for pair in settings.items() for word in pair]
        command = [sys.executable, "-m", "trainer.engines.serve", str(folder), "--enforce-eager"]
        self.process = subprocess.Popen(
            [*command, *words],
            env={name: value for name, value in os.environ.items() if name not in NOT_FOR_SERVERS},
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self):
        """Returns once it answers."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            try:
                httpx.get(f"{self.address}/health", trust_env=False).raise_for_status()
                return
            except httpx.HTTPError:
                time.sleep(0.5)
        raise TimeoutError(f"{self.address}: {self.log.read_text(errors='replace')[-3000:]}")

    def kill(self):
        """Ends it and its children at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


NOT_FOR_SERVERS = ("VLLM_ENABLE_V1_MULTIPROCESSING", "PYTHONPATH")


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    return agents.make_policy()


@pytest.fixture(scope="module")
def servers(policy, tmp_path_factory):
    """Two servers, started one after the other with weights that are not the policy's."""
    folder = tmp_path_factory.mktemp("servers")
    started = []
    with torch.no_grad():
        last = next(iter(policy.model.parameters()))
        last.mul_(2)
        policy.save(folder / "model")
        last.div_(2)
    try:
        for number in range(2):
            started.append(Server(folder / "model", folder / f"log{number}"))
            started[-1].wait()
        yield started
    finally:
        for server in started:
            server.kill()


def rollout_of(policy, servers, *settings):
    addresses = ",".join(server.address for server in servers)
    return agents.rollout_of(
        policy,
        "engine.name=vllm",
        f"engine.servers={addresses}",
        f"engine.parity_nats={agents.PARITY}",
        *settings,
    )


def test_rollouts_and_twins_are_those_of_the_reference_engine(policy, servers):
    found = rollout_of(policy, servers)
    assert isinstance(found.engine, ServerEngine)
    agents.assert_rollouts_agree(found, agents.rollout_of(policy))
    counts = found.engine.counts.take()
    assert counts.sampled > 500 and counts.reused > 500 and 0 < counts.reencoded < counts.encoded


def test_after_a_sync_they_sample_what_hf_samples_with_the_new_weights(policy, servers):
    found, wanted = rollout_of(policy, servers), agents.rollout_of(policy)
    before = agents.told(agents.play(found))
    agents.shift(policy, 1.1)
    assert agents.told(agents.play(found)) == before
    found.engine.sync()
    assert agents.told(agents.play(found)) == agents.told(agents.play(wanted)) != before


def test_servers_tell_that_they_are_not_batch_invariant(policy, servers):
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="VLLM_BATCH_INVARIANT=1"):
        rollout_of(policy, servers, "engine.batch_invariant=true")


def test_a_server_that_is_killed_in_the_middle_changes_nothing(policy, servers):
    """Last, for one server stays dead."""
    found, wanted = rollout_of(policy, servers), agents.rollout_of(policy)
    first, second = servers
    sample, lock, asked = found.engine._servers[0].client.sample, threading.Lock(), []

    def killing(request):
        with lock:
            asked.append(request)
            if len(asked) == 5:
                first.kill()
        return sample(request)

    found.engine._servers[0].client.sample = killing
    with pytest.warns(RuntimeWarning, match=f"{first.address} is left out: it"):
        agents.assert_rollouts_agree(found, wanted)
    assert len(asked) >= 5 and first.process.poll() is not None
    found.engine.sync()  # the one that is left still takes up weights
    second.kill()
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError) as caught:
        agents.play(found, step=1)
    assert all(one.address in str(caught.value) for one in servers)
    assert "\n" not in str(caught.value)
