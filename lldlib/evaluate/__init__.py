"""Held-out scores of a run, and benchmarks: asking, scoring, tables beside the papers' rows.

May import: files, types, config, retrieval, world, runs, policy, rollout.
"""
