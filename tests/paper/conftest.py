import pytest

from tests.paper import synthetic


@pytest.fixture(scope="session")
def all_runs(tmp_path_factory):
    """A folder with a run of each kind: the studies, and a training run with twins and texts."""
    folder = tmp_path_factory.mktemp("all") / "runs"
    synthetic.all_studies(folder / "studies")
    synthetic.train_run(folder / "twice-0", steps=6)
    return folder
