"""Requests that are passed through to upstreams: audio, images, moderation."""

from __future__ import annotations

import asyncio
from functools import partial

from inference.gateway.consumers.api_consumer import UNBUFFERED, ApiConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.server.bodies import parse_aside, spooled_file
from inference.gateway.upstreams.passed import pass_through
from inference.wire.openai.passed.endpoints import PassedEndpoint
from inference.wire.openai.passed.form import read_form
from inference.wire.openai.passed.request import PassedRequest, read_json, read_upload


class PassThroughConsumer(ApiConsumer):
    """A form's body goes to a file as it comes, and is sent on from there."""

    method = "POST"

    def __init__(self, *, gateway: Gateway, passed: PassedEndpoint) -> None:
        super().__init__(gateway=gateway, endpoint=passed.path)
        self._passed = passed
        self._form = spooled_file() if passed.is_form else None

    async def keep_body(self, part: bytes) -> None:
        if self._form is None:
            await super().keep_body(part)
        else:
            await asyncio.to_thread(self._form.write, part)

    async def answer(self, body: bytes) -> None:
        if self._form is None:
            request = await parse_aside(partial(read_json, self._passed, body), len(body))
        else:
            request = await asyncio.to_thread(self._read_form)
        await pass_through(self.gateway, self.call, request, self)

    async def begin_events(self, *, type_: bytes) -> None:
        """A stream of events follows. Where it breaks off, an error is its last one."""
        await self.start_response(200, [(b"content-type", type_), *UNBUFFERED])

    def _read_form(self) -> PassedRequest:
        assert self._form is not None, "an endpoint of JSON"
        content_type = self.context().headers.get("content-type", "")
        return read_upload(self._passed, read_form(content_type, self._form))
