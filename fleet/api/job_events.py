"""How a load job or a download goes, as server-sent events: one when something in it changes, until
it has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from asgiref.sync import sync_to_async
from rest_framework.utils.encoders import JSONEncoder

LOOK_EVERY_S = 0.5
COMMENT_EVERY_S = 15.0


async def job_events(
    look: Callable[[], dict[str, Any] | None], *, look_every_s: float = LOOK_EVERY_S
) -> AsyncIterator[bytes]:
    """``look``: the job as it is now, ``None``: its row is gone. Ends with the job, also then."""
    sent, quiet_s = "", 0.0
    while True:
        job = await sync_to_async(look)()
        if job is None:
            yield b"event: gone\ndata: {}\n\n"
            return
        data = json.dumps(job, cls=JSONEncoder)
        if data != sent:
            sent, quiet_s = data, 0.0
            yield f"event: {job['status']}\ndata: {data}\n\n".encode()
        if job["finished_at"] is not None:
            return
        if quiet_s >= COMMENT_EVERY_S:
            quiet_s = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(look_every_s)
        quiet_s += look_every_s
