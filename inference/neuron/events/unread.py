"""How much of what Redis has taken its gateway has not read yet. Pure: knows no Redis.

    acknowledged ─▶ marks of 64 KiB, each with its last entry's id ─▶ gone when the stream begins
                                                                      behind that id

Redis has no bound of bytes for a stream, so the writer keeps one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MAX_UNREAD_BYTES = 8 * 1024 * 1024
"""Of one gateway's stream: more is sent when the gateway has read some."""
CROWDED_BYTES = MAX_UNREAD_BYTES // 2
"""From here on the writer looks what has been read, so that little traffic never waits for it."""
MARK_BYTES = 64 * 1024

EntryId = tuple[int, int]


@dataclass(slots=True)
class _Mark:
    last_id: EntryId
    num_bytes: int


@dataclass(slots=True)
class UnreadEntries:
    """Of one gateway's stream."""

    num_bytes: int = 0
    _marks: deque[_Mark] = field(default_factory=deque)

    @property
    def is_crowded(self) -> bool:
        return self.num_bytes > CROWDED_BYTES

    def has_room_for(self, num_bytes: int) -> bool:
        """An entry of any size has room in an empty stream."""
        return not self.num_bytes or self.num_bytes + num_bytes <= MAX_UNREAD_BYTES

    def add(self, entry_id: bytes, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        last = self._marks[-1] if self._marks else None
        if last is not None and last.num_bytes + num_bytes <= MARK_BYTES:
            last.last_id = _parsed(entry_id)
            last.num_bytes += num_bytes
        else:
            self._marks.append(_Mark(_parsed(entry_id), num_bytes))

    def begins_at(self, entry_id: bytes | None) -> None:
        """``entry_id``: of the stream's first entry, before which the gateway has taken all away;
        ``None``: it has none."""
        first_id = None if entry_id is None else _parsed(entry_id)
        while self._marks and (first_id is None or self._marks[0].last_id < first_id):
            self.num_bytes -= self._marks.popleft().num_bytes


def _parsed(entry_id: bytes) -> EntryId:
    milliseconds, _, number = entry_id.partition(b"-")
    return int(milliseconds), int(number)
