"""What tests of verdicts and sweeps share."""


class Recorder:
    """Does tasks by a formula and remembers them."""

    def __init__(self, value):
        self.value = value
        self.tasks = []

    def __call__(self, tasks):
        self.tasks += tasks
        return [self.value(task) for task in tasks]
