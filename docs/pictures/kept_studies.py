"""The studies of the gallery's pictures, kept beside this file as a compressed Optuna journal.

After the commands that docs/gallery.md names, this keeps what they made:

    cd docs && python -m pictures.kept_studies sqlite:///taylorglo.db
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

from optuna_taylorglo.attributes import WORKER
from optuna_taylorglo.study.open import evaluation_study_name, open_storage

FILE = Path(__file__).with_name("studies.journal.gz")
NAMES = ("digits_mlp_wrong_labels", "digits_mlp_glo")


class PackedJournal(BaseJournalBackend):
    """A compressed journal that is only read."""

    def __init__(self, file: Path) -> None:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            self._logs = [json.loads(line) for line in lines]

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The logs from a number on."""
        return iter(self._logs[log_number_from:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Refused."""
        raise PermissionError(f"{FILE.name} is only read, {len(logs)} logs were to be added.")


def load() -> dict[str, optuna.Study]:
    """The kept studies by name."""
    storage = JournalStorage(PackedJournal(FILE))
    return {name: optuna.load_study(study_name=name, storage=storage) for name in NAMES}


def keep(url: str) -> None:
    """Keep the studies of a storage, with their companions, in place of those kept before."""
    source = open_storage(url)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, FILE.stem)
        storage = JournalStorage(JournalFileBackend(str(journal)))
        for name in (n for study in NAMES for n in (study, evaluation_study_name(study))):
            _copy(optuna.load_study(study_name=name, storage=source), storage)
        FILE.write_bytes(gzip.compress(journal.read_bytes(), mtime=0))


def _copy(study: optuna.Study, storage: optuna.storages.BaseStorage) -> None:
    """Copy a study without the machines that it was made on."""
    copied = optuna.create_study(
        study_name=study.study_name, directions=study.directions, storage=storage
    )
    for key, value in study.user_attrs.items():
        copied.set_user_attr(key, value)
    for trial in study.get_trials(deepcopy=False):
        anonymous = copy.copy(trial)
        anonymous.user_attrs = {k: v for k, v in trial.user_attrs.items() if k != WORKER}
        copied.add_trial(anonymous)


def main() -> None:
    """Keep the studies of a storage."""
    parser = argparse.ArgumentParser(description="Keep the studies of the gallery's pictures.")
    parser.add_argument("storage", help="where they were made")
    keep(parser.parse_args().storage)
    print(f"{FILE.name}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
