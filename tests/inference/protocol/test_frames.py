"""Frames keep their content and omit defaults, and a large one is read as it was written, however
its entries come; and which requests may be delivered again after a neuron died."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.delivery import (
    PART_BYTES,
    FrameAssembler,
    blame,
    decode_marks,
    image_field_names,
    image_fields,
    inbox_entries,
)
from inference.protocol.generation import (
    GenerationRequest,
    Submit,
    TextInput,
    decode_inbox_frame,
    encode_inbox_frame,
)
from inference.protocol.keys import (
    INBOX_FRAME_FIELD,
    INBOX_PART_FIELD,
)
from tests.cases import each_case

REQUEST = GenerationRequest(model="m", input=TextInput(texts=["hello"]))
PLAIN = Submit(
    request_id="r", gateway_id="g", model="m", request=REQUEST, deadline_unix_s=1_900_000_000.0
)


def test_a_submit_is_of_nobody_and_unbounded_unless_it_says_so() -> None:
    assert (PLAIN.account, PLAIN.weight, PLAIN.is_anonymous) == ("anonymous", 1, True)
    assert PLAIN.max_prompt_tokens is PLAIN.cap_output_tokens is None
    assert b"traceparent" not in encode_inbox_frame(PLAIN)
    changes = {"account": "acme", "weight": 3, "is_anonymous": False, "cap_output_tokens": 0}
    for sent in (PLAIN, msgspec.structs.replace(PLAIN, traceparent="00-0a-b7-01", **changes)):
        assert decode_inbox_frame(encode_inbox_frame(sent)) == sent


NUM_BYTES = st.integers(PART_BYTES + 1, 5 * PART_BYTES)


@given(st.lists(NUM_BYTES, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_frames_of_mixed_and_repeated_entries(sizes: list[int], order: object) -> None:
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    entries = [entry for frame in frames for entry in inbox_entries(frame)]
    assert max(len(entry[INBOX_FRAME_FIELD]) for entry in entries) <= PART_BYTES
    entries += entries[::2]
    order.shuffle(entries)  # type: ignore[attr-defined]
    assembler = FrameAssembler()
    whole = [frame for entry in entries if (frame := assembler.add(entry, 0.0)) is not None]
    assert sorted(whole) == sorted(frames)


def test_small_frames_are_one_entry_and_one_whose_rest_comes_too_late_is_none() -> None:
    frame = bytes([1]) * PART_BYTES
    assert inbox_entries(frame) == [{INBOX_FRAME_FIELD: frame}]
    assert FrameAssembler().add({INBOX_FRAME_FIELD: frame}, 0.0) == frame
    fields = image_fields("d", frame + b"end")
    assert list(fields) == image_field_names("d", len(frame) + 3) == ["d:0", "d:1"]
    assert b"".join(fields.values()) == frame + b"end", "images have their bytes in order"
    first, *rest = inbox_entries(frame * 3)
    for late_s, found in ((9.9, [None, frame * 3]), (10.0, [None, None])):
        assembler = FrameAssembler(kept_s=10.0)
        assert assembler.add(first, 0.0) is None
        assert [assembler.add(entry, late_s) for entry in rest] == found
    for part in (
        *(b"", b"\xc1"),  # no msgpack
        b"\x93\xc4\x01a\x05\x05",  # the number after the last
        *(b"\x93\xc4\x01a\xff\x05", b"\x93\xc4\x01a\x00\x00"),  # a negative one, and of none
    ):
        with pytest.raises(ValueError):
            FrameAssembler().add({INBOX_FRAME_FIELD: b"x", INBOX_PART_FIELD: part}, 0.0)


@each_case(
    ("marks", "request_ids", "deaths_before", "deaths", "again"),
    [
        ({}, ["r"], 0, 0, True),
        ({"other": "e1"}, ["r"], 0, 0, True),  # it was waiting
        ({"other": "e1"}, ["r"], 1, 1, True),  # at its second delivery
        ({"r": "e1"}, ["r"], 0, 1, False),
        ({"r": "e1", "other": "e0"}, ["r"], 0, 1, False),  # alone in its instance
        ({"r": "e1", "other": "e1"}, ["r"], 0, 1, True),
        ({"r": "e1", "other": "e1"}, ["r"], 1, 2, False),  # beside another again
        ({"r": "e1", "x": "e1", "r.2": "e2", "y": "e2"}, ["r", "r.2"], 0, 2, False),
    ],
)
def test_blame(
    marks: dict[str, str], request_ids: list[str], deaths_before: int, deaths: int, again: bool
) -> None:
    raw = {request_id.encode(): instance.encode() for request_id, instance in marks.items()}
    found = blame(decode_marks(raw), request_ids, deaths_before)
    assert (found.num_worker_deaths, found.may_deliver_again) == (deaths, again)
