"""The studies of the gallery's pictures, in a compressed Optuna journal beside this file.

They are made, and saved, by

    taylorglo run digits_mlp_glo
    taylorglo evaluate digits_mlp_glo --seeds 3 --against ce,ce-tuned
    taylorglo run digits_mlp_wrong_labels        # CMA-ES from θ = 0, 12 generations
    taylorglo evaluate digits_mlp_wrong_labels --seeds 5 --against ce,ce-tuned,gce
    taylorglo sweep digits_mlp_wrong_labels --over label_noise --values 0,0.2,0.36,0.5
    taylorglo sweep digits_mlp_wrong_labels --over fraction --values 0.25,0.5,1
    taylorglo sweep digits_mlp_wrong_labels --over length --values 100,250,500,1000 --candidates 8
    cd docs && python -m pictures.saved_studies sqlite:///../taylorglo.db
"""

from __future__ import annotations

import argparse
import copy
import gzip
import tempfile
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from optuna_taylorglo.attributes import WORKER
from optuna_taylorglo.study.open import evaluation_study_name, open_storage

FILE = Path(__file__).with_name("studies.journal.gz")
NAMES = ("digits_mlp_wrong_labels", "digits_mlp_glo")


def load() -> dict[str, optuna.Study]:
    """The saved studies by name."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, FILE.stem)
        journal.write_bytes(gzip.decompress(FILE.read_bytes()))
        source = JournalStorage(JournalFileBackend(str(journal)))
        memory = optuna.storages.InMemoryStorage()
        for name in (n for study in NAMES for n in (study, evaluation_study_name(study))):
            optuna.copy_study(from_study_name=name, from_storage=source, to_storage=memory)
    return {name: optuna.load_study(study_name=name, storage=memory) for name in NAMES}


def save(url: str) -> None:
    """Save the studies of a storage, with their evaluation studies, without names of machines."""
    source = open_storage(url)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, FILE.stem)
        storage = JournalStorage(JournalFileBackend(str(journal)))
        for name in (n for study in NAMES for n in (study, evaluation_study_name(study))):
            _copy(optuna.load_study(study_name=name, storage=source), storage)
        FILE.write_bytes(gzip.compress(journal.read_bytes(), mtime=0))


def _copy(study: optuna.Study, storage: optuna.storages.BaseStorage) -> None:
    copied = optuna.create_study(
        study_name=study.study_name, directions=study.directions, storage=storage
    )
    for key, value in study.user_attrs.items():
        copied.set_user_attr(key, value)
    for trial in study.get_trials(deepcopy=False):
        anonymous = copy.copy(trial)
        anonymous.user_attrs = {k: v for k, v in trial.user_attrs.items() if k != WORKER}
        copied.add_trial(anonymous)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Save the studies of the gallery's pictures.")
    parser.add_argument("storage", help="URL of the storage they were made in")
    save(parser.parse_args().storage)
    print(f"{FILE.name}: {FILE.stat().st_size:,} bytes")
