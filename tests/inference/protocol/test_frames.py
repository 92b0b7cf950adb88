"""Frames keep their content, and omit defaults."""

from __future__ import annotations

import msgspec

from inference.protocol.events import (
    Cancelled,
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

REQUEST = GenerationRequest(model="m", input=TextInput(texts=["hello"]))
PLAIN = Submit(
    request_id="r", gateway_id="g", model="m", request=REQUEST, deadline_unix_s=1_900_000_000.0
)
USAGE = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=2, reasoning_tokens=1)


def test_a_submit_of_nobody_in_particular_is_anonymous_and_unbounded() -> None:
    (submit,) = [decode_inbox_frame(encode_inbox_frame(PLAIN))]
    assert isinstance(submit, Submit)
    assert (submit.account, submit.key, submit.weight, submit.is_anonymous) == (
        "anonymous",
        "",
        1,
        True,
    )
    assert submit.max_prompt_tokens is None
    assert submit.cap_output_tokens is None


def test_a_submit_holds_who_asks_and_what_their_budget_buys() -> None:
    sent = Submit(
        request_id="r",
        gateway_id="g",
        model="m",
        request=REQUEST,
        deadline_unix_s=1_900_000_000.0,
        account="acme",
        key="hx-12ab",
        weight=3,
        is_anonymous=False,
        endpoint="/v1/completions",
        max_prompt_tokens=100,
        cap_output_tokens=0,
    )
    assert decode_inbox_frame(encode_inbox_frame(sent)) == sent


def test_only_a_traced_request_has_a_trace_in_its_frame() -> None:
    assert b"traceparent" not in encode_inbox_frame(PLAIN)
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    frame = encode_inbox_frame(msgspec.structs.replace(PLAIN, traceparent=traceparent))
    submit = decode_inbox_frame(frame)
    assert isinstance(submit, Submit) and submit.traceparent == traceparent
    # A neuron of an earlier version has no such field, and reads the others.
    older = msgspec.defstruct("Older", [("request_id", str)], tag="submit", tag_field="type")
    assert msgspec.msgpack.decode(frame, type=older).request_id == "r"


def test_every_end_may_report_what_was_used() -> None:
    failure = Failure(code="engine_crashed", message="it ended")
    batch = EventBatch(
        epoch="e",
        sequence_number=1,
        events=[
            Failed(request_id="a", failure=failure, usage=USAGE),
            Failed(request_id="b", failure=failure),
            Cancelled(request_id="c", usage=USAGE),
            Cancelled(request_id="d"),
        ],
    )
    assert decode_event_batch(encode_event_batch(batch)) == batch
