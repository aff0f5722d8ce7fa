import polars as pl
import pytest

from paper import logs
from paper.report.inspector import Text, first_difference, twin_views
from tests.paper import synthetic


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (
            "a b c",
            "a x c",
            (Text(before="a ", word="b", after=" c"), Text(before="a ", word="x", after=" c")),
        ),
        ("a b", "a b c", (Text(before="a b", word=""), Text(before="a b ", word="c"))),
        (
            "<a>b</a>",
            "<a>c</a>",
            (
                Text(before="<a>", word="b", after="</a>"),
                Text(before="<a>", word="c", after="</a>"),
            ),
        ),
        ("a  b", "a b", (Text(before="a  b"), Text(before="a b"))),
        ("", "a", (Text(before="", word=""), Text(before="", word="a"))),
        ("a b ", "a", (Text(before="a ", word="b", after=" "), Text(before="a", word=""))),
    ],
)
def test_the_first_word_that_differs_is_cut_out(left, right, expected):
    assert first_difference(left, right) == expected


def test_cutting_loses_nothing():
    left, right = "one  two\nthree\tfour ", "one two\nfive"
    for text, cut in zip((left, right), first_difference(left, right), strict=True):
        assert cut.before + (cut.word or "") + cut.after == text


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    run = synthetic.train_run(tmp_path_factory.mktemp("run") / "run", steps=2)
    (found,) = twin_views(*(logs.read([run], name) for name in ("pairs", "texts", "credit")))
    return found


def test_the_prefix_is_what_both_worlds_share(view):
    assert [(m.turn, m.role) for m in view.prefix] == [
        (0, "observation"),
        (0, "action"),
        (1, "observation"),
    ]
    assert all(moment.twin is None for moment in view.prefix)


def test_the_tail_is_side_by_side_and_only_the_first_difference_is_cut(view):
    assert [(m.turn, m.role) for m in view.tail] == [
        (1, "action"),
        (2, "observation"),
        (2, "action"),
    ]
    first = view.tail[0]
    assert (first.factual.word, first.twin.word) == ("currency", "capital")
    assert first.factual.before == first.twin.before == "search "
    assert [moment.factual.word for moment in view.tail[1:]] == [None, None]
    assert view.tail[2].twin == Text(before="answer Tripoli")


def test_credit_stands_with_the_factuals_actions(view):
    credits = {(m.turn, m.role): m.credit for m in (*view.prefix, *view.tail)}
    assert credits[0, "action"] == 0.5
    assert credits[1, "action"] == -0.5
    assert credits[2, "action"] is None
    assert credits[1, "observation"] is None
    assert view.largest_credit == 0.5


def pairs_and_texts(rows):
    pairs, texts = [], []
    for step, (twin_outcome, equal, has_texts) in enumerate(rows):
        names = (f"{step}/0", f"{step}/0/0.0.shared.resample")
        pairs.append(
            {"run": "r", "step": step, "kind": "twin", "factual": names[0], "twin": names[1]}
            | {"task": "t", "turn": 0, "alternative": 0, "factual_outcome": 1.0}
            | {"twin_outcome": twin_outcome, "equal": equal}
        )
        texts += [
            {"episode": name, "turn": 0, "role": "action", "text": f"say {name}"}
            for name in names
            if has_texts
        ]
    return pl.DataFrame(pairs, infer_schema_length=None), pl.DataFrame(texts)


def test_pairs_with_other_outcomes_come_first_and_equal_or_unwritten_ones_never():
    rows = [(1.0, False, True), (0.0, False, True), (1.0, True, True), (0.0, False, False)]
    views = twin_views(*pairs_and_texts(rows), None)
    assert [view.pair["step"] for view in views] == [1, 0]


def test_a_long_run_is_shown_evenly():
    views = twin_views(*pairs_and_texts([(0.0, False, True)] * 21), None)
    assert [view.pair["step"] for view in views] == [0, 4, 8, 12, 16, 20]


def test_a_twin_that_ends_earlier_has_no_text_there():
    pairs, texts = pairs_and_texts([(0.0, False, True)])
    more = {"episode": "0/0", "turn": 1, "role": "action", "text": "again"}
    (view,) = twin_views(pairs, pl.concat([texts, pl.DataFrame([more])]), None)
    assert view.tail[-1].twin is None
    assert view.tail[-1].factual == Text(before="again")
    assert not view.tail[-1].is_same


def test_runs_without_texts_have_nothing_to_look_into():
    assert twin_views(pairs_and_texts([(0.0, False, True)])[0], None, None) == []
