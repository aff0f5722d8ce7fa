import pytest

from twinstats.credit import METHODS, Budget, make, names
from twinstats.errors import UsageError


def test_the_registry_says_what_a_method_is():
    assert names() == list(METHODS)
    assert {"grpo", "rloo", "twice", "independent", "vine"} <= set(names())
    assert make("twice").reconstructed
    assert not make("vine").reconstructed
    assert make("rloo").needs == ()
    assert [name for name in ("grpo", "rloo", "vine") if make(name).compares_members] == [
        "grpo",
        "rloo",
    ]


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_has_a_first_line_and_a_source(name):
    text = METHODS[name].function.__doc__ or ""
    assert "Credit" in text.splitlines()[0]
    assert "Source:" in text


def test_an_unknown_method_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="Unknown credit method 'vin'. Did you mean 'vine'?"):
        make("vin")


@pytest.mark.parametrize(
    ("name", "option", "near"),
    [("vine", "rollout", "rollouts"), ("twice", "two_side", "two_sided"), ("rloo", "ddof", None)],
)
def test_an_unknown_option_is_refused_before_any_work(name, option, near):
    hint = f" Did you mean '{near}'?" if near else " There is none"
    with pytest.raises(UsageError, match=f"Unknown option of method '{name}' '{option}'.{hint}"):
        make(name, **{option: 1})


@pytest.mark.parametrize("option", ["memory", "group"])
def test_what_the_driver_supplies_is_no_option(option):
    with pytest.raises(UsageError, match="Unknown option"):
        make("twice", **{option: None})


def test_a_method_without_a_memory_has_an_empty_state():
    for method in (make("vine"), make("twice"), make("twice", twins=3)):
        assert method.state() == {}
        method.load({})
        method.observe(0, [])
    assert make("twice", budget=Budget(ratio=1.0)).state()


def test_two_methods_share_no_memory():
    one, other = (make("twice", budget=Budget(ratio=1.0)) for _ in range(2))
    one.load(one.state() | {"debt": 5.0})
    assert other.state()["debt"] == 0.0
