"""Speed, as ratios: both sides measured in one process run, alternating."""
