"""Files of demonstrations to learn from: JSON lines, of two kinds that may be mixed.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"observations": ["<question>...", ...], "turns": ["<search>...", ...]}

Of a chat the assistant's messages are learned, rendered with the tokenizer's chat template; without
a template all texts are joined as they stand. Of an episode, as `twice retrofit` reads it, the
turns are learned, and every observation must be known. Other keys of a line are not read. Leaves
out the learning itself (`sft`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.chat_template import ChatTemplate
from trainer.json_lines import json_object, numbered_lines
from trainer.logged.episode_log import refuse_unknown_ids, turns_of
from trainer.policy import Policy
from trainer.supervised.updates import Tokens
from trainer.tasks.messages import Message
from twinstats.episodes import Task
from twinstats.errors import UsageError

ROLES = ("system", "user", "assistant", "tool")
_SHOWN = 5  # unusable lines that a refusal names
_LETTERS = 200  # of a foreign text that a message shows

Segment = tuple[str | Sequence[int], bool]
"""A piece of text or its token ids, and whether it is learned."""


def read_demonstrations(path: Path, policy: Policy, longest: int) -> list[Tokens]:
    """The demonstrations of a file, in its order; all lines are read before any is refused.

    Args:
        path: A file of JSON lines; empty lines are skipped.
        policy: Whose tokens they become.
        longest: Most tokens that a demonstration may have.

    Raises:
        UsageError: No such file, no demonstration in it, or lines that are none: the first five
            are named with their reasons.
    """
    found, unusable = [], []
    for number, line in numbered_lines(path):
        try:
            found.append(_demonstration(json_object(line), policy, longest))
        except ValueError as error:
            unusable.append(f"line {number}: {error!s:.{_LETTERS}}")
    if unusable:
        more = f" And {len(unusable) - _SHOWN} more." if len(unusable) > _SHOWN else ""
        raise UsageError(f"{path} has unusable lines. {' '.join(unusable[:_SHOWN])}{more}")
    if not found:
        raise UsageError(f"{path} must hold at least one demonstration, a JSON object a line.")
    return found


def tokens_of(policy: Policy, segments: Sequence[Segment]) -> Tokens:
    """Each segment encoded for itself, as the tokens of an episode are when it is played."""
    ids: list[int] = []
    learned: list[bool] = []
    for content, is_learned in segments:
        own = policy.encode(content) if isinstance(content, str) else content
        ids += own
        learned += [is_learned] * len(own)
    return Tokens(ids, learned)


def chat_segments(policy: Policy, messages: Sequence[Message]) -> list[Segment]:
    """The text of a chat in pieces: those that the assistant writes, and what is between them.

    By the template they are what an episode of the same chat would be (`trainer.chat_template`): a
    reply ends with the token that ends a message, and no other text can hold a control token. What
    follows the last reply is left out.

    Raises:
        UsageError: The template does not show an assistant's message as it is.
        ValueError: The template refuses the chat.
    """
    if policy.tokenizer.chat_template is None:
        return [(one["content"], one["role"] == "assistant") for one in messages]
    template = ChatTemplate(policy.tokenizer)
    segments: list[Segment] = []
    place, turn = 0, None
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        shown = _shown(template, turn, messages[place:index])
        place, turn = index + 1, message["content"] + template.ends[0]
        segments += [(shown, False), (turn, True)]
    return segments


def _shown(template: ChatTemplate, turn: str | None, messages: Sequence[Message]) -> str:
    """What stands between a turn (null: the beginning) and the next one."""
    try:
        return template.opening(messages) if turn is None else template.between(turn, messages)
    except Exception as error:  # a template is a program of its author's, with errors of its own
        raise ValueError(f"the chat template refuses it: {error!s:.{_LETTERS}}") from error


def _demonstration(row: Mapping[str, Any], policy: Policy, longest: int) -> Tokens:
    if ("messages" in row) == ("turns" in row):
        raise ValueError("a line must have either `messages` or `turns`.")
    read: Callable[[Mapping[str, Any], Policy], list[Segment]]
    read = _chat if "messages" in row else _episode
    segments = read(row, policy)
    if any(isinstance(text, str) and not _is_unicode(text) for text, _ in segments):
        raise ValueError("it has half of a surrogate pair, which is no text.")
    found = tokens_of(policy, segments)
    if not any(found.learned[1:]):
        raise ValueError("no token is learned: an assistant must say something.")
    if len(found.ids) > longest:
        raise ValueError(f"it must have at most {longest} tokens, got {len(found.ids)}.")
    return found


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _chat(row: Mapping[str, Any], policy: Policy) -> list[Segment]:
    messages = row["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError("`messages` must be a list of at least one message.")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise ValueError(f"`messages[{index}]` must have a role of {', '.join(ROLES)}.")
        if not isinstance(message.get("content"), str):
            raise ValueError(f"`messages[{index}]` must have a text as `content`.")
    return chat_segments(policy, messages)


def _episode(row: Mapping[str, Any], policy: Policy) -> list[Segment]:
    logged = turns_of(row, Task("", {}), "")
    refuse_unknown_ids(logged, policy.model.config.vocab_size)
    if not logged.observations or None in logged.observations:
        raise ValueError("`observations` must hold what was shown before every turn.")
    return list(_interleaved(logged.observations, logged.turns))


def _interleaved(
    shown: Sequence[str | None], turns: Sequence[str | Sequence[int]]
) -> Iterator[Segment]:
    for text, turn in zip(shown, turns, strict=True):
        yield text or "", False
        yield turn, True
