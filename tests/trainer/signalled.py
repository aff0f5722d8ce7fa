"""Runs `twice train` in processes that get a signal at a chosen moment, and goes on with --resume.

    python -m tests.trainer.signalled FOLDER OUT MOMENTS

FOLDER holds config.json and a tokenizer. The first run, OUT/whole, is undisturbed. MOMENTS is a
JSON list of [signal, place, when]. At "seconds" or "files" the signal comes after this share of the
whole run's time, or of the files that it brings to the disk, just before one is; the run, OUT/k for
moment k, is then resumed. At "warm-up" or "evaluation" it comes when that begins. Prints JSON: of
each run the exit codes of its processes, and what the first one said and left.

All processes are forks of this one, which has imported everything: no test pays for that again.
"""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
from torch.utils import tensorboard
from transformers import AutoTokenizer

from tests.trainer.conftest import Parity
from trainer import setup
from trainer.commands import train as command
from trainer.config import from_dict
from trainer.loop import train
from trainer.policy import Policy, build_model
from trainer.rollout import Rollout
from trainer.tasks import questions
from twinstats import cli

assert train and tensorboard  # what a command imports late


def forked(work):
    """A child that does the work, and ends with the exit code that it returns."""
    child = os.fork()
    if not child:
        code = 70
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def prepared(folder, moment):
    """Sets `twice train` up in this process, which signals itself; counts files in what comes."""
    number, place, when = moment
    config = from_dict(json.loads((folder / "config.json").read_text()))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain_sync, plain_evaluate, count = os.fsync, Rollout.evaluate, [0]

    def reached(*here):
        if here == (place, when):
            os.kill(os.getpid(), number)

    def sync(handle):
        count[0] += 1
        reached("files", count[0])
        plain_sync(handle)

    def evaluated(*arguments, **options):
        reached("evaluation", 0)
        return plain_evaluate(*arguments, **options)

    def warmed(config):
        reached("warm-up", 0)
        return Policy(build_model(config.model, seed=0), tokenizer)

    os.fsync, Rollout.evaluate, command.warmed = sync, evaluated, warmed
    command.recipe = lambda name: config
    setup.make_environment = lambda *arguments, **options: Parity()
    return count


def trained(folder, out, moment=(None, None, None)):
    """`twice train` into a folder, or what is left of it; returns the exit code."""
    count = prepared(folder, moment)
    with out.with_suffix(".err").open("a") as said:
        os.dup2(said.fileno(), 2)
    resume = ["--resume"] if (out / "run.json").exists() else []
    try:
        cli.main(["train", "demo", "--out", str(out), *resume])
    except SystemExit as end:
        out.with_suffix(".files").write_text(str(count[0]))
        sys.stderr.flush()
        return end.code


def ended(child):
    """How a child ended: its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def played(folder, out, number, place, when, seconds):
    """The exit codes of a run: signalled, and resumed."""
    child = forked(lambda: trained(folder, out, (number, place, when)))
    if place == "seconds":
        time.sleep(when * seconds)
        os.kill(child, number)
    codes = [ended(child)]
    said = out.with_suffix(".err").read_text()
    left = [str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()]
    if place in ("seconds", "files"):  # the others come before anything is written
        codes.append(ended(forked(lambda: trained(folder, out))))
    return {"codes": codes, "said": said, "left": left}


def main(folder, out, moments):
    """The whole run and all that are disturbed."""
    torch.set_num_threads(1)
    questions.questions()  # once, for all children
    begun = time.monotonic()
    whole = ended(forked(lambda: trained(folder, out / "whole")))
    seconds = time.monotonic() - begun
    files = int((out / "whole.files").read_text())
    found = [{"codes": [whole], "said": (out / "whole.err").read_text()}]
    for index, (name, place, when) in enumerate(moments):
        when = max(1, round(when * files)) if place == "files" else when
        number = getattr(signal, f"SIG{name}")
        found.append(played(folder, out / str(index), number, place, when, seconds))
    print(json.dumps({"runs": found, "files": files, "seconds": seconds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
