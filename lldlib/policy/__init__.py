"""A policy is a model and its tokenizer: loading it, its log-probs, its optimiser, its memory.

It knows no questions and no search. May import: files, types, config, losses.
"""
