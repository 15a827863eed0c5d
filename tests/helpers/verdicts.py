"""What tests of verdicts and sweeps share."""

from collections.abc import Iterable

from optuna_taylorglo.verdict.statistics import Role, Sample, Verdict, contrasts


class Recorder:
    """Does tasks by a formula and remembers them."""

    def __init__(self, value):
        self.value = value
        self.tasks = []

    def __call__(self, tasks):
        self.tasks += tasks
        return [self.value(task) for task in tasks]


ROLES = {
    "winner": Role.EVOLVED,
    "ce": Role.REFERENCE,
    "ce-scaled": Role.SCALE_CONTROL,
    "winner-normalized": Role.SHAPE_CONTROL,
}


def sample(
    name: str, label: str, values: Iterable[float], diverged: tuple[int, ...] = ()
) -> Sample:
    """Trainings of a loss whose role follows from its name."""
    return Sample(name, label, ROLES.get(name, Role.BASELINE), tuple(values), diverged)


def verdict_of(**means):
    """A verdict on three trainings around each mean, with different differences."""
    labels = {"winner": "evolved loss", "ce": "cross-entropy", "ce-tuned": "tuned cross-entropy"}
    samples = []
    for name, mean in means.items():
        name = name.replace("_", "-")
        step = 0.001 if name == "winner" else -0.001
        values = (mean - step, mean, mean + step)
        samples.append(sample(name, labels.get(name, name), values))
    return Verdict(tuple(samples), contrasts(samples[0], samples[1:]), "", "test_accuracy")
