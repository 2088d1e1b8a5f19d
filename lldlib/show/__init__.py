"""Figures and widgets. They read run folders and plain data, train nothing and compute no metric.

May import: types, config, files, losses, runs, evaluate.
"""
