"""The losses, gates and alarms inside other engines; nothing here is imported without asking.

`trl` and `verl` need their engine; `watch` and `search` do not.
"""
