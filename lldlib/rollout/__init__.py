"""Generate and search over one cache; episodes become a batch.

May import: types, config, losses, world, retrieval, policy.
"""
