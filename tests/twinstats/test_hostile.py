"""Input meant to break the library: one sentence, of one line, that names the parameter.

What has a stated result although it looks hostile (constant data, nulls, one pair) is at the end.
"""

import json
import math

import jaxtyping
import numpy as np
import pytest

from twinstats import (
    DiscordancePredictor,
    NoiseKey,
    PairedSequence,
    agreement,
    detectable_effect,
    disagreement_bounds,
    fit_exponent,
    joint,
    paired,
    paired_power,
    pairs_needed,
    posterior_gumbel,
    regime,
    sqrt_allocation,
    variance_account,
)
from twinstats.noise import (
    KeyColumns,
    LogitsError,
    generator,
    gumbel,
    sample,
    truncate,
    uniform,
    uniforms,
)
from twinstats.sequential import log_wealth

NAN, INF = math.nan, math.inf
ONES, HALF = [1.0, 0.0, 1.0], [0.5, 0.25, 0.25]
NO_NUMBERS = {
    "text": ["a", "b", "c"],
    "mixed": [1, "a", 0],
    "digits": np.array(["1", 0, 1], object),
    "ragged": [[1], [0, 1], [1]],
    "complex": [1j, 1, 0],
    "dates": np.array(["2020-01-01"] * 3, "datetime64[D]"),
    "bytes": [b"1"] * 3,
    "objects": [object()] * 3,
    "one text": "abc",
    "set": {0, 1, 2},
    "mapping": {0: 1.0},
    "huge": [10**400, 1, 0],
}
SHAPES = {"empty": [], "three axes": np.zeros((3, 1, 1)), "two axes": np.ones((3, 2)) / 3}
INFINITE = {"infinite": [1.0, INF, 0.0]}
SHORT = {"one": [1.0], "short": [1.0, 0.0]}
NEGATIVE = {"negative": [1.0, -0.5, 0.5]}
NULL = {"null": [1.0, NAN, 0.0], "all null": [NAN] * 3, "none": [None] * 3}
NO_LABELS = {
    "a number": 1.0,
    "one text": "abc",
    "set": {0, 1, 2},
    "mapping": {0: 1, 1: 2, 2: 3},
    "lists": [[0], [1], [2]],
    "two axes": np.zeros((3, 2)),
    "null": [0, None, 1],
    "undefined": [0, NAN, 1],
    "empty": [],
    "short": [0, 1],
}


@pytest.fixture(autouse=True)
def unchecked():
    """Types unchecked, as outside the tests: the library itself has to answer."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def without(mapping, *names):
    return {name: value for name, value in mapping.items() if name not in names}


OUTCOMES = NO_NUMBERS | SHAPES | INFINITE | SHORT
MEASURES = NO_NUMBERS | SHAPES | INFINITE | SHORT | NEGATIVE | NULL
FORKS = {"fork": [0, 0, 1], "luck": [0, 1, 0]}
CALLS = {  # name: (call of the hostile value, the values, the parameter that is named)
    "paired factual": (lambda x: paired(x, ONES), OUTCOMES, "factual"),
    "paired twin": (lambda x: paired(ONES, x), without(OUTCOMES, "two axes"), "twin"),
    "paired weights": (lambda x: paired(ONES, HALF, weights=x), MEASURES, "weights"),
    "paired cluster": (lambda x: paired(ONES, HALF, cluster=x), NO_LABELS, "cluster"),
    "account factual": (lambda x: variance_account(x, ONES), OUTCOMES, "factual"),
    "account control": (lambda x: variance_account(ONES, HALF, control=x), OUTCOMES, "control"),
    "account null": (lambda x: variance_account(ONES, HALF, null=x), OUTCOMES, "null"),
    "account equal": (
        lambda x: variance_account(ONES, HALF, equal=x),
        OUTCOMES | NEGATIVE,
        "equal",
    ),
    "account cluster": (lambda x: variance_account(ONES, HALF, cluster=x), NO_LABELS, "cluster"),
    "account fork": (lambda x: variance_account(ONES, HALF, fork=x, luck=[0] * 3), NO_LABELS, ""),
    "account luck": (lambda x: variance_account(ONES, HALF, fork=[0] * 3, luck=x), NO_LABELS, ""),
    "agreement p": (lambda x: agreement(x, HALF), MEASURES, "p"),
    "agreement q": (lambda x: agreement(HALF, x), MEASURES, "q"),
    "joint q": (lambda x: joint(HALF, x), MEASURES, "q"),
    "bounds p": (lambda x: disagreement_bounds(x, HALF), MEASURES, "p"),
    "posterior logits": (
        lambda x: posterior_gumbel(x, 0, NoiseKey(1, 2, 3, 4), 0),
        NO_NUMBERS | SHAPES | INFINITE | NULL,
        "logits",
    ),
    "variance": (
        lambda x: sqrt_allocation(x, 1, budget=9),
        without(MEASURES, "one", "short"),
        "variance",
    ),
    "cost": (lambda x: sqrt_allocation(HALF, x, budget=9), without(MEASURES, "one"), "cost"),
    "allocation weights": (
        lambda x: sqrt_allocation(HALF, 1, budget=9, weights=x),
        without(MEASURES, "one", "negative"),
        "weights",
    ),
    "minimum": (
        lambda x: sqrt_allocation(HALF, 1, budget=9, minimum=x),
        without(MEASURES, "one"),
        "minimum",
    ),
    "maximum": (
        lambda x: sqrt_allocation(HALF, 1, budget=9, maximum=x),
        without(MEASURES, "one"),
        "maximum",
    ),
    "discordant": (
        lambda x: DiscordancePredictor(lambda turn: turn).update([0, 1, 2], x),
        MEASURES,
        "discordant",
    ),
    "prior": (lambda x: DiscordancePredictor(["turn"], prior=x), MEASURES, "prior"),
    "features": (
        lambda x: DiscordancePredictor(x),
        without(MEASURES, "text") | {"none at all": None, "a number": 1.0},
        "features",
    ),
    "difference": (
        lambda x: PairedSequence().update(x),
        without(NO_NUMBERS | SHAPES | INFINITE | NULL, "empty"),
        "difference",
    ),
    "wins": (
        lambda x: log_wealth(x, [0]),
        NO_NUMBERS | INFINITE | NULL | NEGATIVE,
        "wins",
    ),
    "fit effect": (lambda x: fit_exponent(x, [9, 5, 1]), OUTCOMES, ""),
    "fit pairs": (lambda x: fit_exponent([0.1, 0.2, 0.4], x), OUTCOMES, "pairs"),
    "fit stderr": (
        lambda x: fit_exponent([0.1, 0.2, 0.4], [9, 5, 1], stderr=x),
        MEASURES,
        "stderr",
    ),
    "fit censored": (
        lambda x: fit_exponent([0.1, 0.2, 0.4], [9, 5, 1], censored=x),
        MEASURES,
        "censored",
    ),
    "fit offset": (
        lambda x: fit_exponent([0.1, 0.2, 0.4], [9, 5, 1], offset=x),
        without(MEASURES, "negative"),
        "offset",
    ),
    "regime factual": (lambda x: regime(x, ONES, **FORKS), OUTCOMES, ""),
    "regime twin": (lambda x: regime(ONES, x, **FORKS), OUTCOMES, "twin"),
    "regime fork": (lambda x: regime(ONES, HALF, fork=x, luck=[0, 1, 0]), NO_LABELS, "fork"),
    "regime luck": (lambda x: regime(ONES, HALF, fork=[0, 0, 1], luck=x), NO_LABELS, "luck"),
    "regime cluster": (lambda x: regime(ONES, HALF, cluster=x, **FORKS), NO_LABELS, "cluster"),
}
ARRAYS = [
    pytest.param(call, value, named, id=f"{name}-{kind}")
    for name, (call, values, named) in CALLS.items()
    for kind, value in values.items()
]


def sentence(call, named=""):
    """The message, which must be one line that ends and names the parameter."""
    with pytest.raises(ValueError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".") and len(text) < 250, text
    assert f"`{named}`" in text if named else "`" in text, text
    return text


@pytest.mark.parametrize(("call", "value", "named"), ARRAYS)
def test_hostile_arrays_are_refused_by_name(call, value, named):
    sentence(lambda: call(value), named)


NUMBERS = {
    "effect": [
        lambda x: pairs_needed(x, discordance=0.3),
        lambda x: paired_power(x, 10, discordance=0.3),
    ],
    "discordance": [
        lambda x: pairs_needed(0.1, discordance=x),
        lambda x: paired_power(0.1, 10, discordance=x),
        lambda x: detectable_effect(10, discordance=x),
    ],
    "sd": [lambda x: pairs_needed(0.1, sd=x), lambda x: detectable_effect(10, sd=x)],
    "rho": [lambda x: pairs_needed(0.1, sd=1.0, rho=x)],
    "alpha": [lambda x: pairs_needed(0.1, sd=1.0, alpha=x), lambda x: PairedSequence(x)],
    "power": [lambda x: pairs_needed(0.1, sd=1.0, power=x)],
    "num_pairs": [
        lambda x: paired_power(0.1, x, discordance=0.3),
        lambda x: detectable_effect(x, discordance=0.3),
    ],
    "cluster_size": [lambda x: pairs_needed(0.1, sd=1.0, cluster_size=x)],
    "icc": [lambda x: pairs_needed(0.1, sd=1.0, cluster_size=3, icc=x)],
    "confidence": [
        lambda x: paired(ONES, HALF).confidence_interval(x),
        lambda x: variance_account(ONES, HALF, confidence=x),
        lambda x: regime(ONES, HALF, confidence=x, **FORKS),
    ],
    "population": [lambda x: paired(ONES, HALF, population=x)],
    "budget": [lambda x: sqrt_allocation(HALF, 1, budget=x)],
    "target_stderr": [lambda x: sqrt_allocation(HALF, 1, target_stderr=x)],
    "temperature": [lambda x: posterior_gumbel(HALF, 0, NoiseKey(1, 2, 3, 4), 0, x)],
    "linear_below": [lambda x: regime(ONES, HALF, linear_below=x, **FORKS)],
}


@pytest.mark.parametrize("value", [NAN, INF, -INF, -2.0])
@pytest.mark.parametrize("name", NUMBERS)
def test_hostile_numbers_are_refused_by_name(name, value):
    for call in NUMBERS[name]:
        sentence(lambda call=call: call(value), name)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pairs_needed(0.4, discordance=0.3), r"`effect` must be in \[-0.3, 0.3\]"),
        (lambda: paired_power(-0.4, 10, discordance=0.3), r"`effect` must be in \[-0.3, 0.3\]"),
        (lambda: pairs_needed(0.0, discordance=0.3), "`effect` must be different from 0"),
        (lambda: pairs_needed(0.1), "Exactly one of `discordance`"),
        (lambda: pairs_needed(0.1, sd=1, discordance=0.2), "Exactly one of `discordance`"),
        (lambda: pairs_needed(0.1, sd=1, rho=1.0), r"`rho` must lie in \[-1, 1\)"),
        (lambda: detectable_effect(3, discordance=0.3), "`num_pairs`"),
        (lambda: paired([1, 0], [0, 1], margin=1.5), "`margin` must be in"),
        (lambda: paired([1, 0], [0, 1], margin=NAN), "`margin` must be finite"),
        (lambda: paired([1, 0], [0, 1], weights=[0, 0]), "`weights` must not all be 0"),
        (lambda: paired([1, 0], [0, 1], population=1), "`population` must be at least"),
        (lambda: paired([1.5, 0], [0, 1], test="exact"), "`test` 'exact' needs binary"),
        (lambda: paired([1, 0], np.zeros((2, 0))), "`twin` must hold at least one"),
        (lambda: agreement([0.5, 0.6], [0.5, 0.5]), "`p` must add up to 1, got 1.1"),
        (lambda: agreement([1.0], [0.5, 0.5]), "`q` must have as many entries as `p`"),
        (lambda: posterior_gumbel([0.0, -INF], 1, NoiseKey(1, 2, 3, 4), 0), "`index` must be"),
        (lambda: posterior_gumbel([0.0, 1.0], 2, NoiseKey(1, 2, 3, 4), 0), "`index` must be"),
        (lambda: posterior_gumbel([0.0, 1.0], -1, NoiseKey(1, 2, 3, 4), 0), "`index` must be"),
        (lambda: sqrt_allocation(HALF, 1, budget=2, minimum=1), "`budget` must be finite"),
        (lambda: fit_exponent([0.1] * 3, [1] * 3, censored=[0, 1, 0]), "`censored` must be"),
        (lambda: regime(ONES, HALF, fork=[0, 0, 0], luck=[0, 0, 1]), "`luck` must differ"),
        (lambda: variance_account(ONES, HALF, fork=[0, 0, 0]), "`fork` and `luck` must be"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(call, words):
    with pytest.raises(ValueError, match=words):
        call()
    sentence(call)


UNKNOWN = {
    "test": lambda x: paired(ONES, HALF, test=x),
    "alternative": lambda x: paired(ONES, HALF, alternative=x),
    "method": lambda x: paired(ONES, HALF).confidence_interval(method=x),
    "coupling": lambda x: agreement(HALF, HALF, x),
    "objective": lambda x: sqrt_allocation(HALF, 1, budget=9, objective=x),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_names_list_the_known_ones(name):
    with pytest.raises(ValueError, match=f"Unknown .*{name}.* 'nonsense'.* Known: ") as caught:
        UNKNOWN[name]("nonsense")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [3, 200])
def test_messages_stay_one_line_for_long_input(size):
    wrong = np.ones(size)
    wrong[size // 2] = -1
    calls = {
        "variance": lambda: sqrt_allocation(wrong, 1, budget=9),
        "cost": lambda: sqrt_allocation(np.ones(size), wrong, budget=9),
        "minimum": lambda: sqrt_allocation(np.ones(size), 1, budget=9, minimum=wrong),
        "maximum": lambda: sqrt_allocation(np.ones(size), 1, budget=9, maximum=wrong),
        "weights": lambda: paired(np.ones(size), np.zeros(size), weights=wrong),
        "difference": lambda: PairedSequence().update(3 * wrong),
        "wins": lambda: log_wealth(wrong, 0),
        "stderr": lambda: fit_exponent(np.ones(size), np.ones(size), stderr=wrong),
        "discordant": lambda: DiscordancePredictor(len).update([""] * size, wrong),
    }
    for name, call in calls.items():
        sentence(call, name)


# --- keys and noise -------------------------------------------------------------------------

KEY = NoiseKey(7, 3, 5, 2)
NO_WHOLE = [True, np.False_, 1.0, np.float32(3), "1", None, np.array(3), 1j]


@pytest.mark.parametrize("name", ["seed", "step", "row", "turn", "luck"])
@pytest.mark.parametrize("value", NO_WHOLE)
def test_a_number_that_is_not_whole_is_refused_in_a_key(name, value):
    """A boolean above all: its text is not that of the number it equals."""
    fields = {"seed": 0, "step": 0, "row": 0, "turn": 0} | {name: value}
    with pytest.raises(ValueError, match=f"`{name}` must be .*whole"):
        NoiseKey(**fields)


@pytest.mark.parametrize("purpose", ["", b"sample", None, 3, "\ud800"])
def test_a_purpose_that_names_nothing_is_refused_before_anything_is_drawn(purpose):
    with pytest.raises(ValueError, match="`purpose` must not be empty, and UTF-8 text, got"):
        NoiseKey(0, 0, 0, 0, purpose=purpose)


def test_a_key_of_numpys_numbers_is_that_of_pythons_and_does_not_wrap():
    own = NoiseKey(7, 3, 5, 40_000, 300)
    given = NoiseKey(np.int8(7), np.int64(3), np.uint8(5), np.int32(40_000), np.uint16(300))
    assert given == own and repr(given) == repr(own)
    assert gumbel(given, 0, [0, 9]).tolist() == gumbel(own, 0, [0, 9]).tolist()
    rows = np.array([5])
    grid = KeyColumns.grid(7, 3, "sample", row=rows, turn=np.int32(40_000), luck=np.uint16(300))
    assert uniforms(grid, 0)[0] == uniform(own, 0)


@pytest.mark.parametrize("name", [(True, "x"), (1.5, "x"), ("7", "x"), (7, ""), (7, None)])
def test_a_generator_without_a_name_is_refused(name):
    with pytest.raises(ValueError, match="`(seed|purpose)` must"):
        generator(*name)


def test_keys_that_are_none_are_refused_and_an_iterator_of_keys_is_read_once():
    for keys in ([None], ["sample"], [(7, 3, 5, 2)], [KEY, 3]):
        with pytest.raises(ValueError, match="`keys` must hold a `NoiseKey` each, got"):
            KeyColumns.of(keys)
    with pytest.raises(ValueError, match="`keys` must hold a `NoiseKey` each, got None"):
        gumbel(None, 0, [0])
    assert KeyColumns.of(key for key in [KEY, KEY]).row.tolist() == [5, 5]


@pytest.mark.parametrize("row", [[1.5], [-0.5], [True], ["1"], [NAN], [None], [2**70]])
def test_rows_that_are_not_whole_are_refused_and_not_cut(row):
    with pytest.raises(ValueError, match="`row` must hold whole numbers in"):
        KeyColumns.grid(0, 0, "x", row=np.array(row), turn=0)


@pytest.mark.parametrize("position", [[0], [0, 1], [], np.array([[3]])])
def test_several_positions_where_one_is_meant_are_refused(position):
    calls = (
        lambda: gumbel(KEY, position, [0, 1]),
        lambda: uniform(KEY, position, [0, 1]),
        lambda: uniforms(KeyColumns.of([KEY, KEY]), position),
    )
    for call in calls:
        with pytest.raises(ValueError, match="`position` must be one number, got shape"):
            call()


@pytest.mark.parametrize("ids", [[True], [0.5], ["1"], [None], [2**70]])
def test_ids_that_are_no_ids_are_refused(ids):
    with pytest.raises(ValueError, match="`ids` must hold whole numbers in"):
        gumbel(KEY, 0, ids)


def test_ids_and_positions_of_odd_shapes_are_refused_by_name():
    with pytest.raises(ValueError, match="`ids` must be rectangular"):
        gumbel(KEY, 0, [[0], [1, 2]])
    with pytest.raises(ValueError, match="`positions` must be one a row, got shape"):
        sample(np.zeros((2, 4)), [KEY, KEY], [[0], [0]])


@pytest.mark.parametrize(
    "logits",
    [
        np.zeros((1, 2), complex),
        np.zeros((1, 2), bool),
        np.zeros((1, 2), "M8[s]"),
        np.zeros((1, 2), "m8[s]"),
        np.array([["1", "2"]]),
        np.array([[None, 1.0]], object),
        np.zeros((1, 2), [("a", float)]),
    ],
    ids=lambda logits: str(logits.dtype),
)
def test_logits_that_are_no_real_numbers_are_refused(logits):
    for call in (lambda: sample(logits, [KEY], [0]), lambda: truncate(logits, top_k=1)):
        with pytest.raises(ValueError, match="`logits` must hold real numbers, got"):
            call()


def test_masked_logits_are_refused_and_not_drawn_from():
    logits = np.ma.masked_array([[0.0, 9.0]], mask=[[False, True]])
    for call in (lambda: sample(logits, [KEY], [0], 0.0), lambda: truncate(logits, top_k=1)):
        with pytest.raises(ValueError, match="`logits` must not be a masked array"):
            call()


@pytest.mark.parametrize("bad", ["1", ["1", "2"], 1j, 10**400, [[1.0], [1.0, 2.0]], b"1"])
def test_a_temperature_that_is_no_number_is_refused(bad):
    with pytest.raises(ValueError, match="`temperature` must"):
        sample(np.zeros((2, 4)), [KEY, KEY], [0, 0], bad)


@pytest.mark.parametrize("bad", [True, 1.5, "3", None, NAN, INF])
def test_a_top_k_that_is_not_whole_is_refused(bad):
    with pytest.raises(ValueError, match="`top_k` must be at least 0 and whole"):
        truncate(np.zeros(3), top_k=bad)


@pytest.mark.parametrize("largest", [1.0, -5.0])
def test_logits_that_overflow_at_their_temperature_are_refused_by_row(largest):
    logits = np.array([[0.0, 1.0], [largest, largest - 1]])
    with pytest.raises(LogitsError, match=r"stay finite .* in row 1 \(NoiseKey") as refused:
        sample(logits, [KEY, KEY], [0, 0], np.array([1.0, 5e-324]))
    assert refused.value.row == 1


def test_logits_far_below_the_largest_are_just_never_drawn():
    assert sample(np.array([[-1e308, 0.5]]), [KEY], [0], 1e-3).tolist() == [1]


# --- hostile, but with a stated result --------------------------------------------------------


@pytest.mark.parametrize(
    "factual",
    [[1.0], [7.0] * 5, [NAN] * 3, [None, 1, 0], [0.1 + 0.2, 0.3], [1e308, -1e308], [5e-324, 0]],
)
@pytest.mark.parametrize("function", [paired, variance_account])
def test_degenerate_outcomes_have_a_result_with_reasons(function, factual):
    twin = [0.0] * len(factual)
    result = function(factual, twin)
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert str(result)
    assert plain["warnings"] or (plain["rho_eff"] is not None and plain["num_missing"] == 0)


def test_empty_and_constant_inputs_of_the_others_have_results():
    sequence = PairedSequence()
    sequence.update([])
    assert sequence.num_pairs == 0 and sequence.confidence_interval() == (-1.0, 1.0)
    assert agreement([1.0], [1.0]) == 1.0
    assert sqrt_allocation([0.0, 0.0], 1, budget=4).value == 0.0
    assert fit_exponent([0.1] * 4, [5] * 4).slope is None
    assert regime([1.0], [1.0], fork=[0], luck=[0]).law == "undecided"
    assert detectable_effect(50, discordance=1.0) <= 1.0
    assert log_wealth([], []).shape == (0,)
