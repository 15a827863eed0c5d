"""The exception that says: stop here, somebody asked for it."""


class Interrupted(Exception):
    """A signal asked this process to stop; what it holds is handed back."""
