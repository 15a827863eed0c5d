"""What people install: its files, what it says of itself, and its version, said in one place."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
import yaml

from optuna_taylorglo import __version__, cli, worker

ROOT = Path(__file__).parents[1]
NAME = f"optuna_taylorglo-{__version__}"


def build(source: Path, folder: Path, *targets: str) -> Path:
    """Offline, with the Hatchling that is installed here; returns the folder."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    for target in targets:
        command += ["--target", target]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist of this checkout."""
    return build(ROOT, tmp_path_factory.mktemp("dist"), "sdist", "wheel")


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return dist / f"{NAME}-py3-none-any.whl"


@pytest.fixture(scope="module")
def unpacked_sdist(dist: Path) -> Path:
    with tarfile.open(dist / f"{NAME}.tar.gz") as archive:
        archive.extractall(dist, filter="data")
    return dist / NAME


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The folder that the wheel unpacks to."""
    folder = wheel.parent / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def files(folder: Path) -> set[str]:
    """Of a folder, however deep, without what Python leaves there."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(folder).as_posix() for path in found}


def packages() -> set[str]:
    """The files of both packages in this checkout."""
    names = ("optuna_taylorglo", "lightning_modules")
    return {f"{name}/{file}" for name in names for file in files(ROOT / name)}


def recipes() -> set[str]:
    return {"README.md", *(path.name for path in ROOT.glob("studies/*.yaml"))}


def test_the_wheel_holds_both_packages_and_the_recipes_and_nothing_else(installed: Path) -> None:
    about = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert files(installed) == (
        packages()
        | {f"optuna_taylorglo/bundled_studies/{name}" for name in recipes()}
        | {f"{NAME}.dist-info/{name}" for name in about}
    )


@pytest.mark.parametrize(
    "file",
    [
        "lightning_modules/py.typed",
        "optuna_taylorglo/__init__.pyi",
        "optuna_taylorglo/py.typed",
        "optuna_taylorglo/recipes/recipe.schema.json",
        "optuna_taylorglo/report/page.html.j2",
    ],
)
def test_the_wheel_holds_what_is_not_a_module_too(installed: Path, file: str) -> None:
    assert (installed / file).read_bytes() == (ROOT / file).read_bytes()


def test_the_sdist_holds_what_a_wheel_is_built_from_and_nothing_else(unpacked_sdist: Path) -> None:
    about = {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    studies = {f"studies/{name}" for name in recipes()}
    assert files(unpacked_sdist) == packages() | studies | about


def test_the_sdist_builds_the_very_same_wheel(
    unpacked_sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    again = build(unpacked_sdist, tmp_path, "wheel") / wheel.name
    assert again.read_bytes() == wheel.read_bytes()


@pytest.fixture(scope="module")
def metadata(installed: Path) -> Message:
    return message_from_string((installed / f"{NAME}.dist-info" / "METADATA").read_text("utf-8"))


def test_the_wheel_says_what_it_is(metadata: Message) -> None:
    assert metadata["Name"] == "optuna-taylorglo"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text("utf-8")


def test_an_installed_package_finds_its_own_recipes(installed: Path, tmp_path: Path) -> None:
    code = "import optuna_taylorglo.recipes.load as b; print(b.find_recipe('digits_cnn'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(installed)


@pytest.mark.parametrize("main", [worker.main, cli.main])
def test_commands_say_the_version(main, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert not exit_.value.code
    assert capsys.readouterr().out.split()[1] == __version__


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "docs" / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == __version__


def test_the_newest_changes_are_those_of_this_version() -> None:
    changelog = (ROOT / "docs" / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## (\S+)", changelog, flags=re.MULTILINE)
    assert newest
    assert newest[1] == __version__


@pytest.mark.parametrize(
    ("tag", "heading", "complaint"),
    [
        (f"v{__version__}", f"{__version__} (2030-01-31)", ""),
        ("v99.0", f"{__version__} (2030-01-31)", f"The tag is v99.0, but .* says {__version__}"),
        (f"v{__version__}", f"{__version__} (unreleased)", "needs a heading with the day"),
        (f"v{__version__}", "99.0 (2030-01-31)", "needs a heading with the day"),
    ],
)
def test_a_release_is_refused_unless_tag_version_and_changelog_agree(
    tmp_path: Path, tag: str, heading: str, complaint: str
) -> None:
    """By the first command of the release, as the workflow has it."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    check = next(step["run"] for step in workflow["jobs"]["build"]["steps"] if "run" in step)
    for folder in ("optuna_taylorglo", "docs"):
        (tmp_path / folder).mkdir()
    package = Path("optuna_taylorglo", "__init__.py")
    (tmp_path / package).write_text((ROOT / package).read_text())
    (tmp_path / "docs" / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n")
    done = subprocess.run(
        ["bash", "-e", "-c", check],
        cwd=tmp_path,
        env=os.environ | {"GITHUB_REF_NAME": tag},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (complaint == "")
    assert re.search(complaint, done.stdout), done.stdout + done.stderr
