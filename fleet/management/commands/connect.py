from __future__ import annotations

import os
import shutil
import stat
from argparse import REMAINDER, ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from fleet.management.clients import (
    ANY_KEY,
    CLIENTS,
    ClientSettings,
    NoModelError,
    Target,
    UnmergeableError,
    chosen_card,
    merged,
    settings_text,
)
from fleet.management.commands.chat import ChatClient
from helexa_site.management.base import ExitCode, QuickCommand, server_url
from helexa_site.program import program
from helexa_site.whole_file import OWNER_ALONE, write_whole
from inference.settings.gateway import API_KEY


class Command(QuickCommand):
    help = "Points a client at a running server: prints its settings, writes them, or starts it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        names = ", ".join(CLIENTS)
        parser.add_argument("client", choices=tuple(CLIENTS), metavar="CLIENT", help=names)
        parser.add_argument(
            "model", nargs="?", metavar="MODEL", help="or an alias; default: one that is loaded"
        )
        parser.add_argument("--url", help="of the server (or HELEXA_URL; else the serve here)")
        parser.add_argument("--key", help="the client's API key (or HELEXA_API_KEY)")
        how = parser.add_mutually_exclusive_group()
        how.add_argument(
            "--write", action="store_true", help="merge the settings into the client's own file"
        )
        how.add_argument(
            "--run",
            nargs=REMAINDER,
            metavar="ARGUMENT",
            help="start the client; what follows is for it",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        client = options["client"]
        found = CLIENTS[client](_target(client, options))
        if options["write"]:
            self.stderr.write(_write(client, found))
        elif options["run"] is not None:
            _run(client, found, options["run"])
        else:
            self.stdout.write(settings_text(client, found))


def _target(client: str, options: dict[str, Any]) -> Target:
    key = options["key"] or API_KEY.read(os.environ)
    url = server_url(options["url"], settings.CONFIG.data_dir).rstrip("/")
    try:
        cards = ChatClient(url, key).model_cards()
    except CommandError as error:
        if error.returncode == ExitCode.DENIED and not key:
            hint = f"--key names one, and {program()} keys create ACCOUNT makes one"
            raise CommandError(f"{error} {hint}", returncode=error.returncode) from error
        raise
    try:
        card = chosen_card(cards, options["model"], client)
    except NoModelError as error:
        raise CommandError(str(error)) from error
    limit = card.get("limit") or {}
    return Target(
        url=url,
        model=str(card["id"]),
        key=key or ANY_KEY,
        context_tokens=limit.get("context"),
        output_tokens=limit.get("output"),
    )


def _write(client: str, found: ClientSettings) -> str:
    if found.file is None:
        raise CommandError(
            f"{client} has no settings file to write: paste what {program()} connect {client} "
            "prints, or use --run"
        )
    path = Path.home() / found.file.path
    try:
        before = path.read_text() if path.exists() else ""
        after = merged(found.file, before)
        if after != before:
            _replace(path.resolve(), after)
    except UnmergeableError as error:
        raise CommandError(
            f"{path} stays as it is, since {error}: paste what {program()} connect {client} prints"
        ) from error
    except (OSError, UnicodeError) as error:
        raise CommandError(f"{path} cannot be written: {error}") from error
    done = f"{path} points {client} at the server"
    return "\n".join([f"{done}." if after != before else f"{done} already.", *found.notes])


def _replace(path: Path, text: str) -> None:
    """The text holds a key: only the owner may read a new file. An existing one keeps its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else OWNER_ALONE
    write_whole(path, text, mode=mode)


def _run(client: str, found: ClientSettings, arguments: list[str]) -> None:
    if not found.command:
        raise CommandError(f"{client} is not started from a terminal: use --write, or paste")
    if shutil.which(found.command[0]) is None:
        raise CommandError(f"{found.command[0]} is not installed: no such program in PATH")
    environment = {**os.environ, **found.environment, **found.instead_of_file}
    os.execvpe(found.command[0], [*found.command, *arguments], environment)
