"""What an answer that passes through used, read from its bytes as they go by. Pure.

Quotation marks within JSON's strings are escaped, so a pattern of a key with its marks finds keys
alone. A window's end is kept, so that cuts between parts hide nothing.
"""

from __future__ import annotations

import math
import re

from inference.protocol.events import Usage
from inference.wire.openai.passed.request import PassedTask

KEPT_BYTES = 512
"""No match is longer. Patterns look at nothing behind a match: a part may end there."""
JSON, EVENTS = "application/json", "text/event-stream"
IMAGE = re.compile(rb'"(?:b64_json|url)"\s{0,9}:\s{0,9}"')
IMAGE_EVENT = re.compile(rb'"type"\s{0,9}:\s{0,9}"image_(?:generation|edit)\.completed"')
USED_SECONDS = re.compile(rb'"seconds"\s{0,9}:\s{0,9}(\d{1,12}(?:\.\d{1,20})?)[\s,}]')
DURATION = re.compile(rb'"duration"\s{0,9}:\s{0,9}"?(\d{1,12}(?:\.\d{1,20})?)["\s,}]')
INPUT_TOKENS = re.compile(rb'"(?:input|prompt)_tokens"\s{0,9}:\s{0,9}(\d{1,12})[\s,}]')
OUTPUT_TOKENS = re.compile(rb'"(?:output|completion)_tokens"\s{0,9}:\s{0,9}(\d{1,12})[\s,}]')
ERROR_EVENT = re.compile(rb'(?:^|\n)event: ?error|"type"\s{0,9}:\s{0,9}"error"|data: ?\{"error"')


class Scanner:
    """Finds what a pattern matches in parts, each match once."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self._kept = b""
        self.num_found = 0
        self.last: re.Match[bytes] | None = None

    def feed(self, part: bytes) -> None:
        window = self._kept + part
        for found in self._pattern.finditer(window):
            if found.end() > len(self._kept):
                self.num_found += 1
                self.last = found
        self._kept = window[-KEPT_BYTES:]


class UnitsReader:
    def __init__(self, task: PassedTask, content_type: str) -> None:
        self._errors = Scanner(ERROR_EVENT) if content_type == EVENTS else None
        self._images: Scanner | None = None
        self._seconds: Scanner | None = None
        self._duration: Scanner | None = None
        self._tokens: tuple[Scanner, Scanner] | None = None
        if content_type in (JSON, EVENTS):
            self._tokens = Scanner(INPUT_TOKENS), Scanner(OUTPUT_TOKENS)
        if task == "images" and content_type in (JSON, EVENTS):
            self._images = Scanner(IMAGE if content_type == JSON else IMAGE_EVENT)
        if task == "transcription" and content_type in (JSON, EVENTS):
            self._seconds, self._duration = Scanner(USED_SECONDS), Scanner(DURATION)

    def feed(self, part: bytes) -> None:
        counted = self._tokens or ()
        for scanner in (self._errors, self._images, self._seconds, self._duration, *counted):
            if scanner is not None:
                scanner.feed(part)

    @property
    def has_failed(self) -> bool:
        return self._errors is not None and self._errors.num_found > 0

    @property
    def units(self) -> int | None:
        if self._images is not None:
            return self._images.num_found or None
        for scanner in (self._seconds, self._duration):
            if scanner is not None and scanner.last is not None:
                return max(1, math.ceil(float(scanner.last[1])))
        return None

    @property
    def tokens(self) -> Usage | None:
        if self._tokens is None:
            return None
        prompt, completion = (scanner.last for scanner in self._tokens)
        if prompt is None or completion is None:
            return None
        return Usage(prompt_tokens=int(prompt[1]), completion_tokens=int(completion[1]))


class SecretGuard:
    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._held = b""

    def feed(self, part: bytes) -> bytes | None:
        """What may be sent now: all but an end with which the secret may begin. ``None``: it is
        in there."""
        if not self._secret:
            return part
        window = self._held + part
        if self._secret in window:
            return None
        num_held = self._num_held(window)
        self._held = window[len(window) - num_held :]
        return window[: len(window) - num_held]

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _num_held(self, window: bytes) -> int:
        for size in range(min(len(self._secret) - 1, len(window)), 0, -1):
            if window.endswith(self._secret[:size]):
                return size
        return 0
