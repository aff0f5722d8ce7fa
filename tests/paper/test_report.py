import re
from html.parser import HTMLParser

import pytest

from paper import logs
from paper.figures import FIGURES
from paper.report import overview, write_report
from tests.paper import synthetic
from twinstats import logged_pairs
from twinstats.errors import UsageError

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>'


class Page(HTMLParser):
    """Collects tags, addresses and text, and checks that tags close."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.texts, self.open = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def page(all_runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_report([all_runs], out)
    return out.read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_self_contained(page):
    parsed = Page(page)
    assert parsed.tags.count("img") == len(FIGURES)
    assert "script" not in parsed.tags
    assert all(address.startswith(("data:", "#")) for address in parsed.addresses)
    assert not re.search(r"url\(|@import|<link", page)
    assert "default-src 'none'" in page


def test_every_link_within_the_page_arrives(page):
    for anchor in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{anchor}"' in page


def test_the_page_has_light_dark_and_print(page):
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_the_twin_inspector_marks_the_first_difference(page):
    assert page.count("<mark>") == 2
    assert "search <mark>currency</mark> of Libya" in page
    assert "search <mark>capital</mark> of Libya" in page
    assert "+0.500" in page


def test_the_same_logs_give_the_same_page(page, all_runs, tmp_path):
    write_report([all_runs], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_everything_that_was_written_is_escaped(tmp_path):
    said = {"task": EVIL, "question": EVIL, "document": EVIL, "action": EVIL}
    run = synthetic.train_run(tmp_path / "a<script>b", steps=2, recipe=EVIL, texts=said)
    write_report([run], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    parsed = Page(text)
    assert "script" not in parsed.tags
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 5
    assert any("onerror=alert(1)" in data for data in parsed.texts)


def test_a_file_that_exists_is_refused_and_kept(all_runs, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("mine")
    with pytest.raises(UsageError, match="already exists"):
        write_report([all_runs], out)
    assert out.read_text() == "mine"


def test_figures_without_logs_are_named(tmp_path):
    run = synthetic.study_run(tmp_path / "run", leaderboard=synthetic.leaderboard_rows())
    write_report([run], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"{len(FIGURES) - 1} figures not drawn" in text
    assert "no complexity in run; make it with `twice simulate" in text
    assert "Twin inspector" not in text


def test_training_runs_stand_side_by_side(all_runs):
    runs = logs.expand([all_runs])
    achieved, saved = overview.training_tables(runs, logs.labels(runs))
    (row,) = achieved.rows
    cells = dict(zip(achieved.columns, row, strict=True))
    assert (cells["run"], cells["method"], cells["seed"]) == ("twice-0", "twice*", "0")
    assert cells["test exact match before"] == "0.200 [0.141, 0.259]"
    assert cells["after"] == "0.500 [0.441, 0.559]"
    assert "95% intervals over the test questions" in achieved.caption
    assert (cells["factual tokens"], cells["auxiliary tokens"]) == ("6,000", "3,000")
    assert cells["auxiliary / factual"] == "0.5"
    twins = logged_pairs.joined(logs.read(runs[-1:], "pairs"))
    cells = dict(zip(saved.columns, saved.rows[0], strict=True))
    assert cells["pairs"] == str(len(twins)) == "145"
    gain = logged_pairs.account(twins).coupling_gain
    assert cells["gain, raw"].startswith(f"{gain:.3g} [")
    assert (cells["null twins"], cells["differ by token"]) == ("18", "0")


def test_what_a_reward_of_ones_own_paid_has_a_table_of_its_own(tmp_path):
    run = synthetic.train_run(tmp_path / "run", method="rloo", reward="own:f", exact=False)
    achieved, paid = overview.training_tables([run], {run: "run"})
    assert achieved.rows[0][3:5] == ("\N{EN DASH}",) * 2
    assert paid.columns[3:] == ("test outcome before", "after")
    assert paid.rows[0][3:] == ("-2.800 [-3.192, -2.408]", "-2.500 [-2.892, -2.108]")


def test_undefined_values_are_dashes_with_no_interval():
    assert overview.interval_text({"value": None, "low": None, "high": None}) == overview.NONE
    assert overview.interval_text({"value": 2.0, "low": None, "high": None}) == "2"
    assert overview.text_of(None) == overview.NONE


def test_a_run_with_one_failed_pair_is_shown(tmp_path):
    run = synthetic.train_run(tmp_path / "run", method="rloo", steps=2)
    pair = {"kind": "twin", "factual": "0/0", "twin": "x", "task": "t", "turn": 0, "slot": 0}
    pair |= {
        "alternative": 0,
        "factual_outcome": 1.0,
        "twin_outcome": None,
        "reason": "tool failed",
    }
    synthetic.Run(run).write("pairs", 50, [pair])
    write_report([run], tmp_path / "report.html")
    tables = overview.training_tables([run], {run: "run"})
    assert tables[1].rows[0][3] == "0"
