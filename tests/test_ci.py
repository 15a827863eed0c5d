"""`.ci/run`, with stand-ins for its programs: a step that fails is named and fails the whole."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from searches import ROOT

pytestmark = pytest.mark.pages

# Prints its name, and fails if it matches $FAIL.
PROGRAM = '#!/bin/sh\necho "ran ${0##*/} $*"\ncase "${0##*/} $*" in $FAIL) exit 1 ;; esac\n'
PYTHON = PROGRAM + "mkdir -p .venv/bin; cp programs/* .venv/bin\n"
PACKAGE = PROGRAM + 'if [ "$PACKAGE_TAKES" ]; then exec sleep "$PACKAGE_TAKES"; fi\n'

STEPS = {
    "python3 -m venv*": "the README's own test command",
    "pip install*test*": "the README's own test command",
    "pytest ": "the README's own test command",
    "pytest -m pages*": "pages, examples and the built package",
    "pip install*dev*": "install the tools of development",
    "ruff check*": "ruff check",
    "ruff format*": "ruff format",
    "mypy*": "mypy",
    "lint-imports*": "lint-imports",
    "package*": "the package, built, installed and used elsewhere",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    programs = ("pip", "pytest", "ruff", "mypy", "lint-imports", "mariadbd", "chromium")
    scripts = {f"programs/{name}": PROGRAM for name in programs}
    for path, text in (scripts | {"path/python3": PYTHON, ".ci/package": PACKAGE}).items():
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    return tmp_path


def run(checkout: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    path = f"{checkout / 'path'}:{checkout / 'programs'}:{os.environ['PATH']}"
    given = {"PATH": path, "FAIL": "nothing"} | environment
    script = checkout / ".ci" / "run"
    return subprocess.run([script], env=given, cwd="/", capture_output=True, text=True)


def test_all_steps_run_and_succeed(checkout: Path) -> None:
    done = run(checkout)
    assert done.returncode == 0, done.stderr
    assert "FAILED" not in done.stderr
    for program in STEPS:
        assert f"ran {program.split('*')[0]}" in done.stdout


def test_ci_runs_the_readme_s_test_command() -> None:
    (command,) = re.findall(r"^.*/pytest$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize("program", STEPS)
def test_a_step_that_fails_is_named(checkout: Path, program: str) -> None:
    done = run(checkout, FAIL=program)
    assert done.returncode != 0
    assert f"== FAILED: {STEPS[program]}\n" in done.stderr


@pytest.mark.timeout(120)  # the package holds the pipe that is read here
def test_a_linter_that_fails_ends_the_package_too(checkout: Path) -> None:
    assert run(checkout, FAIL="mypy*", PACKAGE_TAKES="3600").returncode != 0
