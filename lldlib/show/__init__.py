"""Figures and widgets of run folders and of plain data; a run to be steered is handed in.

They train nothing and compute no metric. May import: types, config, files, recipes, losses, runs.
"""
