"""What is asked and what an answer earns: questions, facts, benchmarks, protocol, reward.

`environment.ENVIRONMENTS` lists the worlds. May import: files, types, config, seeds, retrieval.
"""
