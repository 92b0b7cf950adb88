from __future__ import annotations

import json
import math
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandError

from fleet.management.backend import RefusedError, Server, understood
from helexa_site.management.base import DEFAULT_URL, QuickCommand, checked_url
from inference.settings.gateway import API_KEY
from inference.settings.installation import URL
from metering.output import json_text

OVERVIEW = "/api/overview"
QUESTION = "Reply with exactly one word: pineapple"
WORD = "pineapple"
MAX_TOKENS = 512
NO_PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Penalties lower the probability of the question's words, and the answer is one of them."""
MAX_REASON = 200
REQUEST_TIMEOUT_S = 600.0
BUSY_STATUSES = (429, 503)
BUSY_RETRY_S = 5.0
BUSY_LIMIT_S = 360.0
POLL_INTERVAL_S = 2.0
ABSENT_LIMIT_S = 30.0
"""For a server that has never answered; one that has is waited for as loads are."""
NO_SERVER = (0, 502, 503, 504)
"""Sent by a proxy before an offline server; 0: nothing answered."""
NOTHING_KNOWN: Mapping[str, Any] = {"is_live": False, "neurons": [], "jobs": []}
MAX_TRIES = 12
ACTIVE = ("pending", "running")


@dataclass(frozen=True, slots=True, order=True)
class Loaded:
    neuron: str
    model: str

    def __str__(self) -> str:
        return f"{self.model} on {self.neuron}"


class GatewayFleet:
    """Methods raise ``RefusedError``, and ``ValueError`` for a body that is not JSON."""

    def __init__(self, url: str, key: str | None) -> None:
        self._server = Server(url, key, timeout_s=REQUEST_TIMEOUT_S)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return json.loads(self._server.read(path, body))

    def last_used(self, one: Loaded) -> str | None:
        query = f"neuron={quote(one.neuron)}&model={quote(one.model)}"
        rows = self.ask(f"/api/replicas?{query}")["data"]
        return str(rows[0]["last_used_at"]) if rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    fleet: GatewayFleet
    neuron: str | None
    """``None``: each model is tested once, on any neuron."""
    ready_limit_s: float
    report: Callable[[str], object]
    model: str | None = None
    question: str = QUESTION
    word: str = WORD
    clock: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], object] = field(default=time.sleep)

    def problems(self, expected: Sequence[Loaded]) -> list[str]:
        if closed := self._wait(expected):
            return closed
        ready = ready_now(self.fleet.ask(OVERVIEW), self.neuron)
        loaded = [one for one in ready if self.model in (None, one.model)]
        if self.neuron is None:  # one of each model
            loaded = [*{one.model: one for one in reversed(loaded)}.values()]
        if not loaded:
            where = f" on {self.neuron}" if self.neuron else ""
            self.report(f"no model is loaded{where}: nothing to probe")
            return []
        cards = {card["id"]: card for card in self.fleet.ask("/v1/models")["data"]}
        found = []
        for one in sorted(loaded, key=lambda one: one.model):
            capabilities = cards.get(one.model, {}).get("capabilities") or ()
            problem = self._problem(one, is_embedding="embeddings" in capabilities)
            found.append((str(one) if self.neuron else one.model, problem))
            self.report(f"{found[-1][0]}: {problem or 'green'}")
        return [f"{shown}: {problem}" for shown, problem in found if problem]

    def _wait(self, expected: Sequence[Loaded]) -> list[str]:
        deadline_s = self.clock() + self.ready_limit_s
        absent_at_s = self.clock() + min(ABSENT_LIMIT_S, self.ready_limit_s)
        reported: list[str] = []
        while True:
            overview, absence = self._poll()
            if absence is None:
                absent_at_s = deadline_s
            elif self.clock() >= absent_at_s:
                return [absence]
            if lost := failures(overview, self.neuron):
                return lost
            reasons = [absence] if absence else missing(overview, expected, self.neuron)
            if not reasons:
                return []
            if reasons != reported:
                self.report(f"waiting: {'; '.join(reasons)}")
                reported = reasons
            if self.clock() >= deadline_s:
                return [f"not ready in {self.ready_limit_s:.0f} s: {reason}" for reason in reasons]
            self.sleep(POLL_INTERVAL_S)

    def _poll(self) -> tuple[Mapping[str, Any], str | None]:
        """A server that does not answer may be restarting."""
        try:
            return self.fleet.ask(OVERVIEW), None
        except RefusedError as error:
            if error.status not in NO_SERVER:
                raise
            return NOTHING_KNOWN, str(error)

    def _problem(self, one: Loaded, *, is_embedding: bool) -> str | None:
        before = None if self.neuron is None else self.fleet.last_used(one)
        question = self.question
        for number in range(1, MAX_TRIES + 1):
            problem = self._unless_busy(one.model, question, is_embedding)
            if problem or self.neuron is None or self._was_used(one, before):
                return problem
            # Varies the words: another neuron may have the prefix cached.
            question = f"{self.question} (question {number + 1})"
        return f"{MAX_TRIES} questions were answered, and none of them there"

    def _was_used(self, one: Loaded, before: str | None) -> bool:
        """A neuron reports a use with its next heartbeat."""
        for _ in range(3):
            if self.fleet.last_used(one) != before:
                return True
            self.sleep(1.0)
        return False

    def _unless_busy(self, model: str, question: str, is_embedding: bool) -> str | None:
        deadline_s = self.clock() + BUSY_LIMIT_S
        while True:
            try:
                return self._vector(model) if is_embedding else self._chat(model, question)
            except RefusedError as refusal:
                after_s = refusal.retry_after_s
                retry_after_s = BUSY_RETRY_S if after_s is None else after_s
                is_late = self.clock() + retry_after_s > deadline_s
                if refusal.status not in BUSY_STATUSES or is_late:
                    reason = str(refusal)[:MAX_REASON]
                    return f"it was refused ({refusal.status or 'no answer'}): {reason}"
                self.sleep(retry_after_s)

    def _chat(self, model: str, question: str) -> str | None:
        body = {
            "model": model,
            "temperature": 0,
            **NO_PENALTIES,
            "max_tokens": MAX_TOKENS,
            "messages": [{"role": "user", "content": question}],
        }
        answer = self.fleet.ask("/v1/chat/completions", body)
        try:
            choice = answer["choices"][0]
            text = str(choice["message"].get("content") or "")
        except (KeyError, IndexError, TypeError):
            return f"its answer is none: {str(answer)[:MAX_REASON]}"
        if self.word.lower() in text.lower():
            return None
        problem = f"its answer lacks {self.word!r}: {text[:MAX_REASON]!r}"
        return problem + (" (cut off)" if choice.get("finish_reason") == "length" else "")

    def _vector(self, model: str) -> str | None:
        answer = self.fleet.ask("/v1/embeddings", {"model": model, "input": WORD})
        try:
            numbers = [float(number) for number in answer["data"][0]["embedding"]]
        except (KeyError, IndexError, TypeError, ValueError):
            return f"its answer is no vector: {str(answer)[:MAX_REASON]}"
        if not numbers or not all(map(math.isfinite, numbers)) or not any(numbers):
            return "its vector has nothing in it"
        return None


def ready_now(overview: Mapping[str, Any], neuron: str | None = None) -> list[Loaded]:
    """Leaves out stand-ins for a model that is moving back."""
    home = {
        model: line["name"]
        for line in overview["neurons"]
        if line["status"] == "online"
        for model in line.get("coming_back", ())
    }
    return sorted(
        Loaded(line["name"], replica["model"])
        for line in overview["neurons"]
        for replica in line["replicas"]
        if replica["status"] == "ready"
        and neuron in (None, line["name"])
        and home.get(replica["model"], line["name"]) == line["name"]
    )


def missing(
    overview: Mapping[str, Any], expected: Sequence[Loaded], neuron: str | None = None
) -> list[str]:
    ready = set(ready_now(overview))
    reasons = [f"{one} is not ready" for one in expected if one not in ready]
    if not overview["is_live"]:
        reasons.append("Redis does not answer the gateway")
    statuses = {line["name"]: line["status"] for line in overview["neurons"]}
    if neuron is not None and statuses.get(neuron) not in ("online", "draining"):
        reasons.append(f"{neuron} is {statuses.get(neuron, 'not known')}")
    # Pinned models that a neuron loads by itself are in no earlier list.
    reasons += [
        f"{job['kind']} of {job['model']} on {job['neuron']} is {job['status']}"
        for job in overview["jobs"]
        if job["status"] in ACTIVE and neuron in (None, job["neuron"])
    ]
    return reasons


def failures(overview: Mapping[str, Any], neuron: str | None = None) -> list[str]:
    return [
        f"{replica['model']} failed on {line['name']}: {replica['failure']}"
        for line in overview["neurons"]
        if neuron in (None, line["name"])
        for replica in line["replicas"]
        if replica["status"] == "failed"
    ]


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
        server = GatewayFleet(url, options["key"] or API_KEY.read(os.environ))
        try:
            with understood(url):
                if options["remember"]:
                    loaded = ready_now(server.ask(OVERVIEW), options["neuron"])
                    rows = [[one.neuron, one.model] for one in loaded]
                    options["remember"].write_text(json.dumps(rows) + "\n")
                    names = ", ".join(map(str, loaded)) or "none"
                    self.stdout.write(f"{len(loaded)} loaded: {names}")
                    return
                problems = self._problems(server, options)
        except (RefusedError, OSError) as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            self.stdout.write(json_text({"green": not problems, "problems": problems}))
        else:
            self.stdout.write("\n".join(f"red: {one}" for one in problems) or "green")
        if problems:
            sys.exit(1)

    def _problems(self, server: GatewayFleet, options: dict[str, Any]) -> list[str]:
        gate = Gate(
            fleet=server,
            ready_limit_s=options["timeout"],
            report=self.stderr.write,
            **{name: options[name] for name in ("neuron", "model", "question", "word")},
        )
        return gate.problems(expected_in(options["expect"]) if options["expect"] else [])


def expected_in(path: Path) -> list[Loaded]:
    """Raises ``CommandError``."""
    try:
        return [Loaded(str(neuron), str(model)) for neuron, model in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise CommandError(f"{path} is not what --remember writes: {error}") from error
