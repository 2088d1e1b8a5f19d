"""The run folder and what is read off it: metrics, phases, alarm, summary, glossary.

Numbers only, no drawing. May import: files, types, config, losses.
"""
