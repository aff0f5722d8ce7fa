import pytest

from tests.paper import oracle_logs, synthetic


@pytest.fixture(scope="session")
def all_runs(tmp_path_factory):
    """A folder with a run of each kind: the studies, and a training run with twins and texts."""
    folder = tmp_path_factory.mktemp("all") / "runs"
    oracle = oracle_logs.tables(settings=("facts",), outcomes=("f1",), num_episodes=10)
    synthetic.all_studies(folder / "studies", **oracle)
    synthetic.train_run(folder / "twice-0", steps=6)
    return folder
