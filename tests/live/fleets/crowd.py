"""Clients of a fleet that ask and ask: what became of each request, counted once."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from tests.live.serving import WAIT_TIMEOUT_S, chat_body, events_of

NUM_CLIENTS = 6
BACK_OFF_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one request ended: ``whole``, the code of its refusal or failure, or ``connection`` where
    the gateway was gone."""

    model: str
    gateway_url: str
    how: str
    num_endings: int
    """The number of terminal events in its answer: 1, and 0 where the connection was lost."""


def ending_of(
    gateway_url: str, model: str, question: str, expected: str, *, stream: bool
) -> Ending:
    body = chat_body(
        model=model,
        messages=[{"role": "user", "content": question}],
        stream=stream,
        max_tokens=100_000,
    )
    received = b""
    try:
        with httpx.stream(
            "POST", f"{gateway_url}/v1/chat/completions", json=body, timeout=WAIT_TIMEOUT_S
        ) as response:
            for data in response.iter_bytes():
                received += data
    except httpx.TransportError:
        return Ending(model=model, gateway_url=gateway_url, how="connection", num_endings=0)
    if response.status_code != 200:
        how, num_endings = str(json.loads(received)["error"]["code"]), 1
    elif stream:
        how, num_endings = _end_of_stream(received, expected)
    else:
        text = json.loads(received)["choices"][0]["message"]["content"]
        how, num_endings = ("whole" if text == expected else f"cut: {text!r}"), 1
    return Ending(model=model, gateway_url=gateway_url, how=how, num_endings=num_endings)


def _end_of_stream(received: bytes, expected: str) -> tuple[str, int]:
    events = events_of(received.decode())
    errors = [event["error"]["code"] for event in events if "error" in event]
    choices = [choice for event in events for choice in event.get("choices", [])]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    num_finishes = sum(choice.get("finish_reason") is not None for choice in choices)
    if errors:
        return str(errors[0]), len(errors) + num_finishes
    return ("whole" if text == expected else f"cut: {text!r}"), num_finishes


class Crowd:
    """``NUM_CLIENTS`` threads, each with one request after the other until ``stop``."""

    def __init__(
        self, gateway_urls: Sequence[str], models: Sequence[str], question: str, expected: str
    ) -> None:
        self.endings: list[Ending] = []
        self._gateway_urls = gateway_urls
        self._models = models
        self._question, self._expected = question, expected
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(number,), daemon=True)
            for number in range(NUM_CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def _ask_on(self, number: int) -> None:
        choose = random.Random(number)
        for turn in itertools.count():
            if self._stop.is_set():
                return
            ending = ending_of(
                choose.choice(self._gateway_urls),
                choose.choice(self._models),
                self._question,
                self._expected,
                stream=turn % 2 == 0,
            )
            self.endings.append(ending)
            if ending.how != "whole":
                self._stop.wait(BACK_OFF_S)

    def num_whole(self) -> int:
        return self.counted()["whole"]

    def counted(self) -> Counter[str]:
        return Counter(ending.how for ending in self.endings)

    def stop(self) -> None:
        """Waits for the requests that are open; none of them hangs."""
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_TIMEOUT_S)
        assert not any(thread.is_alive() for thread in self._threads), "a request hangs"


@contextlib.contextmanager
def crowd(
    gateway_urls: Sequence[str], models: Sequence[str], question: str, expected: str
) -> Iterator[Crowd]:
    asking = Crowd(gateway_urls, models, question, expected)
    try:
        yield asking
    finally:
        asking.stop()
