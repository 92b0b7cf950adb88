"""Bodies that came into a file are read out of it as the application asks for them."""

from __future__ import annotations

import asyncio
import io
from typing import Any

from inference.gateway.server.bodies import BODY, FILE_PIECE_BYTES, with_large_bodies


async def test_pieces_come_from_the_file_and_the_end_from_the_server() -> None:
    content = bytes(range(256)) * (FILE_PIECE_BYTES // 256) + b"end"
    file = io.BytesIO(content)
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    sent.put_nowait({"type": "http.disconnect"})
    received: list[dict[str, Any]] = []

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        assert BODY not in scope
        while not received or received[-1]["type"] != "http.disconnect":
            received.append(await receive())

    await with_large_bodies(application)({BODY: file}, sent.get, None)
    *pieces, end, left = received
    assert [len(one["body"]) for one in pieces] == [FILE_PIECE_BYTES, 3]
    assert b"".join(one["body"] for one in pieces) == content
    assert all(one["more_body"] for one in pieces)
    assert (end["body"], end["more_body"], left["type"]) == (b"", False, "http.disconnect")
    assert file.closed
