"""What a task takes from a run's configuration: its rows, its search, its reward.

Leaves out how a chat is written down, which the tokenizer knows (`trainer.chat_template`).
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from trainer.config import Config, TaskConfig
from trainer.tasks.chat_rows import chat_row, search_row
from trainer.tasks.files import FileRow
from trainer.tasks.messages import Format
from trainer.tasks.passages import search_of
from trainer.tasks.reward import Reward, load_reward
from trainer.tasks.rows import TaskRow
from trainer.tasks.sources import FactRows, FileRows, Source
from twinstats.errors import UsageError

CHATS: dict[str, Callable[[FileRow, str], TaskRow]] = {"search_qa": search_row, "chat": chat_row}
"""Tasks that chat: their rows come from files, and are read so."""

_ORIGINS = {
    "search_qa": "parquet or JSON lines in Search-R1's form, such as train.parquet and test.parquet"
    " of huggingface.co/datasets/PeterJinGo/nq_hotpotqa_train",
    "chat": 'parquet or JSON lines with a column `prompt`, a text or [{"role", "content"}, ...]',
}


@cache
def source_of(task: TaskConfig) -> Source:
    """The rows of a task; files are read once a process.

    Raises:
        UsageError: A task of files without them, or files that cannot be used.
    """
    if task.name not in CHATS:
        return FactRows(task.parts)
    for field in ("data", "test_data"):
        if not getattr(task, field):
            raise UsageError(
                f"Task {task.name!r} needs `task.data` and `task.test_data`, `task.{field}` is "
                f"empty: {_ORIGINS[task.name]}."
            )
    if task.parts != 1:
        raise UsageError(f"`task.parts` must be 1 for task {task.name!r}, got {task.parts}.")
    read = CHATS[task.name]
    return FileRows(task.data, task.test_data, read=read, besides=task.corpus)


def options_of(config: Config, form: Format | None = None) -> dict[str, Any]:
    """What the environment of a configuration's task is made with.

    Args:
        config: The run's.
        form: How a chat is written down; null: not at all (the task is only looked at).

    Raises:
        UsageError: A search that is not to be had.
    """
    task = config.task
    if task.name not in CHATS:
        return {}
    if task.name == "chat":
        return {"form": form}
    seconds = config.rollout.tool_seconds
    search = search_of(corpus=task.corpus, retriever=task.retriever, seconds=seconds)
    return {"form": form, "search": search, "calls": task.format}


def reward_of(config: Config) -> Reward | None:
    """The function that scores episodes in place of the task; null where the task does.

    Raises:
        UsageError: It cannot be loaded, or the task cannot do without one.
    """
    if config.reward:
        return load_reward(config.reward)
    if config.task.name == "chat":
        raise UsageError("Task 'chat' needs `reward`, package.module:function, to score replies.")
    return None


def check_task(config: Config) -> None:
    """Refuses a task that cannot be played, before anything is paid for it.

    Raises:
        UsageError: What the functions above refuse, or a task that chats without a model that can.
    """
    reward_of(config)
    source_of(config.task)
    options_of(config)
    if config.task.name in CHATS and not config.model.pretrained:
        raise UsageError(
            f"Task {config.task.name!r} needs a model with a chat template: `model.pretrained`."
        )
