"""What passing answers used, and how long audio is."""

from __future__ import annotations

from itertools import pairwise

import orjson
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.events import Usage
from inference.wire.openai.passed.request import (
    EVENTS,
    JSON,
    SecretGuard,
    UnitsReader,
    audio_length,
)
from tests.inference.gateway.upstreams.passing import wav

CUTS = st.lists(st.integers(0, 400), max_size=8)


def parts_of(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


def read(task: str, kind: str, parts: list[bytes]) -> UnitsReader:
    reader = UnitsReader(task, kind)  # type: ignore[arg-type]
    for part in parts:
        reader.feed(part)
    return reader


@given(CUTS, st.text(max_size=60), st.integers(1, 10**6))
def test_seconds_are_read_across_cuts_and_never_from_a_text(
    cuts: list[int], text: str, seconds: int
) -> None:
    text_around = text + '"seconds": 7, "duration": 7, "usage": {"seconds": 7}'
    body = orjson.dumps({"usage": {"type": "duration", "seconds": seconds}, "text": text_around})
    assert read("transcription", JSON, parts_of(body, cuts)).units == seconds
    whole = orjson.dumps({"duration": 8.01, "text": text_around})
    assert read("transcription", JSON, parts_of(whole, cuts)).units == 9
    assert (
        read("transcription", JSON, parts_of(orjson.dumps({"text": text_around}), cuts)).units
        is None
    )


@given(CUTS, st.integers(1, 5))
def test_images_are_counted_across_cuts(cuts: list[int], number: int) -> None:
    data = [
        {"url": "http://x", "b64_json": None, "revised_prompt": 'a "url": "b"'}
        for _ in range(number)
    ]
    body = orjson.dumps({"data": data})
    assert read("images", JSON, parts_of(body, cuts)).units == number


@given(CUTS, st.text(max_size=60), st.integers(0, 10**6), st.integers(0, 10**6))
def test_tokens_are_read_across_cuts_and_never_from_a_text(
    cuts: list[int], text: str, prompt: int, completion: int
) -> None:
    around = text + '"input_tokens": 7, "output_tokens": 7'
    details = {"text_tokens": 1, "image_tokens": 2}
    for names in (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")):
        used = {names[0]: prompt, "input_tokens_details": details, names[1]: completion}
        body = orjson.dumps({"usage": used, "data": [{"revised_prompt": around}]})
        assert read("images", JSON, parts_of(body, cuts)).tokens == Usage(
            prompt_tokens=prompt, completion_tokens=completion
        )
    assert read("images", JSON, parts_of(orjson.dumps({"text": around}), cuts)).tokens is None
    assert read("speech", "audio/mpeg", [orjson.dumps({"usage": used})]).tokens is None


@given(CUTS)
def test_events_of_errors_are_noticed_across_cuts(cuts: list[int]) -> None:
    body = b'data: {"type": "x"}\n\nevent: error\ndata: {"type":"error"}\n\n'
    assert read("speech", EVENTS, parts_of(body, cuts)).has_failed
    assert not read("speech", EVENTS, parts_of(body[:20], cuts)).has_failed


@given(CUTS, st.text("ab", min_size=1, max_size=5), st.text("abc", max_size=60))
def test_a_secret_never_passes(cuts: list[int], secret: str, text: str) -> None:
    guard = SecretGuard(secret)
    sent = b""
    for part in parts_of(text.encode(), cuts):
        passed = guard.feed(part)
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
    assert (exact.most_s, exact.likely_s, exact.is_exact) == (3, 3, True)
    whole = audio_length(wav(3), len(wav(3)))
    assert (whole.most_s, whole.is_exact) == (3, True), "its head is no sound"
    unknown = audio_length(b"ID3", 80_000)
    assert (unknown.most_s, unknown.likely_s, unknown.is_exact) == (160, 10, False)
    compressed = wav(1)[:20] + b"\x55\x00" + wav(1)[22:]  # MPEG within WAV
    assert not audio_length(compressed, len(compressed)).is_exact
    still = wav(1)[:24] + bytes(4) + wav(1)[28:]  # no samples a second
    assert not audio_length(still, len(still)).is_exact
    assert audio_length(b"", 0).most_s == 1


@given(st.binary(max_size=100))
def test_any_bytes_have_a_length(noise: bytes) -> None:
    for head in (noise, wav(0.01)[:12] + noise):
        length = audio_length(head, len(head))
        assert 1 <= length.likely_s <= length.most_s
