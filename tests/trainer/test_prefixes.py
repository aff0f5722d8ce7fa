"""What was encoded is found again, is right, and is bounded; and stale states are never used."""

import gc
import weakref

import numpy as np
import pytest
import torch

from tests.trainer.walks import alone, assert_same, engine_of, played, sharpened, walks
from trainer.engines import prefixes
from trainer.engines.prefixes import PrefixStore, Trace

# The store, where the "states" of a token are its id


def kept(store, ids, end=None):
    """Keeps what was encoded of some ids."""
    trace, end = Trace(ids), len(ids) if end is None else end
    states = torch.tensor(ids, dtype=torch.float32)[None, :, None]
    store.add(trace, end, lambda a, b: states[:, a:b].clone(), torch.tensor([float(end)]))


def found(store, ids):
    """The ids that are found of these."""
    prefix = store.find(Trace(ids))
    pieces = [states[0, :, 0].long().tolist() for _, states in prefix.pieces]
    assert [begin for begin, _ in prefix.pieces] == np.cumsum([0, *map(len, pieces)])[:-1].tolist()
    assert sum(map(len, pieces)) == prefix.length
    return sum(pieces, []), prefix.hidden


def test_all_of_a_kept_prefix_is_found_with_its_hidden_state():
    store = PrefixStore(10**6)
    kept(store, [1, 2, 3])
    kept(store, [1, 2, 3, 4, 5])
    for end in (3, 5):
        ids, hidden = found(store, [1, 2, 3, 4, 5][:end])
        assert (ids, float(hidden)) == ([1, 2, 3, 4, 5][:end], end)
    assert found(store, [1, 2, 3, 4, 9]) == ([1, 2, 3, 4], None)  # where the ids part
    assert found(store, [1, 2, 3, 4]) == ([1, 2, 3], None)  # no hidden state: the last one again
    assert found(store, [2, 3]) == ([], None)


def test_a_boundary_within_what_is_kept_gets_a_hidden_state_of_its_own():
    store = PrefixStore(10**6)
    kept(store, [1, 2, 3, 4])
    kept(store, [1, 2])
    ids, hidden = found(store, [1, 2])
    assert (ids, float(hidden)) == ([1, 2], 2)
    assert found(store, [1, 2, 3, 9]) == ([1, 2, 3], None)


def test_the_longest_prefix_is_found_as_by_looking_through_everything():
    rng, store, everything = np.random.default_rng(0), PrefixStore(10**6), []
    for _ in range(400):
        ids = rng.integers(0, 2, rng.integers(1, 14)).tolist()
        prefixes = {tuple(one[:end]) for one in everything for end in range(len(one) + 1)}
        longest = max(
            (end for end in range(len(ids) + 1) if tuple(ids[:end]) in prefixes), default=0
        )
        is_boundary = ids in everything
        got, hidden = found(store, ids)
        assert got == ids[: longest - (longest == len(ids) and not is_boundary)]
        assert (hidden is not None) == (longest > 0 and ids[:longest] in everything)
        kept(store, ids)
        everything.append(ids)


def test_what_two_share_is_kept_once():
    store = PrefixStore(10**6)
    kept(store, list(range(100)))
    kept(store, [*range(90), 5, 5])
    assert store.num_bytes == 4 * (100 + 1) + 4 * (2 + 1)


def test_ids_are_verified_where_hashes_agree():
    store, forged = PrefixStore(10**6), Trace([7, 8, 9])
    kept(store, [1, 2, 3])
    forged.hashes = Trace([1, 2, 3]).hashes
    assert store.find(forged).length == 0


def test_what_was_used_longest_ago_goes_first_and_its_memory_is_freed():
    store = PrefixStore(4 * 33)  # three of ten tokens, each with a hidden state
    references = []
    for name in range(3):
        kept(store, [name] * 10)
        references.append(weakref.ref(next(reversed(store._by_age)).states))
    found(store, [0] * 10)
    kept(store, [3] * 10)
    assert [len(found(store, [name] * 10)[0]) for name in range(4)] == [10, 0, 10, 10]
    gc.collect()
    assert [one() is None for one in references] == [False, True, False]
    assert store.num_bytes == 4 * 33
    assert store.count_gone(Trace([1] * 12), 0) == 10
    assert store.count_gone(Trace([0] * 10), 0) == 0


def test_what_is_remembered_of_what_had_to_go_is_bounded(monkeypatch):
    monkeypatch.setattr(prefixes, "_MOST_GONE", 50)
    store = PrefixStore(4 * 15)
    for name in range(100):
        kept(store, [name] * 10)
        assert len(store._gone) <= 50
    assert store.count_gone(Trace([98] * 10), 0) == 10 == store.count_gone(Trace([97] * 10), 0)
    assert store.count_gone(Trace([0] * 10), 0) == 0


def test_what_a_kept_segment_goes_on_from_never_goes_before_it():
    rng, store = np.random.default_rng(1), PrefixStore(4 * 60)
    for _ in range(300):
        ids = rng.integers(0, 3, rng.integers(1, 12)).tolist()
        kept(store, ids)
        found(store, ids)
        for segment in store._by_age:
            assert segment.parent is None or segment.parent in store._by_age
        assert store.num_bytes == sum(one.num_bytes for one in store._by_age) <= 4 * 60
    store.clear()
    assert store.num_bytes == 0 == store.count_gone(Trace([0] * 9), 0)
    assert found(store, [0] * 9) == ([], None)


# The engine


@pytest.fixture
def model(policy):
    return sharpened(policy.model)


@pytest.fixture
def factuals():
    return walks(13)


def every_fork(factuals, **changes):
    """A fork at each turn of each, in rows of their own."""
    return [
        one.fork(turn, row=100 * (turn + 1) + one.row, **changes)
        for one in factuals
        for turn in range(len(one.turns))
    ]


@pytest.mark.parametrize("max_batch", [3, 64])
def test_a_fork_encodes_no_token_of_its_prefix(model, factuals, max_batch):
    engine = played(model, factuals, max_batch)
    engine.counts.take()
    forks = every_fork(factuals)
    engine.run(forks, temperature=1.0)
    assert engine.counts.reencoded == 0
    assert engine.counts.reused == sum(len(one.start()) for one in forks)
    after = sum(
        sum(map(len, one.texts[len(one.history) + 1 :])) + sum(map(len, one.tokens)) - 1
        for one in forks
    )
    # what follows the fork, the last token never, and less where a turn happens to be the factual's
    assert after - 10 < engine.counts.encoded <= after
    for one in forks:
        assert_same(one.turns, alone(model, one))


def test_a_fork_of_one_token_needs_no_pass(model, factuals):
    engine = played(model, factuals, max_turn_tokens=1)
    engine.counts.take()
    forks = [one.fork(len(one.turns) - 1, row=50 + one.row) for one in factuals]
    engine.run(forks, temperature=1.0)
    assert engine.counts.passes == engine.counts.encoded == 0
    assert engine.counts.sampled == len(forks)


def test_a_null_twin_finds_each_turn_start_of_its_factual(model, factuals):
    engine = played(model, factuals)
    engine.counts.take()
    twins = [one.fork(0) for one in factuals]
    engine.run(twins, temperature=1.0)
    assert [one.tokens for one in twins] == [one.tokens for one in factuals]
    turns = [turn for one in factuals for turn in one.tokens]
    assert engine.counts.encoded == sum(len(turn) - 1 for turn in turns)
    assert engine.counts.reused == sum(len(one.start()) for one in twins)


def test_an_action_given_by_hand_reuses_what_agrees(model, factuals):
    engine = played(model, factuals)
    engine.counts.take()
    one = next(one for one in factuals if len(one.turns) > 2 and len(one.tokens[0]) > 3)
    kept_turn = one.fork(0, row=200, extra=[one.tokens[0]])
    other = one.fork(0, row=201, extra=[(*one.tokens[0][:2], 599, 599, 3)])
    engine.run([kept_turn, other], temperature=1.0)
    expected = len(kept_turn.start()) + len(one.texts[0]) + 2
    assert engine.counts.reused == expected
    for fork in (kept_turn, other):
        assert_same(fork.turns, alone(model, fork))


def test_forks_of_forks_and_rollouts_of_a_task_share_their_prefix(model, factuals):
    engine = played(model, factuals)
    forks = [one.fork(0, row=50 + one.row) for one in factuals]
    engine.run(forks, temperature=1.0)
    engine.counts.take()
    again = every_fork(forks)
    engine.run(again, temperature=1.0)
    assert engine.counts.reencoded == 0
    assert engine.counts.reused == sum(len(one.start()) for one in again)
    for one in again[:10]:
        assert_same(one.turns, alone(model, one))


def test_rollouts_that_start_later_find_the_prompt(model):
    (one,) = walks(1)
    rollouts = [one.fork(0, row=row) for row in range(6)]
    engine = played(model, rollouts, max_batch=2)
    prompt = len(one.texts[0])
    assert engine.counts.reused == 4 * prompt  # the first two start together
    for rollout in rollouts:
        assert_same(rollout.turns, alone(model, rollout))


def test_what_had_to_go_is_encoded_again_and_counted(model, factuals):
    engine = played(model, factuals, cache_mib=0)
    engine.counts.take()
    forks = every_fork(factuals)
    engine.run(forks, temperature=1.0)
    assert engine.counts.reused == 0
    assert engine.counts.reencoded == sum(len(one.start()) for one in forks)
    for one in forks[:10]:
        assert_same(one.turns, alone(model, one))


@pytest.mark.parametrize("bound", [3_000, 30_000])
def test_a_small_cache_changes_no_token(model, factuals, bound):
    engine = engine_of(model, max_batch=3)
    engine._store.max_bytes = bound
    engine.run(factuals, temperature=1.0)
    forks = every_fork(factuals)
    engine.run(forks, temperature=1.0)
    assert engine.counts.reencoded > 0
    assert engine._store.num_bytes <= bound
    for one in forks:
        assert_same(one.turns, alone(model, one))


def adamw_step(model, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()


CHANGES = {
    "in place": lambda model: model.get_input_embeddings().weight.mul_(-1),
    "one entry": lambda model: model.base_model.layers[0].self_attn.v_proj.weight[1, 3].add_(50),
    "through data": lambda model: [one.data.mul_(1.5) for one in model.parameters()],
    "copied": lambda model: [one.copy_(one * 1.5) for one in model.parameters()],
    "loaded": lambda model: model.load_state_dict(
        {name: one * 1.5 for name, one in model.state_dict().items()}
    ),
    "replaced": lambda model: setattr(
        model.base_model.norm, "weight", torch.nn.Parameter(-model.base_model.norm.weight)
    ),
    "data replaced": lambda model: setattr(
        model.base_model.norm.weight, "data", -model.base_model.norm.weight.data
    ),
    "foreach": lambda model: adamw_step(model, foreach=True),
    "one by one": lambda model: adamw_step(model, foreach=False),
    "fused": lambda model: adamw_step(model, fused=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_states_of_other_weights_are_never_used(model, change):
    factuals = walks(4)
    engine = played(model, factuals)
    with torch.no_grad():
        change(model)
    forks = every_fork(factuals)
    engine.counts.take()
    engine.run(forks, temperature=1.0)
    assert engine.counts.reencoded == 0
    assert engine.counts.encoded > sum(len(one.start()) for one in forks[:1])
    for one in forks:
        assert_same(one.turns, alone(model, one))


def test_sync_forgets(model, factuals):
    engine = played(model, factuals)
    engine.sync()
    engine.counts.take()
    engine.run(every_fork(factuals), temperature=1.0)
    assert engine.counts.reused < 200 and engine.counts.reencoded == 0
