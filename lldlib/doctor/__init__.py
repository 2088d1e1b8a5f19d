"""The doctor: reads a training log of any framework and says what is wrong with the run.

It needs neither a model nor a GPU.
May import: files, types, config, runs.
"""
