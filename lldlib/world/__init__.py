"""What is asked and what answers: questions, facts, protocol, reward; environments hold them all.

May import: files, types, config, retrieval.
"""
