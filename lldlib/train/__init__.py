"""The training loop, runs, sweeps and warm starts.

May import: everything below it, and not show.
"""
