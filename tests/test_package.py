"""The built package: its files, its metadata, and its version, said in one place."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
import yaml
from searches import ROOT

from optuna_taylorglo import __version__

pytestmark = pytest.mark.pages

NAME = f"optuna_taylorglo-{__version__}"


def build(source: Path, folder: Path) -> Path:
    """Build with the Hatchling installed here, without a network; returns the folder."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=source, capture_output=True, check=True)
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist, and what they unpack to, in `installed` and `NAME`."""
    folder = build(ROOT, tmp_path_factory.mktemp("dist"))
    with tarfile.open(folder / f"{NAME}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    with zipfile.ZipFile(folder / f"{NAME}-py3-none-any.whl") as archive:
        archive.extractall(folder / "installed")
    return folder


def files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(folder).as_posix() for path in found}


def test_wheel_and_sdist_hold_packages_and_recipes_and_nothing_else(dist: Path) -> None:
    packages = {
        f"{name}/{file}"
        for name in ("optuna_taylorglo", "lightning_modules")
        for file in files(ROOT / name)
    }
    assert {"optuna_taylorglo/py.typed", "optuna_taylorglo/report/page.html.j2"} <= packages
    recipes = {"README.md", *(path.name for path in ROOT.glob("studies/*.yaml"))}
    about = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert files(dist / "installed") == (
        packages
        | {f"optuna_taylorglo/bundled_studies/{name}" for name in recipes}
        | {f"{NAME}.dist-info/{name}" for name in about}
    )
    about = {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert files(dist / NAME) == packages | {f"studies/{name}" for name in recipes} | about


def test_the_sdist_builds_the_very_same_wheel(dist: Path, tmp_path: Path) -> None:
    wheel = f"{NAME}-py3-none-any.whl"
    again = build(dist / NAME, tmp_path) / wheel
    assert again.read_bytes() == (dist / wheel).read_bytes()


def test_metadata_citation_and_changelog_are_of_this_version(dist: Path) -> None:
    file = dist / "installed" / f"{NAME}.dist-info" / "METADATA"
    metadata = message_from_string(file.read_text("utf-8"))
    assert (metadata["Name"], metadata["Version"]) == ("optuna-taylorglo", __version__)
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("MIT", ">=3.11")
    assert metadata.get_payload() == (ROOT / "README.md").read_text("utf-8")
    citation = yaml.safe_load((ROOT / "docs" / "CITATION.cff").read_text("utf-8"))
    changelog = (ROOT / "docs" / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## (\S+)", changelog, flags=re.MULTILINE)
    assert citation["version"] == newest[1] == __version__


def test_an_installed_package_finds_its_own_recipes(dist: Path, tmp_path: Path) -> None:
    code = "import optuna_taylorglo.recipes.load as b; print(b.find_recipe('digits_cnn'))"
    elsewhere = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(dist / "installed")}}
    found = subprocess.check_output([sys.executable, "-c", code], text=True, **elsewhere)
    assert Path(found.strip()).is_relative_to(dist / "installed")


@pytest.mark.parametrize(
    ("tag", "heading", "complaint"),
    [
        (f"v{__version__}", f"{__version__} (2030-01-31)", ""),
        ("v99.0", f"{__version__} (2030-01-31)", f"The tag is v99.0, but .* says {__version__}"),
        (f"v{__version__}", f"{__version__} (unreleased)", "needs a heading with the day"),
    ],
)
def test_a_release_is_refused_unless_tag_version_and_changelog_agree(
    tmp_path: Path, tag: str, heading: str, complaint: str
) -> None:
    """By the first command of the release workflow."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    check = next(step["run"] for step in workflow["jobs"]["build"]["steps"] if "run" in step)
    for folder in ("optuna_taylorglo", "docs"):
        (tmp_path / folder).mkdir()
    package = Path("optuna_taylorglo", "__init__.py")
    (tmp_path / package).write_text((ROOT / package).read_text())
    (tmp_path / "docs" / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n")
    env = os.environ | {"GITHUB_REF_NAME": tag}
    command = ["bash", "-e", "-c", check]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode == 0) == (complaint == "")
    assert re.search(complaint, done.stdout), done.stdout + done.stderr
