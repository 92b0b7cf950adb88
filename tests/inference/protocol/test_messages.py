"""Frames: whole however their entries come, and which requests may be delivered again after a
neuron died. Loads: their identity, their failures, a prompt's time, how their context is split."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.text.output_rules import answer_limit
from inference.protocol import delivery, load
from inference.protocol.generation import (
    GenerationRequest,
    SamplingOptions,
    Submit,
    TextInput,
    TokensInput,
    decode_inbox_frame,
    encode_inbox_frame,
)
from inference.protocol.keys import INBOX_FRAME_FIELD, INBOX_PART_FIELD
from inference.protocol.load_errors import (
    DoesNotFitError,
    PartFailedError,
    QuantizationNotFoundError,
)
from inference.protocol.load_report import LoadFailure, ModelLimit, model_limit
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


NUM_BYTES = st.integers(delivery.PART_BYTES + 1, 5 * delivery.PART_BYTES)


@given(st.lists(NUM_BYTES, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_frames_of_mixed_and_repeated_entries(sizes: list[int], order: object) -> None:
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    entries = [entry for frame in frames for entry in delivery.inbox_entries(frame)]
    assert max(len(entry[INBOX_FRAME_FIELD]) for entry in entries) <= delivery.PART_BYTES
    entries += entries[::2]
    order.shuffle(entries)  # type: ignore[attr-defined]
    assembler = delivery.FrameAssembler()
    whole = [frame for entry in entries if (frame := assembler.add(entry, 0.0)) is not None]
    assert sorted(whole) == sorted(frames)


def test_small_frames_are_one_entry_and_one_whose_rest_comes_too_late_is_none() -> None:
    frame = bytes([1]) * delivery.PART_BYTES
    assert delivery.inbox_entries(frame) == [{INBOX_FRAME_FIELD: frame}]
    assert delivery.FrameAssembler().add({INBOX_FRAME_FIELD: frame}, 0.0) == frame
    fields = delivery.image_fields("d", frame + b"end")
    assert list(fields) == delivery.image_field_names("d", len(frame) + 3) == ["d:0", "d:1"]
    assert b"".join(fields.values()) == frame + b"end", "images have their bytes in order"
    first, *rest = delivery.inbox_entries(frame * 3)
    for late_s, found in ((9.9, [None, frame * 3]), (10.0, [None, None])):
        assembler = delivery.FrameAssembler(kept_s=10.0)
        assert assembler.add(first, 0.0) is None
        assert [assembler.add(entry, late_s) for entry in rest] == found
    for part in (
        *(b"", b"\xc1"),  # no msgpack
        b"\x93\xc4\x01a\x05\x05",  # the number after the last
        *(b"\x93\xc4\x01a\xff\x05", b"\x93\xc4\x01a\x00\x00"),  # a negative one, and of none
    ):
        with pytest.raises(ValueError):
            delivery.FrameAssembler().add({INBOX_FRAME_FIELD: b"x", INBOX_PART_FIELD: part}, 0.0)


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
    found = delivery.blame(delivery.decode_marks(raw), request_ids, deaths_before)
    assert (found.num_worker_deaths, found.may_deliver_again) == (deaths, again)


SPEC = load.LoadSpec(job_id="j", model="m", source="path:/models/m.gguf")
SECRET = "-----BEGIN PRIVATE KEY----- a secret"
STAGES = {
    "stages": [
        load.StageSpec(device="cpu", layers=(0, 1)),
        load.StageSpec(device="cpu", layers=(1, 2), neuron="b", address="10.0.0.5:7400"),
    ],
    "stage_of": load.StageOf(index=1, engine_neuron="a", engine_certificate="the engine's"),
    "link_identity": load.LinkIdentity(certificate="a certificate", private_key=SECRET),
}
ELSEWHERE: list[dict[str, Any]] = [
    *({"job_id": "other"}, {"devices": ["cuda:3"]}, {"evict": ["n"]}, {"promised_bytes": 7}),
    *({"earlier_loads": load.EarlierLoads(device_kind="cpu", needed_bytes=5)}, {"dtype": "auto"}),
    STAGES,
]
OTHERWISE: list[dict[str, Any]] = [
    *({"model": "n"}, {"source": "path:/models/n.gguf"}, {"revision": "main"}),
    *({"max_context_tokens": 100}, {"kv_memory_bytes": 10**9}, {"max_concurrent_sequences": 3}),
    *({"chat_template": "{{ messages }}"}, {"max_prefill_s": 60.0}),
    *({"min_devices": 2}, {"tensor_parallel": 2}),
]


def test_a_digest_is_of_how_a_model_serves_not_of_where() -> None:
    """It is compared between the control and neurons, and kept over restarts. A default word that
    was read from a database is another object, and an int a float."""
    for changes in (*ELSEWHERE, *OTHERWISE):
        digest = load.spec_digest(msgspec.structs.replace(SPEC, **changes))
        assert (digest == load.spec_digest(SPEC)) is (changes in ELSEWHERE), changes
    assert load.spec_digest(SPEC) == "7361a17729506149"
    word = "".join(["au", "to"])
    sent = msgspec.structs.replace(SPEC, dtype=word, max_prefill_s=300)
    received = msgspec.convert(msgspec.to_builtins(sent), load.LoadSpec)
    stored = msgspec.json.decode(msgspec.json.encode(received), type=load.LoadSpec)
    plain = msgspec.structs.replace(SPEC, max_prefill_s=300.0)
    assert len({load.spec_digest(spec) for spec in (sent, received, stored, plain)}) == 1
    staged = msgspec.structs.replace(SPEC, **STAGES)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(staged), type=load.LoadSpec) == staged
    assert SECRET not in repr(staged)


def test_a_failure_says_what_is_there_and_what_is_needed() -> None:
    failure = QuantizationNotFoundError("no Q9", ["Q4"], nearest="Q4").failure
    assert (failure.code, failure.available) == ("quantization_not_found", ["Q4"])
    assert (failure.suggestion, failure.is_permanent) == ("Use Q4.", True)
    may_pass = ("does_not_fit", "lost_its_room", "disk_full", "download_failed", "engine_crashed")
    assert not any(LoadFailure(code=code, message="").is_permanent for code in may_pass)
    assert DoesNotFitError("it is large", 5).failure.needed_bytes == 5
    assert PartFailedError(failure).failure is failure


speeds = st.builds(
    load.PrefillSpeed,
    token_s=st.floats(1e-6, 1.0),
    growth_s=st.floats(0, 1e-3),
    window_tokens=st.none() | st.integers(1, 5000),
)


def test_a_token_costs_its_products_and_its_reading() -> None:
    speed = load.PrefillSpeed(token_s=0.01, growth_s=0.0001)
    assert speed.prompt_s(100) == pytest.approx(100 * 0.01 + 0.0001 * 100**2 / 2)
    assert speed.tokens_per_s(100) == pytest.approx(100 / 1.5)
    speed = load.PrefillSpeed(token_s=0.01, growth_s=0.0001, window_tokens=50)
    far = speed.span_s(1000, 1001)
    assert far == pytest.approx(speed.span_s(60, 61)) == pytest.approx(0.01 + 50 * 0.0001)
    whole = speed.prompt_s(1000)
    assert speed.prompt_s(40) + speed.span_s(40, 1000) == pytest.approx(whole), "parts add up"
    assert speed.slowed(3).prompt_s(777) == pytest.approx(3 * speed.prompt_s(777))


@given(speed=speeds, seconds=st.floats(0, 1000), at_most=st.integers(1, 100_000))
def test_the_longest_prompt_in_time(speed: load.PrefillSpeed, seconds: float, at_most: int) -> None:
    longest = speed.longest_prompt(seconds, at_most)
    assert 0 <= longest <= at_most
    assert speed.prompt_s(longest) <= seconds
    assert longest == at_most or speed.prompt_s(longest + 1) > seconds


@each_case(
    ("context", "bound", "only_reads", "limit"),
    [
        (8192, None, False, ModelLimit(context=8192, input=6144, output=2048)),
        (262_144, None, False, ModelLimit(context=262_144, input=253_952, output=8192)),
        (4096, 512, False, ModelLimit(context=4096, input=3584, output=512)),
        (8192, 8192, False, ModelLimit(context=8192, input=2048, output=6144)),
        (2, None, False, ModelLimit(context=2, input=1, output=1)),
        (512, 100, True, ModelLimit(context=512, input=512, output=0)),
    ],
)
def test_the_split(context: int, bound: int | None, only_reads: bool, limit: ModelLimit) -> None:
    assert model_limit(context, bound, only_reads=only_reads) == limit


@given(context=st.integers(2, 1 << 20), bound=st.none() | st.integers(1, 1 << 20), data=st.data())
def test_what_is_advertised_is_served(context: int, bound: int | None, data: st.DataObject) -> None:
    limit = model_limit(context, bound)
    assert limit.input + limit.output <= limit.context
    prompt = data.draw(st.integers(1, limit.input))
    asked = data.draw(st.integers(1, limit.output))
    request = GenerationRequest(
        model="m", input=TokensInput(prompts=[[1]]), sampling=SamplingOptions(max_tokens=asked)
    )
    allowed = answer_limit(
        request, num_prompt_tokens=prompt, context_tokens=context, max_output_tokens=bound
    )
    assert (allowed.max_tokens, allowed.reason) == (asked, "length")
