"""Settings of commands that ask a running server."""

from __future__ import annotations

from inference.settings.addresses import Url
from inference.settings.setting import Reader, Setting

URL: Setting[str | None] = Setting(
    name="HELEXA_URL",
    kind=Url(("http", "https"), "an address like http://gpu-box:31313"),
    default=None,
    default_words="this machine's",
    readers=frozenset({Reader.COMMANDS}),
    doc="the server that commands ask, instead of `--url`",
)
