"""Held-out scores and benchmarks.

May import: everything below it.
"""
