"""What the reference page shows, made from the code: documented names and the commands' options.

A page has invisible marks: ``<!-- api: optuna_taylorglo.TaylorLoss … -->`` stands for what is
documented of these names, ``<!-- options: run … -->`` for the help of these commands.
"""

from __future__ import annotations

import contextlib
import io
import os
import re

from optuna_taylorglo import cli
from optuna_taylorglo.cli import worker

_API = re.compile(r"^<!-- api: ([\w.\s]+) -->$", re.MULTILINE)
_OPTIONS = re.compile(r"^<!-- options: ([\w ]+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill in a page's marks."""
    markdown = _API.sub(lambda m: "\n\n".join(f"::: {name}" for name in m[1].split()), markdown)
    return _OPTIONS.sub(lambda m: _options(m[1].split()), markdown)


def _options(commands: list[str]) -> str:
    """Help of the commands, as on a terminal of 80 columns."""
    os.environ.update(COLUMNS="80", NO_COLOR="1")
    found = [f"### taylorglo {name}\n\n{_help(cli, name)}" for name in commands]
    return "\n\n".join([_help(cli), *found, f"### taylorglo-worker\n\n{_help(worker)}"])


def _help(program: object, *words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        program.build_parser().parse_args([*words, "--help"])
    return f"```text\n{printed.getvalue()}```"
