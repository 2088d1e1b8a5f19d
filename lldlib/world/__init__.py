"""What is asked and what an answer earns: questions, facts, benchmarks, protocol, reward.

`registry.ENVIRONMENTS` lists the worlds. May import: files, types, config, seeds, retrieval.
"""
