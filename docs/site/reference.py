"""What the reference pages show, made from the code: documented names and the commands' options.

A page has invisible marks: ``<!-- api: optuna_taylorglo.TaylorLoss -->`` stands for what is
documented of that name, ``<!-- options: taylorglo run -->`` for the help of that command.
"""

from __future__ import annotations

import contextlib
import io
import os
import re

from optuna_taylorglo import cli, worker

_API = re.compile(r"^<!-- api: ([\w.]+) -->$", re.MULTILINE)
_OPTIONS = re.compile(r"^<!-- options: ([\w -]+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill in a page's marks."""
    return _OPTIONS.sub(_options, _API.sub(r"::: \1", markdown))


def _options(match: re.Match[str]) -> str:
    """What a command with ``--help`` prints on a terminal of 80 columns."""
    os.environ.update(COLUMNS="80", NO_COLOR="1")
    program, *words = match[1].split()
    parser = {"taylorglo": cli.build_parser, "taylorglo-worker": worker.build_parser}[program]()
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        parser.parse_args([*words, "--help"])
    return f"```text\n{printed.getvalue()}```"
