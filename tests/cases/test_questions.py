"""CASES.md, section Q, as far as the task `facts` and its parts are concerned."""

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trainer.tasks.demonstrations import demonstrations
from trainer.tasks.facts import Facts, retriever
from trainer.tasks.questions import documents, question_by_id, questions
from trainer.tasks.retriever import Document, Retriever
from trainer.tasks.rows import task_rows
from trainer.tasks.scoring import (
    cover_match,
    exact_match,
    extract_answer,
    normalise,
    score,
    token_f1,
)


def test_q01_articles_do_not_empty_a_text():
    assert exact_match("A", "A") == 1.0
    assert token_f1("A", "A") == 1.0
    assert cover_match("Paris", "A") == 0.0
    assert exact_match("The Beatles", "beatles") == 1.0


def test_q02_an_empty_answer_scores_nothing():
    for metric in (exact_match, token_f1, cover_match):
        assert metric("", "Paris") == 0.0
        assert metric(None, "Paris") == 0.0
    assert extract_answer("I think it is Paris") is None
    scored = score(None, "Paris")
    assert scored.is_no_answer and scored.exact_match == scored.f1 == scored.cover == 0.0
    environment = Facts()
    environment.reset({"questions": ["Which city?"], "golds": [["Paris"]]})
    for _ in range(3):
        step = environment.step("Paris")
    assert step.info["is_no_answer"] and step.info["answer"] is None and step.reward == 0.0


def test_q03_exact_match_never_exceeds_f1():
    scored = score("Paris, France", "Paris")
    assert scored.exact_match == 0.0
    assert scored.f1 == pytest.approx(0.666667, abs=1e-6)
    assert scored.cover == 1.0
    answers = ["Paris, France", "Paris", "A", "", "yes", "yes it is", "0,1", "115,000", "the"]
    for (ours, gold), mode in itertools.product(
        itertools.product(answers, answers), ("squad", "unicode")
    ):
        for is_hotpot in (False, True):
            scored = score(ours, gold, mode=mode, is_hotpot=is_hotpot)
            assert scored.exact_match <= scored.f1


def test_q04_only_the_models_own_text_is_read():
    prompt = ("Answer like this: <answer> Beijing </answer>.", False)
    assert extract_answer([prompt, ("It is <answer>Rome</answer>", True)]) == "Rome"
    assert extract_answer([prompt, ("It is Rome", True)]) is None


def test_q05_the_last_answer_counts():
    assert extract_answer("<answer>1</answer> no, <answer>2</answer>") == "2"
    observed = ("<information><answer>3</answer></information>", False)
    assert extract_answer([("<answer>1</answer>", True), observed]) == "1"
    assert extract_answer([("<search>x</search>", True), observed]) is None
    assert extract_answer("<answer>1</answer> no, <answer>2") is None


def test_q06_unicode_mode_knows_dashes_and_composed_accents():
    dash, composed = ("1990–1995", "1990-1995"), ("Beyoncé", "Beyoncé")
    assert exact_match(*dash, mode="squad") == 0.0
    assert exact_match(*dash, mode="unicode") == 1.0
    assert exact_match(*composed, mode="unicode") == 1.0


@pytest.mark.parametrize("mode", ["squad", "unicode"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [("0,1", "0,1"), ("115,000", "115000"), ("$1,000", "1000"), ("12,34", "12,34")],
)
def test_q07_only_thousands_lose_their_comma(text, expected, mode):
    assert normalise(text, mode) == expected


def test_q08_special_answers_and_several_golds():
    assert token_f1("yes it is", "yes", is_hotpot=True) == 0.0
    assert token_f1("yes it is", "yes") == 0.5
    assert exact_match("yes it is", "yes") == 0.0
    assert token_f1("no answer given", "noanswer", is_hotpot=True) == 0.0
    assert token_f1("noanswer", "noanswer", is_hotpot=True) == 1.0
    assert exact_match("Rome", ["Paris", "Rome"]) == 1.0
    assert exact_match("Paris Rome", ["Paris", "Rome"]) == 0.0


def test_q09_results_for_k_are_a_prefix_of_those_for_more():
    toy = Retriever([Document(id=id, text="same words") for id in (4, 2, 0, 3, 1)])
    for k in (2, 3, 5):
        assert [document.id for document in toy.search("same", k)] == list(range(k))
    for query in ("Chad", "currency", "of Guinea", "Republic of the Congo"):
        longest = retriever().search(query, 400)
        for k in (1, 2, 10, 100):
            assert retriever().search(query, k) == longest[:k]


def test_q10_one_ranking_whatever_the_threads_and_the_order_of_insertion():
    queries = ["currency", "Guinea", "language of Chad", "city of Republic", "Spanish English"]
    expected = [retriever().search(query, 200) for query in queries]
    rng = np.random.default_rng(0)
    for num_threads in (1, 4, 16):
        shuffled = [documents()[index] for index in rng.permutation(len(documents()))]
        index = Retriever(shuffled, cache_size=2)
        assert index.is_exact
        with ThreadPoolExecutor(num_threads) as pool:
            found = list(pool.map(index.search, queries * 100, itertools.repeat(200)))
        assert found == expected * 100


def test_q11_any_query_is_answered():
    index = retriever()
    for query in ("", "   ", "the of", "🙂", "\ud800", "\x00"):
        assert index.search(query, 3) == []
    long = index.hits("Chad " * 20_000, 3)
    assert long.is_truncated and long == index.hits("Chad " * 20_000, 3)
    assert len(long.documents) == 3
    environment = Facts()
    for query in ("", "   ", "the of", "🙂" * 9, "Chad " * 20_000):
        environment.reset({"questions": ["q"], "golds": [["a"]]})
        step = environment.step(f"<search>{query}</search>")
        assert step.observation.startswith("<information>") and not step.done
        assert step.info["is_truncated_query"] == (len(query) > 512)


def test_q12_done_is_not_won():
    environment = Facts()
    environment.reset({"questions": ["q"], "golds": [["a"]]})
    steps = [environment.step("<search>Chad</search>") for _ in range(Facts.max_turns)]
    assert [step.done for step in steps] == [False, False, True]
    assert steps[-1].info["truncated"] and not steps[-1].info["won"]
    assert sum(step.reward for step in steps) == 0.0
    environment.reset({"questions": ["q"], "golds": [["a"]]})
    wrong = environment.step("<answer>b</answer>")
    assert wrong.done and not wrong.info["won"] and not wrong.info["truncated"]


def test_q13_reset_keeps_nothing_of_what_was_played_before():
    row, other = task_rows("test", 4, key="q13")[:2]
    actions = ["<search>Chad</search>", "<answer>x</answer>", "nothing"]
    factual, twin = Facts(), Facts()
    twin.reset(other.info)
    assert twin.step(f"<answer>{other.info['golds'][0][0]}</answer>").reward == 0.25
    assert factual.reset(row.info) == twin.reset(row.info)
    assert factual.state == twin.state and hash(factual.state) == hash(twin.state)
    for action in actions:
        assert factual.step(action) == twin.step(action)
        assert factual.state == twin.state


def test_q15_splits_are_disjoint_in_every_worker():
    asked = {q.id: (q.iso, q.relation, q.entry) for q in questions()}
    for key_a, key_b in itertools.product(range(8), range(8)):
        train = {
            i for row in task_rows("train", 4, key=str(key_a)) for i in row.info["question_ids"]
        }
        test = {i for row in task_rows("test", 4, key=str(key_b)) for i in row.info["question_ids"]}
        assert len(train) > 2700 and len(test) > 1000
        assert not train & test
    train_rows, test_rows = task_rows("train", 1, key="0"), task_rows("test", 1, key="0")
    assert not {asked[row.id] for row in train_rows} & {asked[row.id] for row in test_rows}
    texts = [{row.info["questions"][0] for row in rows} for rows in (train_rows, test_rows)]
    assert not texts[0] & texts[1]
    assert all(question_by_id(row.id).split == "test" for row in test_rows)


def test_q15_the_split_does_not_depend_on_the_process():
    program = (
        "from trainer.tasks.questions import split_questions as s;"
        "from hashlib import blake2b as b;"
        "print(b(repr(s('test')).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1 and digests != {""}


def test_q16_the_same_actions_show_the_same():
    """That a twin with another prefix is discarded is tested in `test_replay`."""
    for shown in demonstrations(20, num_parts=4, rng=np.random.default_rng(0)):
        turns = [segment.text for segment in shown.segments if segment.is_sampled]
        seen = [segment.text for segment in shown.segments if not segment.is_sampled]
        environment = Facts()
        for _ in range(2):
            first = environment.reset(shown.row.info)
            shows = [first, *(environment.step(turn).observation for turn in turns)]
            assert shows == [*seen, ""]
