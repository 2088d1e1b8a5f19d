"""What is asked and what answers: questions, facts, protocol, reward.

May import: types, config, retrieval.
"""
