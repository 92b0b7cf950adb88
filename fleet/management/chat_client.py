"""A streamed chat over ``/v1/chat/completions``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.core.management.base import CommandError

from fleet.management.backend import NO_ANSWER, Server
from helexa_site.management.base import ExitCode
from helexa_site.program import program

TIMEOUT_S = 660.0
"""A first request may wait for its model; the server gives up before this."""
NO_SAMPLING: Mapping[str, float] = MappingProxyType({})
"""The model's own."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    completion_tokens: int
    seconds: float
    """Seconds since the first token."""

    @property
    def tokens_per_s(self) -> float:
        return self.completion_tokens / self.seconds if self.seconds > 0 else 0.0


class ChatClient:
    def __init__(self, url: str, key: str | None) -> None:
        hint = f"; is {program()} serve running?"
        self._server = Server(url, key, timeout_s=TIMEOUT_S, hint=hint)

    def model_to_ask(self) -> str:
        """A loaded model, else the first on offer, among those that may chat: capabilities are
        unknown before a first load. Raises ``CommandError``."""
        cards = self.model_cards()
        if not cards:
            raise CommandError(f"No model is offered yet: {program()} models add offers one")
        talking = [card for card in cards if "chat" in (card.get("capabilities") or ["chat"])]
        if not talking:
            raise CommandError("No model that is offered writes text: they make embeddings")
        loaded = [card for card in talking if card.get("loaded")]
        return str((loaded or talking)[0]["id"])

    def model_cards(self) -> list[dict[str, Any]]:
        """Returns the models of ``GET /v1/models``. Raises ``CommandError``."""
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
        """Writes the answer as it comes. ``sampling`` are fields of the request. Raises
        ``CommandError``."""
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
        """Raises ``CommandError`` where the server disconnects meanwhile."""
        try:
            for line in lines:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield json.loads(line[6:])
        except NO_ANSWER as error:
            raise CommandError(
                f"The answer broke off: {self._server.url} went away ({error})",
                returncode=ExitCode.UNAVAILABLE,
            ) from error
