"""The README's code runs as it stands there."""

import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from simulations.worlds.chain import Chain
from simulations.worlds.chain_model import ChainSetting
from twinstats import credit
from twinstats.credit.registry import Entry
from twinstats.episodes import Task, group_by_task

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks():
    return re.findall(r"```python\n(.*?)```", README, flags=re.S)


def module(text):
    made = types.ModuleType("readme")
    exec(compile(text, "README.md", "exec"), made.__dict__)
    return made


def test_paired_on_two_arrays(capsys):
    result = module(blocks()[0]).result
    assert result.estimate == pytest.approx(0.3)
    assert capsys.readouterr().out


def test_a_method_of_your_own(monkeypatch):
    opening = module(blocks()[1]).opening
    line = re.search(r'`"opening": (Entry\(.*?\)),`', README).group(1)
    monkeypatch.setitem(credit.METHODS, "opening", eval(line, {"Entry": Entry, "opening": opening}))
    assert "Source:" in opening.__doc__
    world = Chain(ChainSetting(name="readme", horizon=3, states=2, actions=2, density=1.0), seed=1)
    episodes = world.play([Task("a")], 4, 1)
    (group,) = group_by_task(episodes, seed=1, step=1)
    (found,) = credit.assign(world, [group], credit.make("opening"))
    total = np.array([episode.outcome for episode in episodes])
    others = (total.sum() - total) / 3
    for episode, values, mean in zip(episodes, found.values, others, strict=True):
        np.testing.assert_allclose(values[1:], episode.outcome - mean)
    twins = [fork.outcome for fork in found.info["forks"]]
    np.testing.assert_allclose([v[0] for v in found.values], total - twins)


def test_a_method_of_your_own_passes_the_checks(tmp_path):
    file = tmp_path / "opening.py"
    file.write_text(blocks()[1], encoding="utf-8")
    root = Path(__file__).parent.parent
    for tool in (
        ["ruff", "check", "--config", root / "pyproject.toml"],
        ["ruff", "format", "--check"],
    ):
        done = subprocess.run([sys.executable, "-m", *tool, file], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    typed = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", file]
    assert (
        "opening.py" not in subprocess.run(typed, capture_output=True, text=True, cwd=root).stdout
    )


def test_the_tree_names_what_is_there():
    root = Path(__file__).parent.parent
    tree = README.split("## The house")[1].split("```")[1]
    room = root
    for line in tree.strip().splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            room = root / name
        assert (room if not line.startswith(" ") else room / name).exists(), line
