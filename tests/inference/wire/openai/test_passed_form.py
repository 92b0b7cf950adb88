"""Forms that are passed through: found in a file, whatever its contents are."""

from __future__ import annotations

import io

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.wire.errors import ApiError, InvalidRequestError
from inference.wire.openai.passed import form as forms
from inference.wire.openai.passed.form import read_form
from tests.cases import each_case
from tests.inference.gateway.upstreams.passing import BOUNDARY, FORM, form, part
from tests.inference.wire.openai.parsed_forms import fields_of

TYPE = FORM["content-type"]
HARD = st.lists(
    st.sampled_from([b"\r", b"\n", b"-", b"--", BOUNDARY.encode(), b"\r\n--a-bounda", b"x", b"\0"]),
    max_size=12,
).map(b"".join)


@given(
    contents=st.lists(HARD, min_size=1, max_size=4),
    piece_bytes=st.integers(1, 40),
)
def test_parts_are_the_same_however_the_file_is_read(
    contents: list[bytes], piece_bytes: int
) -> None:
    delimiter = f"\r\n--{BOUNDARY}".encode()
    if any(delimiter in b"\r\n" + content for content in contents):
        return  # it ends the part, as it must
    body = form(*(part(f"f{i}", content) for i, content in enumerate(contents)))
    before, forms.PIECE_BYTES = forms.PIECE_BYTES, piece_bytes
    try:
        found = read_form(TYPE, io.BytesIO(body))
        assert [found.read(one, one.num_bytes) for one in found.parts] == contents
        rewritten = found.rewritten("other", model="m", without=frozenset({"f0"}))
        sent = b"".join(rewritten.chunks())
    finally:
        forms.PIECE_BYTES = before
    assert len(sent) == rewritten.num_bytes
    assert sent.count(b"--other") >= len(contents)
    again = read_form("multipart/form-data; boundary=other", io.BytesIO(sent))
    assert [again.read(one, one.num_bytes) for one in again.parts] == contents[1:]


@given(st.binary(max_size=300), st.integers(0, 120))
def test_any_bytes_are_a_form_or_refused(noise: bytes, at: int) -> None:
    body = form(part("model", b"m"), part("file", b"x", filename="a"))
    for wrong in (noise, body[:at] + noise + body[at:], body[:at]):
        try:
            read_form(TYPE, io.BytesIO(wrong))
        except ApiError as error:
            assert error.status == 400


def test_what_clients_write() -> None:
    asked = httpx.Request(
        "POST",
        "http://x",
        data={"model": "whisper", "prompt": "Grüße"},
        files={"file": ('ü "1".wav', b"abc", "audio/wav; rate=8000"), "mask": ("m", b"")},
    )
    found = read_form(asked.headers["content-type"], io.BytesIO(asked.read()))
    assert (found.text("prompt"), found.text("none")) == ("Grüße", None)
    file = found.file("file")
    assert (file.filename, file.content_type) == ("ü %221%22.wav", "audio/wav; rate=8000")
    sent = b"".join(found.rewritten("b", model="org/m", without=frozenset({"mask"})).chunks())
    assert [
        (name, content)
        for name, _, content in fields_of(FORM["content-type"].replace(BOUNDARY, "b"), sent)
    ] == [
        ("model", b"org/m"),
        ("prompt", "Grüße".encode()),
        ("file", b"abc"),
    ]


def test_a_name_of_a_file_adds_no_header() -> None:
    head = (
        f"--{BOUNDARY}\r\ncontent-disposition: form-data; name=file; "
        'filename="a\\"; name=\\"model"\r\n\r\nx\r\n'
    )
    found = read_form(TYPE, io.BytesIO(head.encode() + form()))
    (only,) = found.parts
    assert (only.name, only.filename) == ("file", 'a"; name="model')
    sent = b"".join(found.rewritten("b", model="m", without=frozenset()).chunks())
    assert b'filename="a%22; name=%22model"' in sent


@each_case(
    "type_",
    ["", "text/plain", "multipart/form-data", "multipart/form-data; boundary=" + "x" * 71],
)
def test_a_type_without_a_boundary_is_refused(type_: str) -> None:
    with pytest.raises(InvalidRequestError):
        read_form(type_, io.BytesIO(form(part("a", b"b"))))
