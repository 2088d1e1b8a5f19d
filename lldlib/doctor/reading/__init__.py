"""Logs of any framework -> runs: a parser a format, the table of names, kinds, clean series."""
