"""Seeds: no two places share one, and those of studies made before stay what they were."""

from __future__ import annotations

from itertools import product

from optuna_taylorglo.seeds import Stage, candidate_seed, stage_seed, training_seed


def test_no_two_places_of_a_search_and_its_verdict_share_a_seed() -> None:
    """Over three searches, ten generations of seven, three attempts and two repeats, all stages."""
    searches, generations, indices = range(3), range(10), range(7)
    candidates = [candidate_seed(*at) for at in product(searches, generations, indices)]
    trainings = [
        training_seed(*at, repeat=repeat)
        for *at, repeat in product(searches, generations, indices, range(3), range(2))
    ]
    common = [
        training_seed(seed, generation, 0, attempt, repeat=repeat, policy="common")
        for seed, generation, attempt, repeat in product(searches, generations, range(3), range(2))
    ]
    stages = [stage_seed(*at) for at in product(searches, Stage, range(20))]
    everything = [*candidates, *trainings, *common, *stages]
    assert len(set(everything)) == len(everything)
    assert all(0 <= seed < 2**32 for seed in everything)


def test_the_common_policy_gives_a_generation_one_seed_per_attempt_and_repeat() -> None:
    seeds = {
        training_seed(0, generation, index, attempt, repeat=repeat, policy="common")
        for generation, attempt, repeat in ((0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0))
        for index in range(28)
    }
    assert len(seeds) == 4


def test_seeds_are_those_of_studies_made_before() -> None:
    """With others, a search that goes on would draw and train differently than it began."""
    assert candidate_seed(0, 0, 0) == 3678467582
    assert candidate_seed(7, 3, 11) == 3182012905
    assert training_seed(0, 0, 0, 0) == 1208416985
    assert training_seed(7, 3, 11, 2, repeat=1) == 2345875344
    assert training_seed(7, 3, 11, 2, policy="common") == 1035913203
    assert {stage.name: stage_seed(5, stage, 4) for stage in Stage} == {
        "TUNE": 874803219,
        "TEST": 2700009823,
        "SELECTION": 559637092,
        "STANDARD": 2539647647,
        "STANDARD_SELECTION": 3711662971,
        "SWEEP": 4122471537,
    }
