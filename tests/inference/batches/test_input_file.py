"""The requests of a batch, read one at a time from a file that may be deleted meanwhile."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from inference.batches.files import InputFile
from inference.wire.errors import InvalidRequestError

CHAT = "/v1/chat/completions"


def line(custom_id: str) -> bytes:
    body = {"model": "tiny", "messages": []}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
    ).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests.jsonl"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b"\n\n \r\n"])
def test_lines_in_their_order_whatever_ends_them(path: Path, end: bytes) -> None:
    path.write_bytes(end.join(map(line, ("a", "é", "c", "d"))))
    lines = InputFile(path, CHAT)
    assert lines.scan({"c"}) == 4
    path.unlink()
    first = lines.next_line()
    assert first is not None and first.custom_id == "a"
    assert json.loads(first.body)["model"] == "tiny"
    assert [one.custom_id for one in lines.rest()] == ["é", "d"]
    assert lines.next_line() is None
    lines.close()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "holds no requests"),
        (b"\n\n", "holds no requests"),
        (line("a") + b"\n\n" + line("a"), "Line 3: 'a' is there twice"),
        (line("a") + b"\nx", "Line 2: not valid JSON"),
        (b"\n".join(line(str(n)) for n in range(5)), "may have 4 requests; it has 5"),
    ],
    ids=["empty", "blank", "twice", "json", "many"],
)
def test_what_cannot_be_run_is_refused(
    path: Path, content: bytes, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.wire.common.batch_lines.MAX_REQUESTS", 4)
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=expected):
        InputFile(path, CHAT).scan(set())


def test_what_is_kept_of_a_line_is_where_it_begins(path: Path) -> None:
    """The body is not kept: a hundred thousand of those take hundreds of megabytes."""
    path.write_bytes(b"\n".join(line(str(n)) for n in range(1000)))
    lines = InputFile(path, CHAT)
    tracemalloc.start()
    lines.scan(set())
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 30_000 < path.stat().st_size / 3
