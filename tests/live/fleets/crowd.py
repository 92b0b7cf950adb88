"""Clients of a fleet that ask and ask: what became of each request, counted once."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import httpx

from tests.live.serving import WAIT_TIMEOUT_S, chat_body, chat_text, events_of

NUM_CLIENTS = 6
BACK_OFF_S = 0.2


@dataclass(frozen=True, slots=True)
class Ending:
    """How one request ended: ``whole``, the code of its refusal or failure, or ``connection`` where
    the gateway was gone."""

    model: str
    gateway_url: str
    how: str
    num_endings: int
    """The number of terminal events in its answer: 1, and 0 where the connection was lost."""


def ending_of(url: str, model: str, question: str, expected: str, *, stream: bool) -> Ending:
    asked = [{"role": "user", "content": question}]
    body = chat_body(model=model, messages=asked, stream=stream, max_tokens=100_000)
    try:
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=WAIT_TIMEOUT_S)
    except httpx.TransportError:
        return Ending(model, url, "connection", 0)
    is_streamed = stream and response.status_code == 200
    events = events_of(response.text) if is_streamed else [response.json()]
    errors = [event["error"]["code"] for event in events if "error" in event]
    choices = [choice for event in events for choice in event.get("choices", [])]
    num_endings = len(errors) + sum(one.get("finish_reason") is not None for one in choices)
    if errors:
        return Ending(model, url, str(errors[0]), num_endings)
    text = chat_text(events) if stream else choices[0]["message"]["content"]
    return Ending(model, url, "whole" if text == expected else f"cut: {text!r}", num_endings)


class Crowd:
    """``NUM_CLIENTS`` threads, each with one request after the other for as long as it is entered.
    Its end waits for the requests that are open; none of them hangs."""

    def __init__(
        self, gateway_urls: Sequence[str], models: Sequence[str], question: str, expected: str
    ) -> None:
        self.endings: list[Ending] = []
        self._asked = gateway_urls, models, question, expected
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(number,), daemon=True)
            for number in range(NUM_CLIENTS)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_TIMEOUT_S)
        assert not any(thread.is_alive() for thread in self._threads), "a request hangs"

    def _ask_on(self, number: int) -> None:
        choose = random.Random(number)
        urls, models, question, expected = self._asked
        for turn in itertools.count():
            if self._stop.is_set():
                return
            url, model = choose.choice(urls), choose.choice(models)
            ending = ending_of(url, model, question, expected, stream=turn % 2 == 0)
            self.endings.append(ending)
            if ending.how != "whole":
                self._stop.wait(BACK_OFF_S)

    def num_whole(self) -> int:
        return self.counted()["whole"]

    def counted(self) -> Counter[str]:
        return Counter(ending.how for ending in self.endings)
