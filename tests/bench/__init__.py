"""Speed of lldlib as ratios, measured in one run: `python -m tests.bench`."""
