"""Files of the whole repository for the site, so that links are the same here and on GitHub.

Markdown and notebooks become pages, a source becomes a page that shows it, a folder a page that
lists it, and pictures are copied. Only files that are linked or in the navigation are used.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = {".json": "json", ".py": "python", ".sh": "bash", ".toml": "toml", ".yaml": "yaml"}
LANGUAGES |= {".yml": "yaml", ".css": "css", ".cff": "yaml"}
PICTURES = {".gif", ".jpg", ".png", ".svg", ".webp"}
NOT_SHOWN = {".pyc", ".pt", ".npy", ".db"}
"""Not matched by patterns in the navigation."""
SHOWN = InclusionLevel.INCLUDED

_CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"""\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)\"""")


class RepositoryPage(File):
    """A page made of a file or folder that is not Markdown."""

    def is_documentation_page(self) -> bool:
        """Show it as a page, whatever its name."""
        return True


def on_config(config: MkDocsConfig) -> None:
    """Resolve patterns in the navigation."""
    config.nav = [_expanded(item) for item in config.nav or []]
    config.watch += [str(ROOT / "studies"), str(ROOT / "benchmarks")]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Files reached from the navigation, and those of the theme."""
    found = {uri: _file(uri, config) for uri in _navigated(config.nav)}
    todo = list(found.values())
    while todo:
        for uri in _linked(todo.pop()):
            if uri not in found and (ROOT / uri).exists():
                found[uri] = _file(uri, config)
                todo.append(found[uri])
    docs = Path(config.docs_dir)
    for file in files:
        of_theme = not Path(file.abs_src_path or docs).is_relative_to(docs)
        if of_theme or file.src_uri in config.extra_css:
            found[file.src_uri] = file
    for uri in [uri for uri in found if uri.endswith(".ipynb")]:
        found |= _notebook_pictures(uri, config)
    return Files(list(found.values()))


def _expanded(item: Any) -> Any:
    """An item of the navigation with its patterns resolved; empty if nothing matches."""
    if isinstance(item, dict):
        return {title: part for title, old in item.items() if (part := _expanded(old))}
    if isinstance(item, list):
        return [part for old in item if (part := _expanded(old))]
    if "*" not in item:
        return item
    paths = [path for path in sorted(ROOT.glob(item)) if path.is_file()]
    shown = [path for path in paths if path.suffix not in NOT_SHOWN and path.name != "README.md"]
    names = [path.relative_to(ROOT).as_posix() for path in shown]
    return names[0] if len(names) == 1 else names


def _navigated(item: Any) -> Iterator[str]:
    """Paths in the navigation."""
    if isinstance(item, str):
        yield item
    else:
        for part in item.values() if isinstance(item, dict) else item:
            yield from _navigated(part)


def _linked(file: File) -> Iterator[str]:
    """Paths that a Markdown page links to, as long as they are in the repository."""
    if not file.is_documentation_page():
        return
    for match in _LINK.finditer(_CODE.sub("", file.content_string)):
        target = urlsplit(match[1] or match[2])
        if target.path and not (target.scheme or target.netloc):
            folder = posixpath.dirname(file.src_uri)
            uri = posixpath.normpath(posixpath.join(folder, unquote(target.path)))
            if not uri.startswith(".."):
                yield uri


def _file(uri: str, config: MkDocsConfig) -> File:
    """The site's file for one of the repository; docs/ is the top of the site."""
    path, place = ROOT / uri, uri.removeprefix("docs/")
    if path.suffix == ".md" or path.suffix in PICTURES or not path.exists():
        own = File(place, None, config.site_dir, use_directory_urls=False)
        return File(uri, str(ROOT), config.site_dir, False, dest_uri=own.dest_uri, inclusion=SHOWN)
    if path.suffix == ".ipynb":
        text = MarkdownExporter().from_notebook_node(_notebook(uri))[0]
    elif path.is_dir():
        text = _listed(path)
    else:
        text = _shown(path)
    page = RepositoryPage(
        uri, None, config.site_dir, False, dest_uri=f"{place}.html", inclusion=SHOWN
    )
    page.content_string = text
    return page


def _shown(path: Path) -> str:
    """A page with the text of a source."""
    language = LANGUAGES.get(path.suffix, "text")
    name = path.relative_to(ROOT).as_posix()
    content = path.read_text(encoding="utf-8").rstrip()
    meta = f"---\ntitle: {path.name}\nsearch: {{exclude: true}}\n---\n\n"
    return f"{meta}# `{name}`\n\n````{language}\n{content}\n````\n"


def _listed(folder: Path) -> str:
    """A page with links to the files of a folder."""
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    shown = [name for name in files if Path(name).suffix not in NOT_SHOWN]
    lines = [f"- [{name}]({folder.name}/{name})" for name in shown]
    meta = f"---\ntitle: {folder.name}\nsearch: {{exclude: true}}\n---\n\n"
    return "\n".join([f"{meta}# `{folder.relative_to(ROOT).as_posix()}`", "", *lines, ""])


def _notebook(uri: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / uri, as_version=4)


def _notebook_pictures(uri: str, config: MkDocsConfig) -> dict[str, File]:
    """Pictures among the outputs of a notebook, beside its page."""
    outputs = MarkdownExporter().from_notebook_node(_notebook(uri))[1]["outputs"]
    pictures: dict[str, File] = {}
    for name, content in outputs.items():
        picture = posixpath.join(posixpath.dirname(uri), name)
        file = File(picture, None, config.site_dir, False, dest_uri=picture.removeprefix("docs/"))
        file.content_bytes = content
        pictures[picture] = file
    return pictures
