"""What the reference pages show, made from the code: documented names and the commands' options.

A page has an invisible mark below a heading. ``<!-- api: optuna_taylorglo.TaylorLoss -->`` stands for the
documentation of that name, ``<!-- options: taylorglo run -->`` for the help of that command.
"""

from __future__ import annotations

import argparse
import os
import re

from mkdocs.exceptions import PluginError

from optuna_taylorglo import cli, worker

_API = re.compile(r"^## +(?P<heading>.+)\n+<!-- api: (?P<name>[\w.]+) -->$", re.MULTILINE)
_OPTIONS = re.compile(r"^<!-- options: (?P<command>[\w -]+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill in a page's marks."""
    return _OPTIONS.sub(_options, _API.sub(_documented, markdown))


def _documented(match: re.Match[str]) -> str:
    """The directive of mkdocstrings, which makes the heading; the page's own stays as an anchor."""
    anchor = match["heading"].strip("`").lower()
    return f'<a id="{anchor}"></a>\n\n::: {match["name"]}'


def _options(match: re.Match[str]) -> str:
    """The help of a command, as it is printed on a terminal."""
    return f"```text\n{command_help(match['command'])}```"


def command_help(command: str) -> str:
    """What ``command --help`` prints on a terminal of 88 columns."""
    os.environ.update(COLUMNS="88", NO_COLOR="1")
    program, _, verb = command.partition(" ")
    parser = {"taylorglo": cli.build_parser, "taylorglo-worker": worker.build_parser}[program]()
    return (verbs(parser)[verb] if verb else parser).format_help()


def verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a command's verbs, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise PluginError(f"{parser.prog} has no verbs")
