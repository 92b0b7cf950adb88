from __future__ import annotations

import json
import re
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from fleet.management.backend import NO_ANSWER, Server
from helexa_site.management.base import ExitCode, QuickCommand, server_and_key
from helexa_site.program import program

TIMEOUT_S = 660.0
"""A first request may wait for its model; the server gives up before this."""
NO_SAMPLING: Mapping[str, float] = MappingProxyType({})
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""They move a terminal's cursor or forge lines. Line feeds and tabs are left out."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    completion_tokens: int
    seconds: float
    """Since the first token."""

    @property
    def tokens_per_s(self) -> float:
        return self.completion_tokens / self.seconds if self.seconds > 0 else 0.0


class ChatClient:
    def __init__(self, url: str, key: str | None) -> None:
        hint = f"; is {program()} serve running?"
        self._server = Server(url, key, timeout_s=TIMEOUT_S, hint=hint)

    def model_to_ask(self) -> str:
        """A loaded one first. Capabilities are unknown before a load. Raises ``CommandError``."""
        cards = self.model_cards()
        if not cards:
            raise CommandError(f"No model is offered yet: {program()} models add offers one")
        talking = [card for card in cards if "chat" in (card.get("capabilities") or ["chat"])]
        if not talking:
            raise CommandError("No model that is offered writes text: they make embeddings")
        loaded = [card for card in talking if card.get("loaded")]
        return str((loaded or talking)[0]["id"])

    def model_cards(self) -> list[dict[str, Any]]:
        """Raises ``CommandError``."""
        with self._server.open("/v1/models") as response:
            try:
                cards: list[dict[str, Any]] = json.load(response)["data"]
            except (*NO_ANSWER, LookupError, TypeError) as error:
                raise CommandError(f"{self._server.url} answers with no list of models") from error
        return cards

    def ask(
        self,
        model: str,
        messages: list[dict[str, str]],
        write: Callable[[str], object],
        *,
        sampling: Mapping[str, float] = NO_SAMPLING,
        clock: Callable[[], float] = time.monotonic,
    ) -> Answer:
        """``sampling``: fields of the request. Raises ``CommandError``."""
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling,
        }
        parts: list[str] = []
        num_tokens, first_s = 0, clock()
        with self._server.open("/v1/chat/completions", body) as response:
            for event in self._events(response):
                if error := event.get("error"):
                    raise CommandError(str(error.get("message", error)))
                for choice in event.get("choices", []):
                    if text := choice["delta"].get("content"):
                        first_s = first_s if parts else clock()
                        parts.append(text)
                        write(text)
                if usage := event.get("usage"):
                    num_tokens = usage["completion_tokens"]
        return Answer("".join(parts), num_tokens, clock() - first_s)

    def _events(self, lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
        try:
            for line in lines:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield json.loads(line[6:])
        except NO_ANSWER as error:
            raise CommandError(
                f"The answer broke off: {self._server.url} went away ({error})",
                returncode=ExitCode.UNAVAILABLE,
            ) from error


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
        """Escapes control characters for a terminal, since a model or its host may send any."""
        if self.stdout.isatty():
            text = CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
        self.stdout.write(text, ending="")
        self.stdout.flush()


def _question() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""
