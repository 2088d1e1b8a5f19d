"""A policy: a model and its tokenizer, its scores, and the memory it takes.

May import: types, config, losses.
"""
