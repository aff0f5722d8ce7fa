"""The task `facts`: its data, its split, its rules, and the demonstrations played in it."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom

from trainer import tasks
from trainer.tasks.countries import DISSOLVED, RELATIONS, TERRITORIES, countries
from trainer.tasks.demonstrations import (
    NO_FLAWS,
    Flaws,
    demonstrate,
    demonstrations,
    text_of,
)
from trainer.tasks.facts import SPECIAL_TOKENS, Facts, read_action, retriever
from trainer.tasks.questions import (
    assert_disjoint,
    documents,
    question_by_id,
    questions,
    split_questions,
)
from trainer.tasks.rows import row_of, task_rows
from twinstats.episodes import SLOTS_PER_PART

CHAD = ["TD/currency/city1", "TD/capital/name"]
ROW = {
    "questions": [question_by_id(i).text for i in CHAD],
    "golds": [list(question_by_id(i).golds) for i in CHAD],
}


# Data


def test_counts_of_the_build():
    assert len(countries()) == 176
    assert len(documents()) == 1363
    assert Counter(question.split for question in questions()) == {"train": 2778, "test": 1018}


def test_no_territory_and_no_dissolved_state():
    assert not {country.iso for country in countries()} & (TERRITORIES | DISSOLVED)


def test_facts_on_which_the_sources_differ_are_dropped():
    by_iso = {country.iso: country for country in countries()}
    assert "capital" not in by_iso["BI"].facts  # Bujumbura or Gitega
    for iso in ("BY", "HR", "ZM", "VE"):  # BYR, HRK, ZMK, VEF
        assert "currency" not in by_iso[iso].facts
    assert by_iso["DO"].facts["calling code"] == "1809"  # "+1-809 and 1-829"
    assert by_iso["TD"].facts == {
        "capital": "N'Djamena",
        "currency": "XAF",
        "language": "French",
        "region": "Africa",
        "calling code": "235",
        "internet domain": ".td",
    }


def test_names_are_distinct_plain_and_tell_cities_from_countries():
    names = [country.name for country in countries()]
    cities = [city for country in countries() for city in country.cities]
    capitals = [c.facts["capital"] for c in countries() if "capital" in c.facts]
    assert len(set(names)) == len(names) and len(set(cities)) == len(cities)
    assert not set(cities) & set(names) and not set(cities) & set(capitals)
    assert all(text.isascii() and text == text.strip() for text in names + cities + capitals)


def test_every_document_tells_one_fact():
    texts = [document.text for document in documents()]
    assert len(set(texts)) == len(texts)
    for document in documents():
        assert re.fullmatch(
            r".+ is (the (" + "|".join(RELATIONS) + ")|a city) of .+", document.text
        )
        assert document.text.startswith(f"{document.value} is ")
        assert document.text.endswith(f" of {document.owner}")


def test_a_question_does_not_name_its_country_unless_it_is_the_entry():
    for question in questions():
        named = re.search(rf"\b{re.escape(question.country)}\b", question.subject) is not None
        assert named == (question.entry == "name"), question.id


# Split and rows


def test_a_question_in_both_splits_is_refused():
    first = questions()[0]
    with pytest.raises(ValueError, match="`asked` must hold each combination"):
        assert_disjoint([*questions(), first])
    with pytest.raises(ValueError, match="`asked` must hold one test question for"):
        assert_disjoint([question for question in questions() if question.split == "train"])


def test_four_part_test_rows_cover_500_questions_without_repeating_one():
    rows = task_rows("test", 4, key="evaluation")
    asked = [question_id for row in rows for question_id in row.info["question_ids"]]
    assert len(rows) >= 125 and len(asked) >= 500
    assert len(set(asked)) == len(asked)
    assert len({row.id for row in rows}) == len(rows)


def test_rows_depend_on_their_key_alone():
    assert task_rows("train", 4, key="0") == task_rows("train", 4, key="0")
    assert task_rows("train", 4, key="0") != task_rows("train", 4, key="1")
    rows = task_rows("test", 1, key="0")
    assert {row.id for row in rows} == {question.id for question in split_questions("test")}


def test_rows_are_plain_json():
    row = task_rows("train", 4, key="0")[0]
    assert json.loads(json.dumps(row.info)) == row.info


def test_bad_rows_and_splits_are_refused():
    with pytest.raises(ValueError, match="`num_parts` must be from 1 to"):
        task_rows("test", 0, key="0")
    with pytest.raises(ValueError, match="`num_parts` must be from 1 to"):
        demonstrations(1, num_parts=0, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match='`split` must be "train" or "test"'):
        task_rows("dev", 1, key="0")
    with pytest.raises(ValueError, match="`asked` must hold questions of one split"):
        row_of([split_questions("train")[0], split_questions("test")[0]])
    with pytest.raises(ValueError, match="`question_id` must be the id of a question"):
        question_by_id("XX/capital/name")


# Environment


def test_an_episode_by_hand():
    environment = Facts()
    city = question_by_id(CHAD[0]).subject
    shown = environment.reset(ROW)
    assert shown == f"<question>What is the currency of the country of {city}?</question>"
    first = environment.step(f"<search>country of {city}</search>")
    assert first.observation == f"<information>{city} is a city of Chad</information>"
    second = environment.step("<search>currency of Chad</search>")
    assert second.observation == "<information>XAF is the currency of Chad</information>"
    third = environment.step("<answer>xaf</answer>")
    assert third.observation == "<question>What is the capital of Chad?</question>"
    last = environment.step("<answer>Moundou</answer>")
    assert last.observation == ""
    steps = [first, second, third, last]
    assert [step.reward for step in steps] == [0.0, 0.0, 0.5, 0.0]
    assert [step.done for step in steps] == [False, False, False, True]
    assert not last.info["won"] and not last.info["truncated"]


def test_won_means_every_part_right():
    environment = Facts()
    environment.reset(ROW)
    environment.step("<answer>XAF</answer>")
    last = environment.step("<answer>n'djamena!</answer>")
    assert last.done and last.info["won"]


def test_f1_pays_in_part_and_does_not_win():
    paid = Facts(metric="f1")
    paid.reset({"questions": ["q"], "golds": [["Paris"]]})
    step = paid.step("<answer>Paris, France</answer>")
    assert step.reward == pytest.approx(2 / 3) and step.done and not step.info["won"]
    with pytest.raises(ValueError, match="`metric` must be one of exact_match, f1, got 'em'"):
        Facts(metric="em")


def test_an_illegible_turn_counts_and_gets_a_notice():
    environment = Facts()
    environment.reset(ROW)
    first = environment.step("let me think")
    assert first.info["is_illegible"] and first.observation.startswith("<information>")
    environment.step("<answer>open")
    third = environment.step("<search>currency of Chad</search>")  # out of turns: no document
    assert third.reward == 0.0 and third.info["is_no_answer"] and not third.done
    assert third.observation == "<question>What is the capital of Chad?</question>"


def test_slots_follow_the_part_whatever_its_length():
    environment = Facts()
    search, answer = "<search>a</search>", "<answer>b</answer>"
    assert environment.slot([]) == 0
    assert environment.slot([search, search]) == 2
    assert environment.slot([answer]) == environment.slot([search, answer]) == SLOTS_PER_PART
    assert environment.slot([search, search, "?"]) == SLOTS_PER_PART


def test_slots_name_the_part_and_turn_that_the_environment_is_in_and_never_repeat():
    rng = np.random.default_rng(3)
    environment = Facts()
    turns = ["<search>Chad</search>", "<answer>b</answer>", "?", "<answer>open"]
    for row in task_rows("test", 4, key="slots")[:20]:
        environment.reset(row.info)
        history, slots, done = [], [], False
        while not done:
            slots.append(environment.slot(history))
            history.append(turns[rng.integers(len(turns))])
            step = environment.step(history[-1])
            assert slots[-1] == SLOTS_PER_PART * step.info["part"] + step.info["turn"]
            done = step.done
        assert len(set(slots)) == len(slots) <= 4 * Facts.max_turns


def test_the_last_action_of_a_turn_counts():
    assert read_action("<search>a</search><answer>b</answer>") == ("answer", "b")
    assert read_action("x <search> a </search>") == ("search", "a")
    assert read_action("<search>a</search><answer>b").kind == "illegible"
    assert read_action("").kind == "illegible"


def test_stepping_after_the_end_and_bad_rows_are_refused():
    environment = Facts()
    with pytest.raises(ValueError, match="`step` must follow a `reset`"):
        environment.step("<answer>a</answer>")
    environment.reset({"questions": ["q"], "golds": ["right"]})  # a bare string is one answer
    assert environment.step("<answer>right</answer>").info["won"]
    with pytest.raises(ValueError, match="`step` must follow a `reset`"):
        environment.step("<answer>a</answer>")
    for golds in ([], [[]]):
        with pytest.raises(ValueError, match="`row` must hold at least one question"):
            environment.reset({"questions": ["q"], "golds": golds})


def test_the_registry_makes_environments_by_name():
    assert tasks.names()[0] == "facts"
    assert isinstance(tasks.make("facts", mode="unicode"), Facts)
    with pytest.raises(ValueError, match="Unknown task 'fact'. Did you mean 'facts'?"):
        tasks.make("fact")


# Demonstrations


def test_observations_of_a_demonstration_are_the_environments():
    for num_parts in (1, 4):
        for shown in demonstrations(60, num_parts=num_parts, rng=np.random.default_rng(1)):
            turns = [segment.text for segment in shown.segments if segment.is_sampled]
            seen = [segment.text for segment in shown.segments if not segment.is_sampled]
            environment = Facts()
            assert environment.reset(shown.row.info) == seen[0]
            steps = [environment.step(turn) for turn in turns]
            assert [step.observation for step in steps] == [*seen[1:], ""]
            assert sum(step.reward for step in steps) == pytest.approx(shown.outcome)
            assert [step.done for step in steps] == [False] * (len(turns) - 1) + [True]
            assert [s.is_sampled for s in shown.segments] == [False, True] * len(turns)


def test_without_flaws_every_question_of_both_splits_is_answered():
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        rows = task_rows(split, 1, key="0")
        shown = [demonstrate(row, rng=rng, flaws=NO_FLAWS) for row in rows]
        assert all(demonstration.outcome == 1.0 for demonstration in shown)


def test_flaws_leave_head_room():
    shown = demonstrations(600, num_parts=4, rng=np.random.default_rng(2))
    assert 0.3 < np.mean([demonstration.outcome for demonstration in shown]) < 0.46
    assert np.mean([demonstration.outcome == 1.0 for demonstration in shown]) < 0.08


@pytest.mark.parametrize(
    ("flaw", "is_flawed"),
    [
        ("guess", lambda q, turns: len(turns) == 1),
        ("stop_early", lambda q, turns: turns[-1] == f"<answer>{q.country}</answer>"),
        ("wrong_relation", lambda q, turns: not turns[-2].startswith(f"<search>{q.relation} of")),
        ("name_only", lambda q, turns: turns[-2] == f"<search>{q.country}</search>"),
    ],
)
def test_each_flaw_has_its_rate(flaw, is_flawed):
    rate, rng = 0.4, np.random.default_rng(5)
    flaws = Flaws(**{name: rate if name == flaw else 0.0 for name in NO_FLAWS.__slots__})
    count = num_asked = 0
    for shown in demonstrations(1500, num_parts=1, rng=rng, flaws=flaws):
        question = question_by_id(shown.row.info["question_ids"][0])
        if flaw == "stop_early" and question.num_hops == 1:
            assert shown.outcome == 1.0
            continue
        turns = [segment.text for segment in shown.segments if segment.is_sampled]
        num_asked += 1
        count += is_flawed(question, turns)
    low, high = binom.interval(1 - 1e-6, num_asked, rate)
    assert low <= count <= high


def test_the_second_document_is_the_retrievers():
    flaws = Flaws(guess=0, stop_early=0, wrong_relation=0, name_only=0, second_document=1)
    for shown in demonstrations(50, num_parts=1, rng=np.random.default_rng(9), flaws=flaws):
        query = shown.segments[-3].text.removeprefix("<search>").removesuffix("</search>")
        second = retriever().search(query, 2)[1]
        assert shown.segments[-1].text == f"<answer>{second.value}</answer>"


def test_demonstrations_ask_train_questions_only_and_follow_their_generator():
    first = demonstrations(300, num_parts=4, rng=np.random.default_rng(7))
    assert first == demonstrations(300, num_parts=4, rng=np.random.default_rng(7))
    train = {question.id for question in split_questions("train")}
    first += demonstrations(2, num_parts=400, rng=np.random.default_rng(8))
    for shown in first:
        assert set(shown.row.info["question_ids"]) <= train
        assert len(set(shown.row.info["question_ids"])) == shown.row.info["parts"]


def test_texts_are_short_and_hold_special_tokens_as_tags_only():
    shown = demonstrations(300, num_parts=4, rng=np.random.default_rng(8), flaws=NO_FLAWS)
    texts = [text_of(demonstration.segments) for demonstration in shown]
    assert np.mean([len(text) for text in texts]) < 1100
    assert max(len(text) for text in texts) < 1500
    for text in texts:
        assert set(re.findall(r"<[^>]*>", text)) <= set(SPECIAL_TOKENS)
        assert text.isascii()
