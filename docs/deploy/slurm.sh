#!/bin/bash
# One worker per task of a SLURM array; add tasks or submit again at any time.
#
# Before the first submission, once, on a machine that reaches the database (PostgreSQL or MySQL; a
# file on a network file system is no database):
#
#     optuna create-study --direction maximize --skip-if-exists \
#         --study-name "$STUDY_NAME" --storage "$OPTUNA_STORAGE"
#
# then
#
#     export STUDY_NAME=digits_cnn RECIPE=studies/digits_cnn.yaml
#     export OPTUNA_STORAGE=postgresql+psycopg://taylorglo@db.example/taylorglo
#     sbatch docs/deploy/slurm.sh
#
# If the cluster suspends jobs for longer than --grace-period, their evaluations may be repeated.
#
# The password stays out of the URL: PostgreSQL's clients read it from ~/.pgpass (mode 600).
#
#SBATCH --job-name=taylorglo
#SBATCH --array=0-27
#SBATCH --cpus-per-task=1
#SBATCH --mem=4G
#SBATCH --time=04:00:00
#SBATCH --requeue
# Two minutes before the limit the worker is told to release its trial:
#SBATCH --signal=B:TERM@120
# For one GPU a worker:
##SBATCH --gpus-per-task=1

set -euo pipefail

# exec, so that the signal above reaches the worker and not a shell that waits for it.
exec taylorglo-worker \
    --study-name "${STUDY_NAME:?}" \
    --storage "${OPTUNA_STORAGE:?}" \
    --recipe "${RECIPE:?}" \
    --data-dir "${DATA_DIR:-data}" \
    --threads "${SLURM_CPUS_PER_TASK:-1}"
