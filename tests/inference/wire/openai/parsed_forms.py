"""A second opinion on forms: the standard library's."""

from __future__ import annotations

from email.message import Message
from email.parser import BytesParser
from typing import cast


def fields_of(content_type: str, body: bytes) -> list[tuple[str, str | None, bytes]]:
    """Name, file's name and content of each part."""
    head = f"content-type: {content_type}\r\n\r\n".encode()
    found = BytesParser().parsebytes(head + body)
    parts = cast(list[Message], found.get_payload())
    return [
        (
            str(part.get_param("name", header="content-disposition")),
            part.get_filename(),
            cast(bytes, part.get_payload(decode=True)),
        )
        for part in parts
    ]
