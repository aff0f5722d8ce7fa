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

from trainer.logged.episode_log import json_object, numbered_lines, refuse_unknown_ids, turns_of
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

    Of a template the assistant's piece is what it adds to the prompt for a reply, up to the token
    that ends the message; what it puts after that belongs to the next piece. What follows the last
    reply is left out.

    Raises:
        ValueError: The template refuses the chat, or writes earlier messages otherwise once later
            ones are there, so that no prompt is the beginning of the whole.
    """
    if policy.tokenizer.chat_template is None:
        return [(one["content"], one["role"] == "assistant") for one in messages]
    whole = _rendered(policy, messages)
    segments: list[Segment] = []
    place = 0
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        begin = len(_prefix(whole, _rendered(policy, messages[:index], add_generation_prompt=True)))
        written = _prefix(whole, _rendered(policy, messages[: index + 1]))[begin:]
        end = begin + len(_without_tail(policy, written))
        segments += [(whole[place:begin], False), (whole[begin:end], True)]
        place = end
    return segments


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


def _rendered(policy: Policy, messages: Sequence[Message], **options: bool) -> str:
    try:
        return str(policy.tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    except Exception as error:  # a template is a program of its author's, with errors of its own
        raise ValueError(f"the chat template refuses it: {error}.") from error


def _prefix(whole: str, prompt: str) -> str:
    if not whole.startswith(prompt):
        raise ValueError(
            "the chat template writes earlier messages otherwise once later ones are there: "
            "give the chat as several lines, each up to one reply."
        )
    return prompt


def _without_tail(policy: Policy, written: str) -> str:
    """A reply up to the special token that ends it, without the white space a template adds."""
    bare = written.rstrip()
    ends = tuple(policy.tokenizer.all_special_tokens)
    return bare if ends and bare.endswith(ends) else written
