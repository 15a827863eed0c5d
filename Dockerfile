FROM python:3.12.11-slim-bookworm

# For another wheel index, such as one with CPU-only builds of PyTorch:
#     docker compose build --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY optuna_taylorglo optuna_taylorglo
COPY lightning_modules lightning_modules
COPY studies studies
RUN pip install --no-cache-dir '.[postgres,dashboard]'

# The data directory exists before a volume is mounted on it, so that the volume belongs to the user.
RUN useradd --create-home --uid 1000 taylorglo \
    && install --directory --owner=taylorglo --group=taylorglo /home/taylorglo/data
COPY studies /home/taylorglo/studies
USER taylorglo
WORKDIR /home/taylorglo

CMD ["taylorglo-worker", "--help"]
