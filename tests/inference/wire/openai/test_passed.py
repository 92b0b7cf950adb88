"""Requests that are passed through: forms as they are found in a file, what answers used, and how
long audio is."""

from __future__ import annotations

import io
from itertools import pairwise

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.events import Usage
from inference.wire.errors import ApiError, InvalidRequestError
from inference.wire.openai.passed import form as forms
from inference.wire.openai.passed.form import read_form
from inference.wire.openai.passed.request import (
    EVENTS,
    JSON,
    SecretGuard,
    UnitsReader,
    audio_length,
)
from tests.cases import each_case
from tests.inference.gateway.upstreams.passing import BOUNDARY, FORM, form, part, wav
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


CUTS = st.lists(st.integers(0, 400), max_size=8)


def parts_of(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


def units(task: str, kind: str, parts: list[bytes]) -> UnitsReader:
    reader = UnitsReader(task, kind)  # type: ignore[arg-type]
    for piece in parts:
        reader.feed(piece)
    return reader


@given(CUTS, st.text(max_size=60), st.integers(1, 10**6))
def test_seconds_are_read_across_cuts_and_never_from_a_text(
    cuts: list[int], text: str, seconds: int
) -> None:
    text_around = text + '"seconds": 7, "duration": 7, "usage": {"seconds": 7}'
    body = orjson.dumps({"usage": {"type": "duration", "seconds": seconds}, "text": text_around})
    assert units("transcription", JSON, parts_of(body, cuts)).units == seconds
    whole = orjson.dumps({"duration": 8.01, "text": text_around})
    assert units("transcription", JSON, parts_of(whole, cuts)).units == 9
    assert (
        units("transcription", JSON, parts_of(orjson.dumps({"text": text_around}), cuts)).units
        is None
    )


@given(CUTS, st.integers(1, 5))
def test_images_are_counted_across_cuts(cuts: list[int], number: int) -> None:
    data = [
        {"url": "http://x", "b64_json": None, "revised_prompt": 'a "url": "b"'}
        for _ in range(number)
    ]
    body = orjson.dumps({"data": data})
    assert units("images", JSON, parts_of(body, cuts)).units == number


@given(CUTS, st.text(max_size=60), st.integers(0, 10**6), st.integers(0, 10**6))
def test_tokens_are_read_across_cuts_and_never_from_a_text(
    cuts: list[int], text: str, prompt: int, completion: int
) -> None:
    around = text + '"input_tokens": 7, "output_tokens": 7'
    details = {"text_tokens": 1, "image_tokens": 2}
    for names in (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")):
        used = {names[0]: prompt, "input_tokens_details": details, names[1]: completion}
        body = orjson.dumps({"usage": used, "data": [{"revised_prompt": around}]})
        assert units("images", JSON, parts_of(body, cuts)).tokens == Usage(
            prompt_tokens=prompt, completion_tokens=completion
        )
    assert units("images", JSON, parts_of(orjson.dumps({"text": around}), cuts)).tokens is None
    assert units("speech", "audio/mpeg", [orjson.dumps({"usage": used})]).tokens is None


@given(CUTS)
def test_events_of_errors_are_noticed_across_cuts(cuts: list[int]) -> None:
    body = b'data: {"type": "x"}\n\nevent: error\ndata: {"type":"error"}\n\n'
    assert units("speech", EVENTS, parts_of(body, cuts)).has_failed
    assert not units("speech", EVENTS, parts_of(body[:20], cuts)).has_failed


@given(CUTS, st.text("ab", min_size=1, max_size=5), st.text("abc", max_size=60))
def test_a_secret_never_passes(cuts: list[int], secret: str, text: str) -> None:
    guard = SecretGuard(secret)
    sent = b""
    for piece in parts_of(text.encode(), cuts):
        passed = guard.feed(piece)
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
