"""Which web pages may use the API from a browser (CORS, https://fetch.spec.whatwg.org).

Pages of this machine and desktop programs may; others are the operator's to name. A page that may
not is not believed to be on this machine either, whichever address its reader's browser has: else
any web site could have its visitors' engines work for it.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.middleware.cors import CORSMiddleware

from helexa_site.config import Config

ANY = "*"
LOCAL_ORIGIN = re.compile(
    r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
    r"|(app|file|tauri|vscode-file|vscode-webview)://.*"
)
SENT_BACK = ("x-request-id", "request-id", "retry-after", "x-helexa-advice", "x-helexa-ignored")
"""The headers of our answers that scripts may read."""


def is_allowed(config: Config, origin: str) -> bool:
    """``origin`` as the Origin header has it."""
    if ANY in config.allowed_origins or origin in config.allowed_origins:
        return True
    return LOCAL_ORIGIN.fullmatch(origin) is not None


def with_cors(application: Any, config: Config) -> Any:
    """The ASGI ``application``, answering browsers' questions about it."""
    return CORSMiddleware(
        application,
        allow_origins=config.allowed_origins,
        allow_origin_regex=LOCAL_ORIGIN.pattern,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=SENT_BACK,
    )
