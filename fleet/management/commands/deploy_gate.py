"""``manage.py deploy_gate``: checks that the models from before are loaded again and answer; exit
code 1 if not."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from fleet.management.backend import understood
from fleet.management.gate import QUESTION, WORD, Gate, Loaded, RefusedError, Server, ready_now
from helexa_site.quick_command import QuickCommand
from helexa_site.server_url import DEFAULT_URL, checked_url
from inference.settings.gateway import API_KEY
from inference.settings.installation import URL
from metering.management.output import json_text


class Command(QuickCommand):
    help = (
        "Waits until the loaded models are ready, then asks each model for one word. The exit code "
        "is 1 where one does not come or answers otherwise."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--url", help=f"of a gateway (or HELEXA_URL; else {DEFAULT_URL})")
        parser.add_argument(
            "--key", help="with the scopes fleet:read and inference (or HELEXA_API_KEY)"
        )
        parser.add_argument("--neuron", metavar="NAME", help="only this one, and on it")
        parser.add_argument("--model", metavar="MODEL", help="ask only this one")
        parser.add_argument(
            "--remember",
            type=Path,
            metavar="FILE",
            help="write the models that are ready now, and ask nothing",
        )
        parser.add_argument(
            "--expect", type=Path, metavar="FILE", help="wait for what --remember wrote"
        )
        parser.add_argument("--timeout", type=float, default=900.0, help="for loads (%(default)s)")
        parser.add_argument("--question", default=QUESTION)
        parser.add_argument("--word", default=WORD, help="that the answer is to hold (%(default)s)")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *_args: Any, **options: Any) -> None:
        url = checked_url(options["url"] or URL.read(os.environ) or DEFAULT_URL)
        with understood(url):
            self._run(Server(url, options["key"] or API_KEY.read(os.environ)), options)

    def _run(self, server: Server, options: dict[str, Any]) -> None:
        try:
            if options["remember"]:
                loaded = ready_now(server.overview(), options["neuron"])
                write_expected(options["remember"], loaded)
                self.stdout.write(f"{len(loaded)} loaded: {', '.join(map(str, loaded)) or 'none'}")
                return
            expected = read_expected(options["expect"]) if options["expect"] else []
            problems = self._gate(server, options).problems(expected)
        except (RefusedError, OSError) as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            self.stdout.write(json_text({"green": not problems, "problems": problems}))
        else:
            self.stdout.write("\n".join(f"red: {one}" for one in problems) or "green")
        if problems:
            sys.exit(1)

    def _gate(self, server: Server, options: dict[str, Any]) -> Gate:
        return Gate(
            fleet=server,
            neuron=options["neuron"],
            model=options["model"],
            question=options["question"],
            word=options["word"],
            ready_limit_s=options["timeout"],
            report=self.stderr.write,
        )


def write_expected(path: Path, loaded: list[Loaded]) -> None:
    path.write_text(json.dumps([[one.neuron, one.model] for one in loaded]) + "\n")


def read_expected(path: Path) -> list[Loaded]:
    """Raises ``CommandError``."""
    try:
        return [Loaded(str(neuron), str(model)) for neuron, model in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise CommandError(f"{path} is not what --remember writes: {error}") from error
