"""Writes docs/operating/commands.md from the parsers of the commands.

``python -m helexa_site.reference`` writes it, and a test fails while it differs. Before
the environment exists, ``manage.py COMMAND --help`` prints from this page.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand

from helexa_site.bootstrap.installing.environment import REPOSITORY_DIR
from helexa_site.exit_codes import ExitCode

PAGE = REPOSITORY_DIR / "docs" / "operating" / "commands.md"
OURS = ("fleet", "metering", "metering.bench", "helexa_site")
DJANGOS = ("migrate", "runserver")
"""Ours, with Django's own flags."""
EVERY_COMMANDS = frozenset(
    flag
    for action in BaseCommand().create_parser("", "")._actions
    for flag in action.option_strings
)
INTRODUCTION = f"""\
# Commands

<!-- Written by `python -m helexa_site.reference`. -->

`serve`, `neuron`, `doctor`, `environment` and `test` print their flags with `--help`, and are
described in [install](install.md). Those that ask a server take `--url` and `--key` (`HELEXA_URL`,
`HELEXA_API_KEY`), or without `--url` the database of this machine.

| exit code | |
|---|---|
| {ExitCode.DONE} | done |
| {ExitCode.REFUSED} | it failed, or a value is not allowed; `status`: something is wrong |
| {ExitCode.USAGE} | the command line is wrong |
| {ExitCode.NOT_FOUND} | the named thing does not exist |
| {ExitCode.CONFLICT} | the present state does not allow it |
| {ExitCode.DENIED} | the key is missing or wrong, or may not do this |
| {ExitCode.UNAVAILABLE} | the server, its database or its Redis does not answer: try again |
"""


def page() -> str:
    parts = [INTRODUCTION]
    for name, parser in parsers():
        parts.append(f"## {name}\n\n{parser.description}\n")
        parts += [_block(words, one) for words, one in leaves(name, parser)]
    return "\n".join(parts)


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for name, app in sorted(get_commands().items()):
        if app in OURS and isinstance(app, str) and name not in DJANGOS:
            yield name, load_command_class(app, name).create_parser("manage.py", name)


def leaves(
    words: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The command's subcommands, each with its words, or the command itself."""
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for action in inner:
        seen: set[int] = set()
        for name, one in action.choices.items():
            if id(one) not in seen:  # an alias has the same parser
                seen.add(id(one))
                yield from leaves(f"{words} {name}", one)
    if not inner:
        yield words, parser


def _block(words: str, parser: argparse.ArgumentParser) -> str:
    actions = [one for one in parser._actions if not EVERY_COMMANDS & {*one.option_strings}]
    usage = " ".join(filter(None, (f"manage.py {words}", *map(_usage, actions))))
    lines = [f"usage: {usage}"]
    if " " in words and parser.description:
        lines += ["", f"  {parser.description}"]
    if parser.epilog:
        lines += ["", f"  {parser.epilog}"]
    lines += [""] * bool(actions) + [_line(parser, one) for one in actions]
    return f"### {words}\n\n<!-- not run: a listing -->\n```text\n" + "\n".join(lines) + "\n```\n"


def _usage(action: argparse.Action) -> str:
    if not action.option_strings:
        name = _placeholder(action)
        return f"[{name}]" if action.nargs in ("?", "*") else name
    return f"{action.option_strings[0]} {_placeholder(action)}" if action.required else ""


def _line(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    words = [", ".join(action.option_strings), _placeholder(action)]
    help_text = parser._get_formatter()._expand_help(action) if action.help else ""
    return f"  {' '.join(filter(None, words)):28} {help_text}".rstrip()


def _placeholder(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        return str(action.metavar)
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def write() -> None:
    PAGE.write_text(page())
