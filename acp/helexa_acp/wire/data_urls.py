"""Images as data URLs. Pure."""

from __future__ import annotations

import re

from helexa_acp.conversation.history import Image

DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,([A-Za-z0-9+/=\s]+)")


def data_url(image: Image) -> str:
    return f"data:{image.mime_type};base64,{image.data}"


def image_from_data_url(url: str) -> Image | None:
    found = DATA_URL.fullmatch(url)
    return Image(found[1], found[2]) if found else None
