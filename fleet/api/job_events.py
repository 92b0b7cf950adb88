"""How a job goes, as server-sent events: one when something in it changes, until it has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from rest_framework.utils.encoders import JSONEncoder

from fleet.api.shapes import LoadJobShape
from fleet.models import LoadJob

LOOK_EVERY_S = 0.5
COMMENT_EVERY_S = 15.0


async def job_events(
    pk: UUID, *, look_every_s: float = LOOK_EVERY_S, comment_every_s: float = COMMENT_EVERY_S
) -> AsyncIterator[bytes]:
    """Ends with the job, also when its row is gone."""
    told, quiet_s = "", 0.0
    while True:
        job = await sync_to_async(_look)(pk)
        if job is None:
            yield b"event: gone\ndata: {}\n\n"
            return
        data = json.dumps(job, cls=JSONEncoder)
        if data != told:
            told, quiet_s = data, 0.0
            yield f"event: {job['status']}\ndata: {data}\n\n".encode()
        if job["finished_at"] is not None:
            return
        if quiet_s >= comment_every_s:
            quiet_s = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(look_every_s)
        quiet_s += look_every_s


def _look(pk: UUID) -> dict[str, Any] | None:
    job = LoadJob.objects.select_related("neuron").filter(pk=pk).first()
    return None if job is None else dict(LoadJobShape(job).data)
