"""Which web pages may use the API from a browser (CORS, https://fetch.spec.whatwg.org).

Pages of this machine and desktop programs may; others are the operator's to name. A page that may
not is not believed to be on this machine either, whichever address its reader's browser has: else
any web site could have its visitors' engines work for it.
"""

from __future__ import annotations

import re
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from helexa_site.config import Config
from inference.wire.errors import ForbiddenError
from inference.wire.openai import errors as openai_errors

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
SENT_BACK = ("x-request-id", "request-id", "retry-after", "x-helexa-advice", "x-helexa-ignored")
"""The headers of our answers that scripts may read."""


def is_allowed(config: Config, origin: str) -> bool:
    """``origin`` as the Origin header has it."""
    if ANY in config.allowed_origins or origin in config.allowed_origins:
        return True
    return LOCAL_ORIGIN.fullmatch(origin) is not None


class _Cors(CORSMiddleware):
    """Starlette's, with a refusal that names the remedy."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if not self.is_allowed_origin(request_headers["origin"]):
            refusal = ForbiddenError("origin_not_allowed", NOT_ALLOWED)
            response.body = orjson.dumps(openai_errors.error_object(refusal))
            response.headers["content-length"] = str(len(response.body))
            response.headers["content-type"] = "application/json"
        return response


def with_cors(application: Any, config: Config) -> Any:
    """The ASGI ``application``, answering browsers' questions about it."""
    return _Cors(
        application,
        allow_origins=config.allowed_origins,
        allow_origin_regex=LOCAL_ORIGIN.pattern,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=SENT_BACK,
    )
