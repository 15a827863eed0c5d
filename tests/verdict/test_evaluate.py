"""The verdict: what is compared, what resumes, what the words say."""

import json
import math

import optuna
import pytest
from optuna.trial import TrialState
from searches import load, process, small_recipe, wait_until
from verdicts import Recorder

from optuna_taylorglo import cli, worker
from optuna_taylorglo.attributes import KEY, RELEASED
from optuna_taylorglo.losses.canonical import gradient_scale
from optuna_taylorglo.verdict.compared_losses import ComparedLoss, ScaledLoss
from optuna_taylorglo.verdict.evaluate import RERANK_SEEDS, Plan, choose_winner, evaluate
from optuna_taylorglo.verdict.files import from_json, rows, to_csv, to_json, to_markdown
from optuna_taylorglo.verdict.statistics import Sample, Verdict, contrasts
from optuna_taylorglo.verdict.task_queue import MAX_FAILURES, Task, TaskQueue


def test_contenders_controls_and_budgets(study, recipe):
    do = Recorder(lambda task: 0.9 + task.seed % 97 / 1000)
    verdict = evaluate(study, recipe, Plan(seeds=3, rerank=0), do)
    names = [sample.name for sample in verdict.samples]
    assert names[:1] == ["winner"]
    assert names[-2:] == ["winner-normalised", "ce-scaled"]
    assert names[1:-2] == ["ce", "ce-tuned", "ce-smoothed", "baikal-cma"]
    tests = [task for task in do.tasks if task.on_test_set]
    assert len(tests) == 3 * 7
    assert {task.length for task in tests} == {recipe.budget.full}
    # All losses start from the same weights, none of which the search or the tuning has seen.
    seeds = {task.seed for task in tests}
    assert len(seeds) == 3
    assert not seeds & {task.seed for task in do.tasks if not task.on_test_set}
    scaled = next(t.loss for t in tests if t.loss.name == "ce-scaled")
    theta = tests[0].loss.settings["theta"]
    assert theta[2] == 1.0  # the single best trial
    assert verdict.trial == 1
    expected = gradient_scale(theta, 10, class_reduction=recipe.loss.class_reduction)
    assert scaled.scale == pytest.approx(expected)
    normalised = next(t.loss for t in tests if t.loss.name == "winner-normalised")
    assert gradient_scale(
        normalised.settings["theta"], 10, class_reduction=recipe.loss.class_reduction
    ) == pytest.approx(1)
    assert isinstance(scaled.criterion(), ScaledLoss)


def test_tuning_takes_the_best_on_validation_never_on_test(study, recipe):
    def value(task):
        if task.on_test_set:
            return 0.5
        if task.loss.name == "ce-tuned":
            return 1 - abs(math.log(task.loss.learning_rate / (3 * recipe.optimiser.lr)))
        return task.loss.settings["label_smoothing"]

    do = Recorder(value)
    plan = Plan(seeds=2, against=("ce-tuned", "ce-smoothed"), rerank=0)
    verdict = evaluate(study, recipe, plan, do)
    labels = [sample.label for sample in verdict.samples]
    assert f"cross-entropy, learning rate {3 * recipe.optimiser.lr:.3g} (tuned)" in labels
    assert "cross-entropy, label smoothing 0.3 (tuned)" in labels


def test_reranking_decides_by_fresh_seeds_only(study, recipe):
    lucky = Recorder(lambda task: {1.0: 0.6, 2.0: 0.8, 0.0: 0.7}[task.loss.settings["theta"][2]])
    assert choose_winner(study, recipe, 3, lucky).number == 2
    assert len(lucky.tasks) == 3 * RERANK_SEEDS
    assert choose_winner(study, recipe, 0, lucky).number == 1
    never_trains = Recorder(lambda task: None)
    assert choose_winner(study, recipe, 2, never_trains).number == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": 1}, "seeds must be at least 2"),
        ({"rerank": -1}, "rerank must be at least 0"),
        ({"against": ("ce", "focal")}, "against has 'focal'; allowed are ce, ce-tuned"),
    ],
)
def test_senseless_plans_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Plan(**settings)


def test_failed_trainings_are_reported_not_dropped(study, recipe):
    do = Recorder(lambda task: None if task.loss.name == "baikal-cma" else 0.9)
    verdict = evaluate(study, recipe, Plan(seeds=3, rerank=0), do)
    baikal = next(sample for sample in verdict.samples if sample.name == "baikal-cma")
    assert (baikal.values, baikal.failed) == ((), 3)
    assert "3 of BaikalCMA" in verdict.text


def verdict_of(**means):
    labels = {"winner": "evolved loss", "ce": "cross-entropy", "ce-tuned": "tuned cross-entropy"}
    samples = tuple(
        Sample(name, labels.get(name, name), tuple(mean + d for d in (-0.001, 0, 0.001)))
        for name, mean in ((name.replace("_", "-"), mean) for name, mean in means.items())
    )
    return Verdict(samples, contrasts(samples[0], samples[1:]), "", "test_accuracy")


def test_the_words_tell_scale_from_shape():
    text = words(verdict_of(winner=0.95, ce=0.90, ce_tuned=0.95, ce_scaled=0.94), 10)
    assert "significantly better than cross-entropy, but not than tuned cross-entropy" in text
    assert (
        "+0.0500 to cross-entropy, +0.0400 is what cross-entropy gains from the same scale" in text
    )
    assert "+0.0100 is left for the shape" in text
    assert "better than every baseline" in words(verdict_of(winner=0.95, ce=0.90), 10)
    assert "not significantly better than any baseline" in words(
        verdict_of(winner=0.90, ce=0.95), 10
    )


def test_the_words_name_trainings_that_only_guessed():
    samples = (
        Sample("winner", "evolved loss", (0.98, 0.1, 0.99)),
        Sample("ce", "cross-entropy", (0.97, 0.98, 0.96)),
    )
    text = words(Verdict(samples, contrasts(samples[0], samples[1:]), "", "test_accuracy"), 10)
    assert "did not get beyond guessing (below 0.15)" in text
    assert "1 of 3 of evolved loss." in text


def test_every_form_of_a_verdict_says_the_same():
    verdict = verdict_of(winner=0.95, ce=0.90)
    assert from_json(json.loads(json.dumps(to_json(verdict)))) == verdict
    assert rows(verdict)[1][5] == "+0.0500"
    assert "| cross-entropy | 0.9000 | 0.0010 | 3 | 0 | +0.0500 |" in to_markdown(verdict)
    assert to_csv(verdict).splitlines()[1] == "winner,evolved loss,0,0.949"


def task(seed, **changes):
    fields = {"length": 5, "unit": "steps", "on_test_set": True}
    return Task(ComparedLoss("ce", "cross-entropy", "cross-entropy"), seed, **(fields | changes))


def test_a_task_is_known_by_what_it_trains_not_by_its_name():
    renamed = Task(ComparedLoss("x", "other", "cross-entropy"), 1, 5, "steps", True)
    assert renamed.key == task(1).key
    assert (
        len({task(1).key, task(2).key, task(1, length=6).key, task(1, on_test_set=False).key}) == 4
    )
    assert Task.from_dict(json.loads(json.dumps(task(1).to_dict()))) == task(1)
    with pytest.raises(ValueError, match="kind must be one of"):
        ComparedLoss("evil", "evil", "os.system")


def test_the_queue_does_nothing_twice_and_gives_up_after_some_crashes():
    queue = TaskQueue(optuna.create_study(direction="maximize"))
    tasks = [task(1), task(2), task(3)]
    queue.enqueue(tasks)
    queue.enqueue(tasks)
    assert len(queue.study.trials) == 3
    assert queue.results(tasks) is None
    trial, claimed = queue.claim()
    assert claimed == task(1)
    queue.finish(trial, 0.5, TrialState.COMPLETE)
    diverging, _ = queue.claim()
    queue.finish(diverging, None, TrialState.PRUNED)
    handed_back, _ = queue.claim()
    queue.release(handed_back)
    for _ in range(MAX_FAILURES):
        assert queue.results(tasks) is None
        crashing, claimed = queue.claim()
        assert claimed == task(3)
        queue.finish(crashing, None, TrialState.FAIL)
    assert queue.claim() is None
    assert queue.results(tasks) == [0.5, None, None]
    assert handed_back.user_attrs[RELEASED]


def test_a_killed_evaluation_resumes_and_trains_nothing_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small_recipe(
        tmp_path / "tiny.yaml",
        budget={"evaluation": 4, "full": 6},
        early_abort=None,
        search={"population": 3, "generations": 1},
    )
    url = f"sqlite:///{tmp_path}/taylorglo.db"
    optuna.create_study(study_name="tiny", storage=url, direction="maximize")
    common = ["--storage", url]
    search = ["--study-name", "tiny", "--recipe", "tiny.yaml", *common]
    assert worker.main(search) == worker.DONE
    words_ = ["evaluate", "tiny", "--seeds", "3", "--against", "ce,ce-tuned", "--rerank", "2"]
    words_ += ["--workers", "1", *common]
    first = process("optuna_taylorglo.cli", *words_, cwd=tmp_path)

    def done():
        try:
            return load(url, "tiny-verdict").get_trials(states=(TrialState.COMPLETE,))
        except KeyError:
            return []

    wait_until(lambda: len(done()) >= 8)
    first.kill()
    first.communicate()
    before = {t.number: t.datetime_complete for t in done()}
    # The orphaned worker goes on, as a worker on another machine would, and nobody minds.
    assert cli.main(words_) == cli.DONE
    trials = load(url, "tiny-verdict").get_trials(states=(TrialState.COMPLETE,))
    keys = [t.user_attrs[KEY] for t in trials]
    assert len(keys) == len(set(keys))
    assert before.items() <= {t.number: t.datetime_complete for t in trials}.items()
    out = capsys.readouterr().out
    assert "evolved loss" in out
    for suffix in ("md", "csv", "json"):
        assert (tmp_path / f"verdict.{suffix}").stat().st_size > 100
    count = len(load(url, "tiny-verdict").trials)
    assert cli.main(words_) == cli.DONE
    assert len(load(url, "tiny-verdict").trials) == count
