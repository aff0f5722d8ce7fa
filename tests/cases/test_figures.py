"""CASES.md, L06 to L11: logs and figures."""

import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import polars as pl
import pytest

from paper import logs, style
from paper.build import build_figures
from paper.figures import FIGURES, complexity
from tests.paper import oracle_logs, synthetic

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases") / "runs"
    oracle = oracle_logs.tables(settings=("facts",), outcomes=("f1",), num_episodes=10)
    synthetic.all_studies(folder / "studies", **oracle)
    synthetic.train_run(folder / "twice-0", steps=6)
    return folder


@pytest.fixture(scope="module")
def built(runs, tmp_path_factory):
    return build_figures([runs], tmp_path_factory.mktemp("built") / "figures").out


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_l06_columns_are_the_union_whatever_the_order(tmp_path, order):
    kinds = ([{"k1": 1}] * 150, [{"k1": 1, "k2": 2}] * 150)
    found = [
        synthetic.study_run(tmp_path / f"{place}-{kind}", mixed=kinds[kind])
        for place, kind in enumerate(order)
    ]
    table = logs.read(found, "mixed").select("k1", "k2")
    assert table.shape == (300, 2)
    assert table["k2"].null_count() == 150


def test_l07_what_has_no_logarithm_is_dropped_and_counted(tmp_path):
    base = dict(synthetic.complexity_rows()[1])
    rows = [base | {"effect": 0.1, "pairs": 7.0, "stderr_log_pairs": 5.0}]
    rows += [base | {"effect": 0.2, "pairs": 0.0}]
    table = complexity.table([synthetic.study_run(tmp_path / "run", complexity=rows)])
    figure = complexity.draw(table)
    (bars,) = [c for c in figure.axes[0].containers if len(c.lines[0].get_xdata())]
    assert bars.lines[0].get_ydata().tolist() == pytest.approx([7.0])
    (segment,) = bars.lines[2][0].get_segments()
    assert segment[0][1] == pytest.approx(0.7)
    assert (table["low"].min(), table["pairs"].min()) < (0.001, 0.001)
    assert "Not positive, so not on a log axis: 1 dropped." in complexity.caption(table)


def test_l08_no_pdf_has_type_3_fonts(built):
    for name in FIGURES:
        content = (built / f"{name}.pdf").read_bytes()
        assert b"/Type3" not in content, name
        assert re.search(rb"/CIDFontType2|/TrueType", content), name


PROGRAM = """
import sys, threading
from pathlib import Path
from paper.build import build_figures
failed = []
def work():
    try:
        build_figures([Path(sys.argv[1])], Path(sys.argv[2]), names=["complexity"])
    except BaseException as error:
        failed.append(error)
thread = threading.Thread(target=work)
thread.start()
thread.join(60)
assert not failed, failed
assert "matplotlib.pyplot" not in sys.modules and "tkinter" not in sys.modules
"""


def test_l09_figures_need_no_screen(runs, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    environment |= {"MPLBACKEND": "TkAgg", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, str(runs), str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "complexity.pdf").is_file()


def test_l10_a_missing_glyph_is_an_error(tmp_path):
    with style.house():
        figure, (panel,) = style.panels(1)
        panel.set_title("\N{HANGUL SYLLABLE GA}")
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(ValueError, match="picture.png cannot be drawn: Glyph"),
    ):
        style.save(figure, tmp_path / "picture.png")


def test_l10_ticks_below_zero_have_an_ascii_minus(tmp_path):
    with style.house():
        figure, (panel,) = style.panels(1)
        panel.plot([0, 1], [-1, 0])
    style.save(figure, tmp_path / "picture.png")
    with style.house():
        ticks = [tick.get_text() for tick in panel.get_yticklabels()]
    assert "-1.0" in ticks
    assert "\N{MINUS SIGN}" not in "".join(ticks)


def test_l11_the_same_logs_give_the_same_bytes(runs, built, tmp_path):
    def work(name):
        build_figures([runs], tmp_path / name, names=[name])

    names = ("learning", "complexity")
    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for name in names:
        for kind in ("pdf", "png", "csv", "txt"):
            again = tmp_path / name / f"{name}.{kind}"
            assert logs.digest(again.read_bytes()) == logs.digest((built / again.name).read_bytes())
    assert b"CreationDate" not in (built / "complexity.pdf").read_bytes()


def test_l11_the_csv_reads_back(built):
    for name in FIGURES:
        assert len(pl.read_csv(built / f"{name}.csv")) > 0
