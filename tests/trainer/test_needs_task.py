"""What the task `facts` tells credit methods: predicates, entities, tools, scores, features."""

import json

import numpy as np
import pytest

from trainer import needs
from trainer.config import changed
from trainer.needs import PROVIDERS, Setup, make
from trainer.needs.features import HISTORY, history
from trainer.needs.task import TOLD
from trainer.setup import check
from trainer.tasks.facts import Facts, render_answer, render_search
from trainer.tasks.facts_needs import FEATURES, targets
from trainer.tasks.questions import (
    country_query,
    questions,
    relation_query,
    split_questions,
)
from trainer.tasks.rows import row_of
from twinstats import credit
from twinstats.episodes import Episode, Group, Task, Turn
from twinstats.errors import UsageError

TWO_HOPS = [question for question in split_questions("train") if question.num_hops == 2][:40:10]
FIRST, SECOND = TWO_HOPS[:2]


def search_country(question):
    return render_search(country_query(question.subject))


def search_fact(question):
    return render_search(relation_query(question.relation, question.country))


def answer(question):
    return render_answer(question.golds[0])


WRONG = render_answer("nobody knows")
RIGHT_WAY = [search_country(FIRST), search_fact(FIRST), answer(FIRST)]


def played(asked, texts, *, logprob=-2.0, failed=False):
    """An episode of the task that asks these questions, in which these texts were written."""
    row = row_of(asked)
    environment = Facts()
    shown, turns, outcome = environment.reset(row.info), [], 0.0
    for text in texts:
        step = environment.step(text)
        info = {"shown": tuple(shown.encode()), "step": step.info}
        turns.append(Turn(text, logprob, 0.5, 4, shown, reward=step.reward, info=info))
        shown, outcome = step.observation, outcome + step.reward
    return Episode(
        task=Task(row.id, row.info),
        step=1,
        row=0,
        turns=turns,
        outcome=None if failed else outcome,
        terminated=True,
        truncated=False,
    )


@pytest.fixture
def told(policy, config):
    """What a provider fills in: told(need, *episodes) -> a list, one entry an episode."""
    setup = Setup(policy=policy, environment=Facts, config=config)

    def told(need, *episodes):
        make(need, setup).provide(episodes)
        return [episode.info[need] for episode in episodes]

    return told


def test_every_question_has_the_documents_that_lead_to_its_answer():
    for question in questions():
        found = targets(question.id)
        assert [target.stage for target in found] == ["country", "fact"][-question.num_hops :]
        assert all(target.documents for target in found), question.id


def test_predicates_grow_along_the_right_way(told):
    (found,) = told("predicates", played([FIRST], RIGHT_WAY))
    names = ["part 0 country", "part 0 fact", "part 0 right"]
    assert found == [set(names[:count]) for count in range(4)]


def test_a_right_guess_holds_without_what_it_builds_on(told):
    (found,) = told("predicates", played([FIRST], [answer(FIRST)]))
    assert found == [set(), {"part 0 right"}]
    (found,) = told("predicates", played([FIRST], [WRONG]))
    assert found == [set(), set()]


def test_what_was_shown_in_one_part_is_known_in_the_next(told):
    texts = [search_country(SECOND), WRONG, search_fact(SECOND), answer(SECOND)]
    (found,) = told("predicates", played([FIRST, SECOND], texts))
    assert found[1] == found[2] == {"part 1 country"}
    assert found[4] == {"part 1 country", "part 1 fact", "part 1 right"}


def test_entities_are_names_of_the_task(told):
    episode = played([FIRST], RIGHT_WAY)
    (found,) = told("entities", episode)
    country, fact = FIRST.country, FIRST.golds[0]
    assert found == [set(), {country}, {country, fact}, {country, fact}]
    assert set(episode.task.info["entities"]) == {country, fact}
    assert [turn.info["calls"] for turn in episode.turns] == [1, 1, 0]


def test_the_constants_of_a_row_are_json_and_fit_what_is_told(told):
    texts = [*RIGHT_WAY, search_country(SECOND), search_fact(SECOND), answer(SECOND)]
    episode = played([FIRST, SECOND], texts)
    info = episode.task.info
    assert json.loads(json.dumps(info)) == info
    nodes = {node for pair in info["predicate_graph"] for node in pair}
    assert told("predicates", episode)[0][-1] == nodes
    assert info["goal"] == ["part 0 right", "part 1 right"]
    assert ["part 1 country", "part 1 fact"] in info["predicate_graph"]


def test_tools_are_what_the_turns_did(told):
    (found,) = told("tool", played([FIRST], [search_fact(FIRST), "gibberish", WRONG]))
    assert found == ["search", "illegible", "answer"]


def test_scores_are_shares_of_predicates_and_rewards_their_growth(told):
    episode = played([FIRST], [search_country(FIRST), "gibberish", answer(FIRST)])
    assert told("state_score", episode)[0] == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3])
    assert told("turn_reward", episode)[0] == pytest.approx([1 / 3, 0, 1 / 3])


def test_signatures_tell_effects_apart_and_not_words(told):
    other = render_search("country " + FIRST.subject)
    one, same, otherwise = told(
        "signature",
        played([FIRST], RIGHT_WAY),
        played([FIRST], [other, search_fact(FIRST), render_answer(f"The {FIRST.golds[0]}.")]),
        played([FIRST], [search_fact(FIRST), WRONG]),
    )
    assert one == same
    assert one[0][0] == otherwise[0][0] and one[0][1] != otherwise[0][1]
    assert one[1][0] != otherwise[1][0]
    assert {pair for own in (one, otherwise) for pair in own}  # hashable


def test_another_document_or_answer_is_another_action(told):
    (one,) = told("signature", played([FIRST], [search_country(SECOND), WRONG]))
    (other,) = told("signature", played([FIRST], [search_country(FIRST), answer(FIRST)]))
    assert one[0][1][0] == other[0][1][0] == "search" and one[0] != other[0]
    assert one[1][1] == ("answer", "nobody knows") and one[1][1] != other[1][1]


def test_features_of_a_task_by_hand(told):
    texts = [search_country(FIRST), "gibberish", WRONG, answer(SECOND)]
    (found,) = told("features", played([FIRST, SECOND], texts))
    own = [dict(zip(FEATURES, row[len(HISTORY) :].tolist(), strict=True)) for row in found]
    assert own[2] == {
        "part": 0,
        "turn": 2,
        "hops": 2,
        "targets_shown": 1,
        "right": 0,
        "illegible": 1,
        "nothing_found": 0,
    }
    assert [row["part"] for row in own] == [0, 0, 0, 1, 2]
    assert (own[3]["turn"], own[3]["targets_shown"], own[4]["right"]) == (0, 0, 1)


def test_features_look_at_the_history_alone(told):
    one = played([FIRST], RIGHT_WAY)
    other = played([FIRST], [RIGHT_WAY[0], WRONG])
    (long, short) = told("features", one, other)
    assert np.array_equal(long[:2], short[:2])
    assert not np.array_equal(long[2], short[2])


def test_history_by_hand_and_what_is_unknown_is_said():
    def rows(values, logprobs):
        episode = played([FIRST], RIGHT_WAY[: len(logprobs)])
        for turn, logprob in zip(episode.turns, logprobs, strict=True):
            object.__setattr__(turn, "logprob", logprob)
        return history(episode)[:, [HISTORY.index(name) for name in values]].tolist()

    assert rows(["turns", "sampled_tokens", "last_tokens"], [-2.0] * 3) == [
        [0, 0, 0],
        [1, 4, 4],
        [2, 8, 4],
        [3, 12, 4],
    ]
    names = ["mean_logprob", "last_logprob", "known_logprob"]
    assert rows(names, [-2.0, None, -4.0]) == [
        [0, 0, 0],
        [-0.5, -0.5, 1],
        [-0.5, 0, 0.5],
        [-0.75, -1, 2 / 3],
    ]
    assert np.isfinite(rows(HISTORY, [None] * 3)).all()


def test_failed_episodes_are_told_as_far_as_they_went(told):
    failed = played([FIRST], RIGHT_WAY[:2], failed=True)
    for need in TOLD:
        (found,) = told(need, failed)
        assert len(found) == 2 + (need not in ("tool", "turn_reward", "signature"))


def test_methods_credit_the_turn_that_found_the_fact(told):
    """Both episodes end wrong, so all that tells them apart is what the task tells."""
    good = played([FIRST], [search_country(FIRST), WRONG])
    bad = played([FIRST], [render_search("zzz"), WRONG])
    object.__setattr__(bad, "row", 1)
    for need in TOLD:
        told(need, good, bad)
    group = Group(good.task, [good, bad], seed=0, step=1)
    for method in ("spader", "dars", "mt_grpo", "turn_credit"):
        values = credit.make(method)(group).values
        assert values[0][0] > 0 > values[1][0], method


class Silent:
    """A task that tells nothing."""

    stop, max_turns = (".",), 3


@pytest.mark.parametrize(
    ("method", "need"), [("spader", "entities"), ("t2spo", "features"), ("rtmc", "signature")]
)
def test_a_task_that_cannot_tell_is_refused_before_anything_is_played(
    monkeypatch, policy, config, method, need
):
    own = changed(config, [f"credit.method={method}"])
    sentence = f"'{method}' needs '{need}', which task 'facts' does not tell .it tells: nothing"
    with pytest.raises(UsageError, match=sentence):
        make(need, Setup(policy=policy, environment=Silent, config=own))
    monkeypatch.setattr("trainer.setup.make_environment", lambda name: Silent())
    with pytest.raises(UsageError, match=sentence):
        check(own)


def test_every_need_that_only_a_task_can_fill_is_told_by_facts():
    assert set(TOLD) <= set(Facts.needs) and set(TOLD) <= set(PROVIDERS)
    every = {need.name for entry in credit.METHODS.values() for need in entry.needs}
    assert set(TOLD) <= every


def test_needs_are_checked_without_an_environment_where_no_task_is_asked(config):
    def nobody():
        raise AssertionError("an environment was made")

    needs.check(["value", "segments"], config, nobody)


def test_a_need_that_nobody_provides_is_refused_before_anything_is_played(config):
    with pytest.raises(UsageError, match="'rloo' needs 'omens', which nobody provides. Known: "):
        needs.check(["omens"], config, Silent)
