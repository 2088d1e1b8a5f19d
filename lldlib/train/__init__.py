"""The training loop (`trainer`; `prepare`, `measure`), one run (`run`), many (`sweep`, `studies`), and warm starts.

May import: files, types, config, seeds, recipes, losses, retrieval, world, runs, policy, rollout,
evaluate.
"""
