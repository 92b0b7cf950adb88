"""Frames keep their content and omit defaults, and a large one is read as it was written, however
its entries come: mixed, and more than once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.events import (
    Cancelled,
    Event,
    EventBatch,
    Failed,
    Failure,
    Usage,
    decode_event_batch,
    encode_event_batch,
)
from inference.protocol.generation import (
    GenerationRequest,
    Submit,
    TextInput,
    decode_inbox_frame,
    encode_inbox_frame,
)
from inference.protocol.inbox_parts import (
    PART_BYTES,
    FrameAssembler,
    image_field_names,
    image_fields,
    inbox_entries,
)
from inference.protocol.keys import INBOX_FRAME_FIELD, INBOX_PART_FIELD
from tests.cases import each_case

REQUEST = GenerationRequest(model="m", input=TextInput(texts=["hello"]))
PLAIN = Submit(
    request_id="r", gateway_id="g", model="m", request=REQUEST, deadline_unix_s=1_900_000_000.0
)
USAGE = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=2, reasoning_tokens=1)


def received(sent: Submit) -> Submit:
    submit = decode_inbox_frame(encode_inbox_frame(sent))
    assert isinstance(submit, Submit)
    return submit


def test_a_submit_holds_who_asks_and_what_their_budget_buys() -> None:
    """One of nobody in particular is anonymous and unbounded."""
    submit = received(PLAIN)
    assert (submit.account, submit.key, submit.weight) == ("anonymous", "", 1)
    assert submit.is_anonymous
    assert submit.max_prompt_tokens is submit.cap_output_tokens is None
    sent = msgspec.structs.replace(
        PLAIN,
        account="acme",
        key="hx-12ab",
        weight=3,
        is_anonymous=False,
        endpoint="/v1/completions",
        max_prompt_tokens=100,
        cap_output_tokens=0,
    )
    assert received(sent) == sent


def test_only_a_traced_request_has_a_trace_in_its_frame() -> None:
    assert b"traceparent" not in encode_inbox_frame(PLAIN)
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert (
        received(msgspec.structs.replace(PLAIN, traceparent=traceparent)).traceparent == traceparent
    )


@each_case("usage", [USAGE, None])
def test_every_end_may_report_what_was_used(usage: Usage | None) -> None:
    failure = Failure(code="engine_crashed", message="it ended")
    events: list[Event] = [
        Failed(request_id="a", failure=failure, usage=usage),
        Cancelled(request_id="b", usage=usage),
    ]
    batch = EventBatch(epoch="e", sequence_number=1, events=events)
    assert decode_event_batch(encode_event_batch(batch)) == batch


NUM_BYTES = st.integers(PART_BYTES + 1, 5 * PART_BYTES)


def _frame(number: int, num_bytes: int) -> bytes:
    return bytes([number]) * num_bytes


def test_a_small_frame_is_one_entry_and_its_own_bytes() -> None:
    frame = _frame(1, PART_BYTES)
    assert inbox_entries(frame) == [{INBOX_FRAME_FIELD: frame}]
    assert FrameAssembler().add({INBOX_FRAME_FIELD: frame}, 0.0) == frame


@given(st.lists(NUM_BYTES, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_frames_of_mixed_and_repeated_entries(sizes: list[int], order: object) -> None:
    frames = [_frame(number, size) for number, size in enumerate(sizes)]
    entries = [entry for frame in frames for entry in inbox_entries(frame)]
    assert max(len(entry[INBOX_FRAME_FIELD]) for entry in entries) <= PART_BYTES
    entries += entries[::2]
    order.shuffle(entries)  # type: ignore[attr-defined]
    assembler = FrameAssembler()
    whole = [frame for entry in entries if (frame := assembler.add(entry, 0.0)) is not None]
    assert sorted(whole) == sorted(frames)


def test_a_frame_whose_rest_comes_too_late_is_none() -> None:
    first, *rest = inbox_entries(_frame(1, 3 * PART_BYTES))
    assembler = FrameAssembler(kept_s=10.0)
    assert assembler.add(first, 0.0) is None
    assert [assembler.add(entry, 10.0) for entry in rest] == [None, None]


@each_case(
    "part",
    [b"", b"\xc1", b"\x93\xc4\x01a\x05\x05", b"\x93\xc4\x01a\xff\x05", b"\x93\xc4\x01a\x00\x00"],
    ids=["nothing", "no msgpack", "the number after the last", "a negative one", "of none"],
)
def test_a_part_that_cannot_be_one_is_an_error(part: bytes) -> None:
    with pytest.raises(ValueError):
        FrameAssembler().add({INBOX_FRAME_FIELD: b"x", INBOX_PART_FIELD: part}, 0.0)


def test_the_fields_of_an_image_have_its_bytes_in_order() -> None:
    data = _frame(1, PART_BYTES) + b"end"
    fields = image_fields("d", data)
    assert list(fields) == image_field_names("d", len(data)) == ["d:0", "d:1"]
    assert b"".join(fields.values()) == data
