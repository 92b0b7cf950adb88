"""Requests that are passed through: forms as they are found in a file, what answers used, and how
long audio is."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.events import Usage
from inference.wire.errors import ApiError, InvalidRequestError
from inference.wire.openai import multipart_form as forms
from inference.wire.openai.multipart_form import read_form
from inference.wire.openai.passed import EVENTS, JSON, SecretGuard, UnitsReader, audio_length
from tests.cases import each_case
from tests.inference.gateway.upstreams.conftest import BOUNDARY, FORM, form, part, wav
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
def test_parts_are_the_same_in_any_pieces(contents: list[bytes], piece_bytes: int) -> None:
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


def sent_fields(found: forms.Form, model: str, without: set[str]) -> list[tuple[str, bytes]]:
    rewritten = found.rewritten("b", model=model, without=frozenset(without))
    read = fields_of("multipart/form-data; boundary=b", b"".join(rewritten.chunks()))
    return [(name, content) for name, _, content in read]


def test_what_clients_write_and_a_name_of_a_file_adds_no_header() -> None:
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
    expected = [("model", b"org/m"), ("prompt", "Grüße".encode()), ("file", b"abc")]
    assert sent_fields(found, "org/m", {"mask"}) == expected
    head = (
        f"--{BOUNDARY}\r\ncontent-disposition: form-data; name=file; "
        'filename="a\\"; name=\\"model"\r\n\r\nx\r\n'
    )
    found = read_form(TYPE, io.BytesIO(head.encode() + form()))
    (only,) = found.parts
    assert (only.name, only.filename) == ("file", 'a"; name="model')
    assert sent_fields(found, "m", set()) == [("file", b"x")]


HEAD = "content-disposition: form-data; name=a"


@each_case(
    ("head", "content"),
    [
        *[
            (wrong, b"x")
            for wrong in ("x: y", "content-disposition: form-data; name=a b", "ü\udcff")
        ],
        (f"{HEAD}\r\ncontent-transfer-encoding: base64", b"x"),
        (f"{HEAD}\r\ncontent-type: text", b"x"),
        (f"{HEAD}\r\nx: {'y' * forms.MAX_HEAD_BYTES}", b"x"),
        (f"{HEAD}; filename=f", b"x"),
        (HEAD, b"\xff"),
        (HEAD, b"x" * (forms.MAX_FIELD_BYTES + 1)),
        (f"{HEAD}\r\n\r\nx\r\n--{BOUNDARY}\r\n{HEAD}", b"x"),
    ],
)
def test_a_field_that_is_no_short_text_is_refused(head: str, content: bytes) -> None:
    text = f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode("utf-8", "surrogateescape")
    with pytest.raises(InvalidRequestError):
        read_form(TYPE, io.BytesIO(text + content + b"\r\n" + form())).text("a")


def test_a_form_has_a_boundary_so_many_parts_and_a_file_where_one_is_asked_for() -> None:
    long = "multipart/form-data; boundary=" + "x" * 71
    for type_ in ("", "text/plain", "multipart/form-data", long):
        with pytest.raises(InvalidRequestError):
            read_form(type_, io.BytesIO(form(part("a", b"b"))))
    many = [part(f"f{number}", b"x") for number in range(forms.MAX_FORM_PARTS + 1)]
    assert len(read_form(TYPE, io.BytesIO(form(*many[1:]))).parts) == forms.MAX_FORM_PARTS
    with pytest.raises(InvalidRequestError, match="more than 128 parts"):
        read_form(TYPE, io.BytesIO(form(*many)))
    with pytest.raises(InvalidRequestError, match="behind its last boundary"):
        read_form(TYPE, io.BytesIO(form(many[0]) + b"x"))
    for name in ("f0", "none"):
        with pytest.raises(InvalidRequestError):
            read_form(TYPE, io.BytesIO(form(many[0]))).file(name)


CUTS = st.lists(st.integers(0, 400), max_size=8)


def parts_of(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


def units(task: str, kind: str, parts: list[bytes]) -> UnitsReader:
    reader = UnitsReader(task, kind)  # type: ignore[arg-type]
    for piece in parts:
        reader.feed(piece)
    return reader


EACH = list(range(400))
FAKE = '"seconds": 7, "duration": 7, "input_tokens": 7, "output_tokens": 7, "url": "x"'


@given(CUTS, st.text(max_size=60), st.integers(1, 10**6))
def test_units_are_read_across_cuts_not_from_a_text(
    cuts: list[int], text: str, number: int
) -> None:
    def read(task: str, body: dict[str, Any]) -> UnitsReader:
        return units(task, JSON, parts_of(orjson.dumps({**body, "text": text + FAKE}), cuts))

    used = {"usage": {"type": "duration", "seconds": number}}
    assert read("transcription", used).units == number
    assert read("transcription", {"duration": 8.01}).units == 9
    image = {"url": "http://x", "b64_json": None, "revised_prompt": FAKE}
    images = {"data": [image] * (number % 5 + 1)}
    assert read("images", images).units == number % 5 + 1
    assert units("images", JSON, parts_of(orjson.dumps(images), EACH)).units == number % 5 + 1
    for first, last in (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")):
        counts = {first: number, "input_tokens_details": {"text_tokens": 1}, last: number + 1}
        tokens = Usage(prompt_tokens=number, completion_tokens=number + 1)
        assert read("images", {"usage": counts}).tokens == tokens
    nothing = read("transcription", {})
    assert (nothing.units, nothing.tokens, nothing.has_failed) == (None, None, False)
    assert units("speech", "audio/mpeg", [orjson.dumps({"usage": counts})]).tokens is None


@given(CUTS)
def test_events_are_noticed_across_cuts(cuts: list[int]) -> None:
    body = b'data: {"type": "x"}\n\nevent: error\ndata: {"type":"error"}\n\n'
    assert units("speech", EVENTS, parts_of(body, cuts)).has_failed
    image = b'data: {"type": "image_generation.completed", "b64_json": ""}\n\n'
    read = units("images", EVENTS, parts_of(body[:20] + image * 2, cuts))
    assert (read.has_failed, read.units) == (False, 2)


@given(st.text("ab", min_size=1, max_size=5), st.text("abc", max_size=60))
def test_a_secret_never_passes(secret: str, text: str) -> None:
    for piece_bytes in range(1, len(text) + 1):
        guard, sent = SecretGuard(secret), b""
        for start in range(0, len(text), piece_bytes):
            passed = guard.feed(text[start : start + piece_bytes].encode())
            if passed is None:
                assert secret in text
                break
            sent += passed
        else:
            sent += guard.rest()
            assert secret not in text and sent == text.encode()
        assert secret.encode() not in sent


def test_audio_is_as_long_as_its_samples_or_bounded() -> None:
    exact = audio_length(wav(2.5), len(wav(2.5)))
    assert (exact.most, exact.likely, exact.is_exact) == (3, 3, True)
    whole = audio_length(wav(3), len(wav(3)))
    assert (whole.most, whole.is_exact) == (3, True), "its head is no sound"
    unknown = audio_length(b"ID3", 80_000)
    assert (unknown.most, unknown.likely, unknown.is_exact) == (160, 10, False)
    compressed = wav(1)[:20] + b"\x55\x00" + wav(1)[22:]  # MPEG within WAV
    assert not audio_length(compressed, len(compressed)).is_exact
    still = wav(1)[:24] + bytes(4) + wav(1)[28:]  # no samples a second
    assert not audio_length(still, len(still)).is_exact
    assert audio_length(b"", 0).most == 1


@given(st.binary(max_size=100))
def test_any_bytes_have_a_length(noise: bytes) -> None:
    for head in (noise, wav(0.01)[:12] + noise):
        length = audio_length(head, len(head))
        assert 1 <= length.likely <= length.most
