import json
from dataclasses import dataclass, field

import numpy as np
import pytest

from twinstats.errors import UsageError, unknown
from twinstats.results import Result, json_value, show, show_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Example(Result):
    value: float
    counts: np.ndarray
    warnings: tuple[str, ...] = ()
    _data: np.ndarray = field(default_factory=lambda: np.zeros(3))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (np.float32("nan"), None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (True, True),
        (None, None),
        ((1, np.nan, "a"), [1, None, "a"]),
        (np.array([[1.0, np.inf], [2.0, 3.0]]), [[1.0, None], [2.0, 3.0]]),
        (np.array(2.5), 2.5),
        ({1: np.arange(2), "b": {"c": float("inf")}}, {"1": [0, 1], "b": {"c": None}}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset("ba"), ["a", "b"]),
    ],
)
def test_values_become_strict_json(value, expected):
    made = json_value(value)
    assert made == expected
    assert type(made) is type(expected)
    assert json.loads(json.dumps(made, allow_nan=False)) == expected


def test_a_type_without_a_json_form_is_refused():
    with pytest.raises(TypeError, match="`object` has no JSON form"):
        json_value([object()])
    with pytest.raises(TypeError, match="no JSON form"):
        json_value(Example)


def test_a_result_gives_its_public_fields_as_strict_json():
    result = Example(value=float("nan"), counts=np.array([1, 2]), warnings=("one pair",))
    expected = {"value": None, "counts": [1, 2], "warnings": ["one pair"]}
    assert result.to_dict() == expected
    assert json_value({"inside": result}) == {"inside": expected}


def test_numbers_are_shown_as_people_read_them():
    assert [show(v) for v in (0.123456, 1234567.0, 12, None, 0.0)] == [
        "0.1235",
        "1.235e+06",
        "12",
        "undefined",
        "0",
    ]
    assert show(0.123456, 2) == "0.12"
    assert show_interval((0.1, float("inf"))) == "[0.1, inf]"
    assert show_interval(None) == "[undefined]"


def test_nan_is_never_shown_as_such():
    assert show(float("nan")) == "undefined"
    assert show_interval((float("nan"), 1.0)) == "[undefined, 1]"


def test_an_unknown_name_gets_the_nearest_and_all():
    error = unknown("credit method", "twise", ["vine", "twice"])
    assert isinstance(error, UsageError)
    assert str(error) == (
        "Unknown credit method 'twise'. Did you mean 'twice'? Known: twice, vine."
    )
    assert "Did you mean" not in str(unknown("method", "zzz", ["twice"]))
