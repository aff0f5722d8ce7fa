"""Rows of chat files, and those of Search-R1 and verl, as rows of tasks.

A row has a `prompt`: messages with `role` and `content`, or (in chats) a text. Search-R1's rows
have the right answers in `reward_model.ground_truth.target`, and come from a `data_source`, which
verl's variant calls "searchR1_" and its name. All other columns stay in the row's info under
`columns`, for rewards to read.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.tasks.files import FileRow
from trainer.tasks.messages import Message
from trainer.tasks.rows import TaskRow
from twinstats.errors import UsageError

VERL_PREFIX = "searchR1_"


def chat_row(row: FileRow, split: str) -> TaskRow:
    """A prompt and its columns.

    Raises:
        UsageError: A prompt that is none.
    """
    columns = dict(row.columns)
    prompt = _prompt(columns.pop("prompt", None), row.place)
    return TaskRow(f"{split}/{row.number}", _info(split, row, {"prompt": prompt}, columns))


def search_row(row: FileRow, split: str) -> TaskRow:
    """A question and its right answers, with the messages that ask it.

    The question is the column `question`, that of `extra_info`, or what the last message says after
    "Question:". Right answers may also stand in `golden_answers`.

    Raises:
        UsageError: A prompt that is none, no question, or no right answer.
    """
    columns = dict(row.columns)
    prompt = _prompt(columns.pop("prompt", None), row.place)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    source = str(columns.get("data_source") or "data").removeprefix(VERL_PREFIX)
    told = {
        "prompt": messages,
        "questions": [_question(columns, messages, row.place)],
        "golds": [_golds(columns, row.place)],
        "data_source": source,
    }
    return TaskRow(f"{source}/{split}/{row.number}", _info(split, row, told, columns))


def _info(
    split: str, row: FileRow, told: Mapping[str, Any], columns: Mapping[str, Any]
) -> dict[str, Any]:
    ids = [f"{split}/{row.number}"]
    return {"split": split, "parts": 1, "question_ids": ids, **told, "columns": columns}


def _prompt(prompt: Any, place: str) -> str | list[Message]:
    if isinstance(prompt, str) and prompt:
        if _are_messages(_json(prompt)):  # nobody means it as a text
            raise UsageError(
                "`prompt` must be a text in all rows of a file or messages in all, "
                f"{place} has messages written as a text."
            )
        return prompt
    if _are_messages(prompt):
        return [{"role": one["role"], "content": one["content"]} for one in prompt]
    raise UsageError(
        f"`prompt` must be a text or messages with role and content, {place} has {prompt!r}."
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return None


def _are_messages(told: Any) -> bool:
    is_list = isinstance(told, Sequence) and not isinstance(told, str)
    return is_list and len(told) > 0 and all(_is_message(one) for one in told)


def _is_message(one: Any) -> bool:
    return isinstance(one, Mapping) and all(
        isinstance(one.get(name), str) for name in ("role", "content")
    )


def _question(columns: Mapping[str, Any], messages: Sequence[Message], place: str) -> str:
    extra = columns.get("extra_info")
    named = [columns.get("question"), extra.get("question") if isinstance(extra, Mapping) else None]
    asked = messages[-1]["content"].rpartition("Question:")[2]
    question = next(
        (text.strip() for text in (*named, asked) if isinstance(text, str) and text.strip()), ""
    )
    if not question:
        raise UsageError(f"A row must have a question, {place} has none.")
    return question


def _golds(columns: Mapping[str, Any], place: str) -> list[str]:
    found: Any = columns.get("reward_model")
    for name in ("ground_truth", "target"):
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is None:
        found = columns.get("golden_answers")
    golds = list(found) if isinstance(found, Sequence) and not isinstance(found, str) else [found]
    are_written = isinstance(found, str) and isinstance(_json(found), list)  # as with prompts
    if are_written or not golds or not all(isinstance(gold, str) and gold for gold in golds):
        raise UsageError(
            "A row must have right answers in `reward_model.ground_truth.target` or "
            f"`golden_answers`, {place} has {found!r}."
        )
    return golds
