"""What `docs/figures.py` draws: a module for each kind of picture, and the look they share."""
