"""What is said of a run: as words, as figures and as an HTML page."""
