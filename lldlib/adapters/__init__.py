"""The losses, gates and alarm inside other engines: `trl` and `verl` need theirs installed.

`search`, `watch`, `likelihood` and `check_llds` need no engine. May import: files, types, config,
losses, retrieval, world, runs.
"""
