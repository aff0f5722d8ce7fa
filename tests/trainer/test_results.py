"""The command that plays the runs of docs/results.md."""

import pytest

from trainer.commands import results as module
from trainer.commands.results import METHODS, SEEDS, results
from trainer.config import changed
from trainer.recipes import recipe
from trainer.setup import check
from twinstats.errors import UsageError


@pytest.fixture
def asked(monkeypatch):
    found = []
    monkeypatch.setattr(module, "finish", lambda *stage: found.append(stage))
    return found


def test_every_method_plays_every_seed_of_both_lengths_with_equal_tokens(asked, tmp_path):
    results(tmp_path / "out", tokens=5000, seeds=None, questions=100)
    assert len(asked) == len(METHODS) * sum(SEEDS.values())
    seen = set()
    for command, folder, arguments in asked:
        assert command == "train" and arguments[0] == "demo" and folder.parent == tmp_path / "out"
        config = changed(recipe("demo"), arguments[2::2])
        check(config)
        assert config.length.total_tokens == 5000 and config.evaluation.questions == 100
        seen.add((config.task.parts, config.credit.method, config.seed))
    wanted = {(p, m, s) for p, count in SEEDS.items() for m in METHODS for s in range(count)}
    assert seen == wanted


def test_fewer_seeds_are_a_part_of_the_runs(asked, tmp_path):
    results(tmp_path, tokens=5000, seeds=1, questions=100)
    assert len(asked) == len(METHODS) * len(SEEDS)


def test_a_file_is_no_folder_of_runs(asked, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="must be a folder"):
        results(tmp_path / "file", tokens=5000, seeds=1, questions=100)
    assert not asked
