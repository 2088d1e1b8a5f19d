"""The training loop (`trainer`, `experience`, `measure`), runs (`run`, `sweep`), and warm starts.

May import: files, types, config, seeds, recipes, losses, retrieval, world, runs, policy, rollout,
evaluate.
"""
