"""The run folder and what is read off it: numbers only.

May import: types, config, losses.
"""
