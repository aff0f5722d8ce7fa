"""The regressor of `t2spo`: which one is taken, and that it predicts."""

import json
import sys
import types

import numpy as np
import pytest

from trainer.config import changed
from trainer.needs import Setup, make, regressor
from trainer.needs.regressor import chosen, success_regressor, weights
from trainer.setup import check, make_method
from trainer.tasks.facts import Facts
from twinstats.credit._neighbours import Neighbours
from twinstats.errors import UsageError


@pytest.fixture
def no_tabpfn(monkeypatch):
    monkeypatch.setattr(regressor, "weights", lambda: None)


@pytest.fixture
def tabpfn(monkeypatch, tmp_path):
    """A package tabpfn whose regressor predicts 7, and that notes how it was made."""
    file, made = tmp_path / "regressor.ckpt", []

    class TabPFNRegressor:
        def __init__(self, **options):
            made.append(options)

        def fit(self, X, y):
            return self

        def predict(self, X):
            return np.full(len(X), 7.0)

    version = types.SimpleNamespace(value="v3")
    modules = {
        "tabpfn": {"TabPFNRegressor": TabPFNRegressor},
        "tabpfn.model_loading": {"resolve_model_path": lambda *_, **__: ([file], [], [], "")},
        "tabpfn.settings": {
            "settings": types.SimpleNamespace(tabpfn=types.SimpleNamespace(model_version=version))
        },
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    found = regressor.importlib.util.find_spec
    monkeypatch.setattr(
        regressor.importlib.util, "find_spec", lambda n: object() if n == "tabpfn" else found(n)
    )
    return file, made


def context(num_rows, rng):
    """Outcomes that are a step of one feature among five."""
    X = rng.normal(size=(num_rows, 5))
    return X, (rng.random(num_rows) < np.where(X[:, 2] > 0.5, 0.9, 0.2)).astype(float)


def test_trees_predict_better_than_neighbours_where_features_are_noise(no_tabpfn):
    rng = np.random.default_rng(0)
    X, y = context(800, rng)
    fresh, _ = context(500, rng)
    truth = np.where(fresh[:, 2] > 0.5, 0.9, 0.2)

    def error(model):
        model.fit(X, y)
        return float(np.mean((model.predict(fresh) - truth) ** 2))

    assert error(success_regressor("auto")) < error(Neighbours()) / 2 < 0.02


def test_a_prediction_stays_within_the_outcomes_and_is_the_same_again(no_tabpfn):
    rng = np.random.default_rng(1)
    X, y = context(300, rng)
    one, other = (success_regressor("sklearn").fit(X, y).predict(10 * X) for _ in range(2))
    assert np.array_equal(one, other)
    assert one.min() >= 0 and one.max() <= 1


def test_a_short_context_gives_its_mean(no_tabpfn):
    X, y = np.arange(6.0)[:, None], np.array([0, 1, 1, 0, 1, 0.0])
    found = success_regressor("auto").fit(X, y).predict(X)
    assert found == pytest.approx(np.full(6, 0.5))


def test_tabpfn_is_taken_where_its_weights_are_and_never_without(tabpfn):
    file, made = tabpfn
    assert (weights(), chosen("auto")) == (None, "sklearn")
    with pytest.raises(UsageError, match=r"needs\.regressor=tabpfn.*nothing is downloaded"):
        success_regressor("tabpfn")
    assert not made
    file.write_bytes(b"weights")
    assert (chosen("auto"), chosen("tabpfn"), chosen("sklearn")) == ("tabpfn", "tabpfn", "sklearn")
    found = success_regressor("auto").fit(np.zeros((3, 1)), np.array([0, 0.5, 1]))
    assert found.predict(np.zeros((2, 1))).tolist() == [1, 1]  # 7, within the outcomes
    assert made[0]["model_path"] == str(file) and made[0]["random_state"] == 0


def test_without_the_package_tabpfn_is_refused_before_anything_is_played(no_tabpfn, config):
    own = changed(config, ["credit.method=t2spo", "needs.regressor=tabpfn"])
    with pytest.raises(UsageError, match="needs the package tabpfn"):
        check(own)
    assert check(changed(own, ["credit.method=rloo"])) is None


def test_the_method_gets_the_regressor_and_the_log_says_which(policy, config, tabpfn):
    file, _ = tabpfn
    setup = Setup(policy=policy, environment=Facts, config=config)
    method = make_method(changed(config, ["credit.method=t2spo", "credit.options.context=50"]))
    assert isinstance(method.options["regressor"], regressor.Clipped)
    assert method.options["context"] == 50
    before = make("features", setup)
    assert before.learn([]) == {"regressor/is_tabpfn_flag": 0.0}
    file.write_bytes(b"weights")
    after = make("features", setup)
    assert after.learn([]) == {"regressor/is_tabpfn_flag": 1.0}
    state = json.loads(json.dumps(before.state()))
    before.load(state, {})
    with pytest.raises(UsageError, match="began with the sklearn regressor"):
        after.load(state, {})
