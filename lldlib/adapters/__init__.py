"""The losses, gates and alarm inside other engines: `trl` and `verl` need theirs installed.

`search`, `watch`, `likelihood`, `check_llds` and `script` need no engine. May import: files, types,
config, losses, retrieval, world, runs, rollout.
"""
