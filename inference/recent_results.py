"""A cache of results computed from clients' texts, for the next request with the same text.

Clients choose the texts, so the cache is bounded in bytes, and its keys are digests of the texts.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")

ENTRY_BYTES = 300
"""Bytes of an entry itself, roughly: digest, keys and counters."""


class RecentResults(Generic[Result]):
    """The latest used results, up to ``max_bytes`` together. Any thread may ask."""

    def __init__(self, max_bytes: int, bytes_of: Callable[[str, Result], int]) -> None:
        self._max_bytes = max_bytes
        self._bytes_of = bytes_of
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, tuple[Result, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, text: str, compute: Callable[[str], Result]) -> Result:
        """An exception of ``compute`` is not kept. Two threads may compute the same at once."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            if (kept := self._kept.get(digest)) is not None:
                self._kept.move_to_end(digest)
                return kept[0]
        result = compute(text)
        num_bytes = ENTRY_BYTES + self._bytes_of(text, result)
        with self._lock:
            if digest not in self._kept and num_bytes <= self._max_bytes:
                self._kept[digest] = result, num_bytes
                self.num_bytes += num_bytes
            while self.num_bytes > self._max_bytes:
                _, (_, freed_bytes) = self._kept.popitem(last=False)
                self.num_bytes -= freed_bytes
        return result
