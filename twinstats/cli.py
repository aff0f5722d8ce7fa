"""The program `twice`: finds its commands by entry point and imports one only when it is called.

A package announces a command under the entry-point group `twice.commands`. An error is one
sentence and exit code 2 (wrong usage) or 1 (failed); `--debug` shows the traceback. Ctrl-C is
"Stopped." (a training says from which step it goes on) and exit code 130, as shells have it; a
training that SIGTERM ends has saved itself, says how far it came, and exits with 0.
"""

import importlib.metadata
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from twinstats.errors import Stopped, UsageError, unknown

GROUP = "twice.commands"
EXTRAS = {"trainer": "train", "paper": "figures"}
"""The extra that a package's commands need."""
_CTRL_C = 130  # what typer makes of KeyboardInterrupt, and what shells expect


class Commands(TyperGroup):
    """A command group whose commands are entry points."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all announced commands."""
        return sorted(_announced())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, imported now.

        Raises:
            UsageError: An unknown name, or a package whose extra is not installed.
        """
        return _command(cmd_name)


def invoke(name: str, arguments: Sequence[str]) -> None:
    """Runs a command as the command line would, but lets its errors, and Ctrl-C, through."""
    command = _command(name)
    try:
        code = command.main(list(arguments), prog_name=f"twice {name}", standalone_mode=False)
    except Stopped as stopped:
        if not stopped.is_interrupt:
            raise
        code = _CTRL_C  # how to go on, the command that invoked it knows
    if code == _CTRL_C:
        raise KeyboardInterrupt


def _announced() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}


def _command(name: str) -> Any:
    announced = _announced()
    if name not in announced:
        raise unknown("command", name, announced)
    return _load(announced[name])


def _load(entry: importlib.metadata.EntryPoint) -> Any:
    package = entry.module.partition(".")[0]
    try:
        function = entry.load()
    except ModuleNotFoundError as error:
        if package not in EXTRAS or (error.name or "").partition(".")[0] == package:
            raise
        extra = EXTRAS[package]
        raise UsageError(
            f"`twice {entry.name}` needs {error.name!r}: pip install 'twinstats[{extra}]'."
        ) from error
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(entry.name)(function)
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs `twice` and exits: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = "--debug" in given
    if not debug:
        warnings.formatwarning = _warning_line
    app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None)
    app.callback()(_root)
    sys.exit(run(typer.main.get_command(app), [word for word in given if word != "--debug"], debug))


def _root() -> None:
    """Twin-world credit assignment: same luck, different choice.

    Give --debug with any command to see the traceback of an error.
    """


def run(command: Any, arguments: Sequence[str], debug: bool = False) -> int:
    """Runs a command and returns its exit code; errors go to standard error as one sentence."""
    try:
        result = command.main(list(arguments), prog_name="twice", standalone_mode=False)
        if result == _CTRL_C:
            return _failed("Stopped.", _CTRL_C, debug=False)
        return result if isinstance(result, int) else 0
    except Stopped as stopped:
        return _failed(str(stopped), _CTRL_C if stopped.is_interrupt else 0, debug=False)
    except (UsageError, NotImplementedError) as error:
        return _failed(str(error), 2, debug)
    except typer.TyperException as error:
        return _failed(error.format_message(), 2, debug)
    except (KeyboardInterrupt, typer.Abort):
        return _failed("Stopped.", _CTRL_C, debug)
    except Exception as error:
        return _failed(f"{type(error).__name__}: {error}", 1, debug)


def _warning_line(message: Warning | str, *_: Any, **__: Any) -> str:
    """A warning as one sentence, without the line of code that gave it."""
    return f"twice: {' '.join(str(message).split())}\n"


def _failed(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"twice: {' '.join(message.split())}", file=sys.stderr)
    return code
