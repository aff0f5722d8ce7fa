"""The code of the pages in docs does what the pages say, and their tables are computed."""

import doctest
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from twinstats import pairs_needed

DOCS = Path(__file__).parent.parent / "docs"
PLAIN = ("benchmarks.md", "cluster.md", "retrofit.md", "training.md", "vllm.md")
"""Pages that need no picture."""
PAGE = (DOCS / "statistics.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def figures():
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("make_figures", DOCS / "make_figures.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(("page", "fewest"), [("statistics.md", 11), ("noise.md", 10)])
def test_python_blocks_print_what_the_page_says(page, fewest):
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(>>> .*?)```", text, flags=re.S)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page, None, 0)
    written = []
    outcome = doctest.DocTestRunner(verbose=False).run(examples, out=written.append)
    assert outcome.attempted >= fewest and outcome.failed == 0, "".join(written)


def test_images_are_there():
    for page in DOCS.glob("*.md"):
        images = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        assert all((DOCS / image).exists() for image in images), page
        assert images or page.name in PLAIN, page


def test_table_of_the_second_law():
    rows = re.findall(r"^\| [^|]+ \| (\d+) \| (\d+) \| ×(\d+) \|$", PAGE, flags=re.M)
    laws = (lambda e: e, lambda e: 2 * e, lambda e: e + 0.02, lambda e: 0.2)
    for row, law in zip(rows, [*laws, lambda e: (1 - e**2) / 2], strict=True):
        found = [pairs_needed(effect, discordance=law(effect)) for effect in (0.1, 0.01)]
        assert [int(number) for number in row] == [*found, round(found[1] / found[0])]


def test_numbers_of_the_first_law(figures):
    four = {name.split(" (")[0]: v[0] for name, v in figures.law_one(np.array([4.0])).items()}
    assert four["by length"] == pytest.approx(0.4 / 1.3)  # about three times 0.1
    assert four["by outcome"] == pytest.approx(0.1 / 2.2)  # about half of 0.1
    assert four["by outcome, weighted by 1 / chance"] == pytest.approx(0.1)
    assert four["by history"] == pytest.approx(0.1)
