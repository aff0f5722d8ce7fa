"""What `import twinstats` brings in."""

import subprocess
import sys


def test_importing_the_statistics_stays_light():
    code = "import sys, twinstats; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "twinstats.pairs" in loaded
    assert not loaded & {"torch", "matplotlib", "pandas", "statsmodels"}
