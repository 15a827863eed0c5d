"""What must hold before a change lands: whichever step fails, it says so and fails as a whole."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Stands for every program: says its name, and fails if it is the one that has to.
PROGRAM = '#!/bin/sh\necho "ran ${0##*/} $*"\ncase "${0##*/} $*" in $FAIL) exit 1 ;; esac\n'
PYTHON = PROGRAM + "mkdir -p .venv/bin; cp programs/* .venv/bin\n"
PACKAGE = PROGRAM + 'if [ "$PACKAGE_TAKES" ]; then exec sleep "$PACKAGE_TAKES"; fi\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script, among programs that do nothing."""
    programs = ("pip", "pytest", "taylorglo", "ruff", "mypy", "lint-imports", "mkdocs", "python")
    programs += ("mariadbd", "chromium")
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
    for program in ("pytest", "ruff check", "ruff format", "mypy", "lint-imports", "package"):
        assert f"ran {program}" in done.stdout


@pytest.mark.parametrize(
    ("program", "step"),
    [
        ("python3 -m venv*", "the README's own test command"),
        ("pip install*test*", "the README's own test command"),
        ("pytest*", "the README's own test command"),
        ("pip install*dev*", "install the tools of development"),
        ("ruff check*", "ruff check"),
        ("ruff format*", "ruff format"),
        ("mypy*", "mypy"),
        ("lint-imports*", "lint-imports"),
        ("package*", "the package, built, installed and used elsewhere"),
    ],
)
def test_a_step_that_fails_is_named(checkout: Path, program: str, step: str) -> None:
    done = run(checkout, FAIL=program)
    assert done.returncode != 0
    assert f"== FAILED: {step}\n" in done.stderr


@pytest.mark.timeout(120)
def test_a_linter_that_fails_ends_the_package_too(checkout: Path) -> None:
    """It holds the pipe that is read here, so that this would take as long as it does."""
    done = run(checkout, FAIL="mypy*", PACKAGE_TAKES="3600")
    assert done.returncode != 0
