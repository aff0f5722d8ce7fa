"""The training loop, its checkpoints, its meters and what watches it."""
