"""The doctor: reads a training log of any framework and says what is wrong with the run.

It may import files, types, config and runs, and needs neither a model nor a GPU.
"""
