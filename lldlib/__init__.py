"""lldlib: why GRPO training of a search agent collapses, and what stops it."""

__version__ = "0.1.0"
