"""vLLM on several servers: requests go to the least busy one, and a server that fails is left out.

Because noise is keyed, a request that is sent again gives the same tokens, whoever answers it. A
failed server is tried again by the first call after a pause, and serves only once it has taken up
the weights of now. Leaves out starting servers (`serve`).
"""

import math
import re
import shutil
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
from safetensors.torch import save_file

from trainer.engines import Counts, Session
from trainer.engines.client import Client, Refusal, ServerError
from trainer.engines.parity import Parity, Reading
from trainer.engines.requests import Answer, Ending, Player
from trainer.policy import Policy
from trainer.policy.lora import plain_weights
from twinstats.errors import UsageError

_PAUSE_SECONDS = 60.0  # then twice, four times ... as long while it goes on failing,
_MOST_DOUBLINGS = 5  # up to half an hour
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?|[0-9a-f:.]*:[0-9a-f:.]*")  # a name, or IPv6


def addresses_in(text: str) -> list[str]:
    """The addresses in a comma-separated list; http:// where none says otherwise.

    They come in one spelling: lower case, without a port that is the scheme's own.

    Raises:
        UsageError: One that is no address, holds more than one, or is given twice.
    """
    found: list[str] = []
    for word in filter(None, map(str.strip, text.split(","))):
        address = _address(word)
        if address in found:
            raise UsageError(f"`engine.servers` names {address} twice.")
        found.append(address)
    return found


def _address(word: str) -> str:
    """The one spelling of an address."""
    if "@" in word:  # what is before it may be a password: it is not repeated
        raise UsageError("`engine.servers` takes http://HOST:PORT, without user or password.")
    try:
        url = httpx.URL((word if "://" in word else f"http://{word}").lower())
    except httpx.InvalidURL as error:
        raise UsageError(f"`engine.servers` has no address in {word!r}: {error}.") from error
    has_port = url.port is None or 0 < url.port < 2**16
    is_host = _HOST.fullmatch(url.raw_host.decode()) and has_port
    is_bare = url.raw_path == b"/" and not url.fragment
    if url.scheme not in ("http", "https") or not (is_host and is_bare):
        raise UsageError(f"`engine.servers` takes http://HOST:PORT, got {word!r}.")
    return f"{url.scheme}://{url.netloc.decode()}"


@dataclass(slots=True)
class _Server:
    """A server, and how it is doing.

    Attributes:
        client: Talks to it.
        error: Why it is left out; null while it serves.
        in_flight: Requests that it has not answered.
        failures: Times in a row that it failed.
        retry_at: When it may be tried again, on the monotonic clock.
        reading: What the probes said after its last weights.
        is_told: The user knows that it is left out.
    """

    client: Client
    error: str | None = "was not asked yet"
    in_flight: int = 0
    failures: int = 0
    retry_at: float = 0.0
    reading: Reading | None = None
    is_told: bool = True

    def fail(self, error: Exception) -> None:
        """Leaves it out for a while."""
        self.error = str(error)
        pause = _PAUSE_SECONDS * 2 ** min(self.failures, _MOST_DOUBLINGS)
        self.retry_at = time.monotonic() + pause
        self.failures += 1
        self.is_told = False


class ServerEngine:
    """Samples turns on vLLM servers.

    Each session is played by a thread of its own, its environment included, so that a slow one
    holds up nobody else.

    Args:
        policy: The learner, whose weights `sync` takes up; the first time is now.
        addresses: Of the servers.
        ending: When a turn is over.
        parity: The check after each sync.
        max_length: Tokens of a context.
        max_requests: Turns asked for at once, over all servers.
        timeout_seconds: A server that has not answered after so long has failed.
        batch_invariant: Servers must have been started with VLLM_BATCH_INVARIANT=1.

    Raises:
        RuntimeError: What `sync` raises.
    """

    def __init__(
        self,
        policy: Policy,
        addresses: Sequence[str],
        *,
        ending: Ending,
        parity: Parity,
        max_length: int,
        max_requests: int,
        timeout_seconds: float,
        batch_invariant: bool = False,
    ) -> None:
        vocabulary = policy.model.config.vocab_size
        self._policy, self._ending, self._parity = policy, ending, parity
        self._max_length, self._max_requests = max_length, max_requests
        self._batch_invariant = batch_invariant
        self._servers = [
            _Server(Client(one, vocabulary=vocabulary, timeout_seconds=timeout_seconds))
            for one in addresses
        ]
        self._lock = threading.Lock()
        self._root = tempfile.mkdtemp(prefix="twinstats-weights-")
        weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        self._folder: Path | None = None
        self.counts = Counts()
        self.explains = False
        self.sync()

    def run(self, sessions: Sequence[Session], *, temperature: float) -> None:
        """Plays all sessions to their ends.

        Where a server fails, its turns are sampled by the others. When all have failed, each is
        tried once more; if none works then, the sessions that are not over fail, and so does this.

        Raises:
            UsageError: The noise of a turn is more than a key; asked of all before any is sent.
            RuntimeError: No server works; names each with its last error.
        """
        ending = self._ending
        players = [Player(one, ending=ending, temperature=temperature) for one in sessions]
        self._mend(time.monotonic())
        while players:
            with ThreadPoolExecutor(min(self._max_requests, len(players))) as pool:
                is_over = list(pool.map(self._play, players))
            players = [p for p, over in zip(players, is_over, strict=True) if not over]
            self._mend_if_lost(players)
        self._tell()

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether a turn is over with the last of these tokens: a stop id, or all it may have."""
        return self._ending.ends(tokens)

    def sync(self) -> None:
        """Writes the policy's weights into a folder, has every server load them, and compares.

        A server that cannot is left out; one that was left out is tried if its pause is over.

        Raises:
            RuntimeError: A server loads them, and its log-probabilities or tokens are not the
                learner's; or no server works.
        """
        before, self._folder = self._folder, Path(tempfile.mkdtemp(dir=self._root))
        weights = plain_weights(self._policy.model)
        save_file(
            {name: one.contiguous() for name, one in weights},
            self._folder / "model.safetensors",
        )
        now = time.monotonic()
        asked = [one for one in self._servers if one.error is None or one.retry_at <= now]
        self._load(asked, is_strict=True)
        if before is not None:
            shutil.rmtree(before)
        self._mend_if_lost([])

    def _mend_if_lost(self, players: Sequence[Player]) -> None:
        """Tries all servers once more if none works; if none does then, the sessions fail."""
        if self._lost() is None:
            return
        self._mend(math.inf)
        if (reason := self._lost()) is not None:
            for player in players:
                player.fail(reason)
            raise RuntimeError(reason)

    def _play(self, player: Player) -> bool:
        """Plays a session until it is over or no server is left; whether it is over."""
        while (server := self._take()) is not None:
            try:
                answer = self._sample(server, player)
            finally:
                self._release(server)
            if answer is not None:
                with self._lock:
                    player.count(answer, self.counts)
                player.take(answer)
            if player.is_over:
                return True
        return False

    def _sample(self, server: _Server, player: Player) -> Answer | None:
        """A server's answer; null where it has none, which may be the end of the session."""
        reason = player.request.excess(self._max_length)
        if reason is not None:
            player.fail(reason)
            return None
        try:
            return server.client.sample(player.request)
        except Refusal as refusal:
            player.fail(f"{server.client.address} refuses the turn: {refusal}")
        except ServerError as error:
            with self._lock:
                if server.error is None:  # of the many requests that it had, one is enough
                    server.fail(error)
            player.attempts += 1
            if player.attempts >= 2 * len(self._servers):
                player.fail(
                    f"no server sampled the turn in {player.attempts} attempts; "
                    f"{server.client.address} {error}"
                )
        return None

    def _take(self) -> _Server | None:
        """The least busy server, which is busier now; null if none serves."""
        with self._lock:
            serving = [server for server in self._servers if server.error is None]
            if not serving:
                return None
            server = min(serving, key=lambda one: one.in_flight)
            server.in_flight += 1
            return server

    def _release(self, server: _Server) -> None:
        with self._lock:
            server.in_flight -= 1

    def _mend(self, until: float) -> None:
        """Tries the servers that are left out and whose pause is over by then."""
        self._tell()
        due = [one for one in self._servers if one.error is not None and one.retry_at <= until]
        self._load(due, is_strict=False)

    def _load(self, servers: Sequence[_Server], *, is_strict: bool) -> None:
        """Gives servers the weights of now; those that prove it serve.

        Raises:
            RuntimeError: `is_strict`, and one samples from something else than these weights.
        """
        if not servers:
            return
        with ThreadPoolExecutor(len(servers)) as pool:
            probed = list(pool.map(self._probe, servers))
        for server, answers in zip(servers, probed, strict=True):
            if isinstance(answers, ServerError):
                server.fail(answers)
                continue
            address = server.client.address
            try:
                server.reading = self._parity.check(answers, before=server.reading, where=address)
            except RuntimeError as error:
                if is_strict:
                    raise
                server.fail(ServerError(f"does not agree with the learner: {error}"))
            else:
                server.error, server.failures = None, 0
        self._tell()

    def _probe(self, server: _Server) -> list[Answer] | ServerError:
        """What a server answers to the probes with the weights of now, or why it does not."""
        client = server.client
        assert self._folder is not None
        try:
            length = client.max_length()
            if length < self._max_length:
                return ServerError(
                    f"has a context of {length} tokens, and the run needs {self._max_length} "
                    "(`--max-model-len`)"
                )
            if self._batch_invariant and not client.is_batch_invariant():
                return ServerError("was started without VLLM_BATCH_INVARIANT=1")
            client.load(self._folder)
            return [client.sample(probe) for probe in self._parity.probes]
        except ServerError as error:
            return error
        except Refusal as refusal:
            return ServerError(f"refuses a probe: {refusal}")

    def _tell(self) -> None:
        """Warns of each server that was newly left out."""
        for server in self._servers:
            if server.error is not None and not server.is_told:
                server.is_told = True
                warnings.warn(
                    f"{server.client.address} is left out: it {server.error}.",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _lost(self) -> str | None:
        """Why no server works, each by name; null if one does."""
        if any(server.error is None for server in self._servers):
            return None
        errors = [f"{server.client.address} {server.error}" for server in self._servers]
        return f"No vLLM server works: {'; '.join(errors)}."
