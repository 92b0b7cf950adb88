"""Forms with a file in them: accepted ones, and refusals as client errors."""

from __future__ import annotations

import io

import pytest

from inference.gateway.batches.endpoints import read_upload
from inference.wire.errors import ApiError
from tests.cases import each_case

BOUNDARY = "a-boundary"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


def form(*parts: tuple[str, bytes]) -> bytes:
    """Each is a disposition's words and a content."""
    written = b"".join(
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; {words}\r\n\r\n".encode()
        + content
        + b"\r\n"
        for words, content in parts
    )
    return written + f"--{BOUNDARY}--\r\n".encode()


def test_a_file_and_its_fields() -> None:
    body = form(('name="purpose"', b"batch"), ('name="file"; filename="a.jsonl"', b"{}\n"))
    upload = read_upload(FORM, io.BytesIO(body))
    assert (upload.name, upload.content.read(), upload.fields) == (
        "a.jsonl",
        b"{}\n",
        {"purpose": "batch"},
    )


@each_case(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"no boundary"),
        (FORM, b"nothing of the kind"),
        (FORM, form(('name="purpose"', b"batch"))),
        (FORM, form(('name="file"', b"x" * 3_000_000))),
        (FORM, form(*((f'name="field-{number}"', b"") for number in range(1001)))),
        (FORM, form(*(('name="file"; filename="a"', b"") for _ in range(101)))),
    ],
    ids=["json", "boundary", "no parts", "no file", "no name", "fields", "files"],
)
def test_what_is_no_such_form_is_the_clients(content_type: str, body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        read_upload(content_type, io.BytesIO(body))
    assert (refused.value.status, refused.value.param) == (400, "file")
