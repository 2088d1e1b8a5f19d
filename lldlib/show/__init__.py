"""Figures and widgets, drawn from run folders and plain data; they train nothing.

The run that the live lab steers is handed in. May import: files, types, config, recipes, losses,
runs.
"""
