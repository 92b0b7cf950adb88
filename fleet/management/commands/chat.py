"""``manage.py chat [MODEL]``: talk to a model in the terminal; piped input is one question."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from fleet.management.chat_client import ChatClient
from helexa_site.management.base import QuickCommand, server_and_key

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which move a terminal's cursor or forge lines; not line feeds and tabs."""


class Command(QuickCommand):
    help = "Talks to a model through a running server. A pipe is one question."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", nargs="?", metavar="MODEL", help="default: one that is loaded")
        parser.add_argument("--url", help="of the server (or HELEXA_URL; else the serve here)")
        parser.add_argument("--key", help="an API key (or HELEXA_API_KEY); of the serve here none")
        parser.add_argument("--system", metavar="TEXT", help="a system prompt")
        parser.add_argument("--max-tokens", type=int, metavar="N")
        parser.add_argument(
            "--temperature", type=float, metavar="T", help="0 to 2; default: the model's own"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        client = ChatClient(
            *server_and_key(options["url"], options["key"], settings.CONFIG.data_dir)
        )
        model = options["model"] or client.model_to_ask()
        given = {name: options[name] for name in ("max_tokens", "temperature")}
        sampling = {name: value for name, value in given.items() if value is not None}
        messages: list[dict[str, str]] = []
        if options["system"]:
            messages.append({"role": "system", "content": options["system"]})

        def ask(question: str) -> None:
            asked = [*messages, {"role": "user", "content": question}]
            answer = client.ask(model, asked, self._write, sampling=sampling)
            # A question that was not answered is no part of the conversation.
            messages[:] = [*asked, {"role": "assistant", "content": answer.text}]
            self.stdout.write("")
            self.stderr.write(
                f"[{answer.completion_tokens} tokens, {answer.tokens_per_s:.1f} tok/s]"
            )

        if not sys.stdin.isatty():
            question = sys.stdin.read().removesuffix("\n")
            if not question.strip():
                raise CommandError(
                    "Nothing was asked: pipe a question in, or run this in a terminal"
                )
            ask(question)
            return
        self.stderr.write(f"{model}. Ctrl-C stops an answer; an empty line or Ctrl-D ends.")
        while question := _question():
            try:
                ask(question)
            except (KeyboardInterrupt, CommandError) as error:
                self.stderr.write(f"\n[{str(error) or 'stopped'}]")

    def _write(self, text: str) -> None:
        """Escapes control characters for a terminal, since a model or its host may send any. Piped
        output is unchanged."""
        if self.stdout.isatty():
            text = CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
        self.stdout.write(text, ending="")
        self.stdout.flush()


def _question() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""
