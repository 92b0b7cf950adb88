"""A command of subcommands. Each is a file with one object and a line in its command's registry."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from django.core.management.base import CommandError, OutputWrapper

from fleet.errors import FleetError
from fleet.management.backend import Backend, add_backend_arguments, backend_of
from helexa_site.quick_command import QuickCommand
from metering.management.output import errors_on_one_line, json_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a subcommand is run with."""

    options: dict[str, Any]
    backend: Backend
    stdout: OutputWrapper
    stderr: OutputWrapper

    def show(self, value: Any, text: str) -> None:
        """``value`` for programs, ``text`` for people."""
        self.stdout.write(json_text(value) if self.options["json"] else text)


class Subcommand(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def help(self) -> str: ...

    def add_arguments(self, parser: ArgumentParser) -> None: ...

    def run(self, run: Run) -> None:
        """Raises ``CommandError``, ``FleetError``."""
        ...


def aliases_of(subcommand: Subcommand) -> tuple[str, ...]:
    """Other words for it, which earlier releases had."""
    return getattr(subcommand, "aliases", ())


def _other_words(subcommand: Subcommand) -> str | None:
    words = aliases_of(subcommand)
    return f"also: {', '.join(words)}" if words else None


class SubcommandsCommand(QuickCommand):
    subcommands: Sequence[Subcommand] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parsers = parser.add_subparsers(dest="command", required=True)
        for subcommand in self.subcommands:
            one = parsers.add_parser(
                subcommand.name,
                help=subcommand.help,
                description=subcommand.help,
                aliases=aliases_of(subcommand),
                epilog=_other_words(subcommand),
                conflict_handler="resolve",  # a subcommand's own flag goes before a server's
            )
            add_backend_arguments(one)
            subcommand.add_arguments(one)

    def handle(self, *_args: Any, **options: Any) -> None:
        word = options["command"]
        subcommand = next(one for one in self.subcommands if word in (one.name, *aliases_of(one)))
        run = Run(
            options=options, backend=backend_of(options), stdout=self.stdout, stderr=self.stderr
        )
        with errors_on_one_line(), run.backend.understood():
            try:
                subcommand.run(run)
            except FleetError as error:
                raise CommandError(str(error)) from error
