"""Episodes: `loop` generates and searches over one cache, and `batch` turns episodes into tensors.

Reward, group and masks are set here, once. May import: files, types, config, retrieval,
world, policy.
"""
