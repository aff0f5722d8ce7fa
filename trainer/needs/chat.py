"""A chat server behind the OpenAI interface: a question goes out, a text comes back.

Leaves out what is asked and how a reply is read (`server_judge`).
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx

from twinstats.errors import UsageError

KEY = "TWINSTATS_JUDGE_KEY"
"""Environment variable with the server's key; no other place is looked at."""

TRIES = 3
_AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)  # worth another try
_WRONG = (401, 403, 404)  # no try will help: key, address or model is wrong
_WORKERS = 8  # requests at a time

Message = dict[str, str]


class Reply(NamedTuple):
    """What a server said; or why nothing of use came."""

    text: str | None
    reason: str | None = None


class ChatServer:
    """Asks one model of a server, at temperature 0, with a bounded number of tries.

    Args:
        address: As http://localhost:8000/v1, what `/chat/completions` is added to.
        model: The model's name.
        seconds: For one reply.
        pause: Seconds before the second try; doubled before each further one.
    """

    def __init__(self, address: str, *, model: str, seconds: float, pause: float = 0.5) -> None:
        self._address, self._model, self._pause = address.rstrip("/"), model, pause
        key = os.environ.get(KEY, "").strip()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(timeout=seconds, headers=headers)

    def refuse_unreachable(self) -> None:
        """Checks that something answers at the address, and does not refuse the key.

        Raises:
            UsageError: Nothing does, or it does.
        """
        try:
            status = self._client.get(f"{self._address}/models").status_code
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        if status in (401, 403):
            raise self._wrong(status)

    def ask(self, conversations: Sequence[Sequence[Message]]) -> list[Reply]:
        """The reply to each conversation, several asked at a time.

        Raises:
            UsageError: The server cannot be reached, or refuses key, address or model.
        """
        with ThreadPoolExecutor(_WORKERS) as pool:
            return list(pool.map(self._ask, conversations))

    def _ask(self, messages: Sequence[Message]) -> Reply:
        reply = Reply(None)
        for number in range(TRIES):
            if number:
                time.sleep(self._pause * 2 ** (number - 1))
            try:
                response = self._post(messages)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if number == TRIES - 1:
                    raise self._unreachable(error) from error
                continue
            except httpx.RequestError as error:
                reply = Reply(None, _named(error))
                continue
            if response.status_code not in _AGAIN:
                return self._read(response)
            reply = Reply(None, f"the judge answered status {response.status_code}")
        return reply

    def _post(self, messages: Sequence[Message]) -> httpx.Response:
        body = {"model": self._model, "messages": list(messages), "temperature": 0}
        return self._client.post(f"{self._address}/chat/completions", json=body)

    def _read(self, response: httpx.Response) -> Reply:
        status = response.status_code
        if status in _WRONG:
            raise self._wrong(status)
        if not response.is_success:
            return Reply(None, f"the judge answered status {status}")
        try:
            text = _content(response.json())
        except (ValueError, RecursionError):  # no JSON, no Unicode, or brackets without end
            text = None
        return Reply(text, None if text is not None else "the judge answered no chat completion")

    def _wrong(self, status: int) -> UsageError:
        return UsageError(
            f"The judge at {self._address} answered status {status}: check `needs.judge`, "
            f"`needs.judge_model` and, if it wants a key, {KEY}."
        )

    def _unreachable(self, error: Exception) -> UsageError:
        return UsageError(
            f"The judge at {self._address} (`needs.judge`) cannot be reached: {_named(error)}."
        )


def _content(body: Any) -> str | None:
    """The text of the first choice; null where the reply has another shape."""
    try:
        text = body["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return None
    return text if isinstance(text, str) else None


def _named(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
