"""Decides which web pages may use the API from a browser (CORS, https://fetch.spec.whatwg.org).

Pages of this machine and desktop programs may; the operator names others. Other pages do not count
as local either, whichever address their reader's browser has: else any web site could use its
visitors' engines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware

from helexa_site.config import Config
from inference.wire.dialect import request_id_headers
from inference.wire.error_envelopes import openai_errors
from inference.wire.errors import ApiError, ForbiddenError, InvalidRequestError

ANY = "*"
LOCAL_ORIGIN = re.compile(
    r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
    r"|(app|file|tauri|vscode-file|vscode-webview)://.*"
)
NOT_ALLOWED = (
    "Web pages of this origin may not use this server: a browser asks it first, without an API "
    "key, and does not send the request. The operator can name the origin in "
    "HELEXA_ALLOWED_ORIGINS. A program that is no browser may send an API key."
)
PREFLIGHT = frozenset({"origin", "access-control-request-method"})
SENT_BACK = ("x-request-id", "request-id", "retry-after", "x-helexa-advice", "x-helexa-ignored")


def is_allowed(config: Config, origin: str) -> bool:
    if ANY in config.allowed_origins or origin in config.allowed_origins:
        return True
    return LOCAL_ORIGIN.fullmatch(origin) is not None


OnRefused = Callable[[Any, ApiError, int], str]
"""Takes the scope, the error and the status; returns the refused request's id."""


class _Cors(CORSMiddleware):
    on_refused: OnRefused

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = Headers(scope=scope)
        if scope["method"] != "OPTIONS" or not PREFLIGHT.issubset(headers.keys()):
            await super().__call__(scope, receive, send)
            return
        response = self.preflight_response(headers)
        if response.status_code != HTTPStatus.OK:
            error: ApiError = InvalidRequestError(f"{bytes(response.body).decode()}.", param=None)
            if not self.is_allowed_origin(headers["origin"]):
                error = ForbiddenError("origin_not_allowed", NOT_ALLOWED)
                response.body = orjson.dumps(openai_errors.error_object(error))
                response.headers["content-length"] = str(len(response.body))
                response.headers["content-type"] = "application/json"
            request_id = self.on_refused(scope, error, response.status_code)
            response.raw_headers.extend(request_id_headers(request_id))
        await response(scope, receive, send)


def with_cors(application: Any, config: Config, *, on_refused: OnRefused) -> Any:
    cors = _Cors(
        application,
        allow_origins=config.allowed_origins,
        allow_origin_regex=LOCAL_ORIGIN.pattern,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=SENT_BACK,
    )
    cors.on_refused = on_refused
    return cors
