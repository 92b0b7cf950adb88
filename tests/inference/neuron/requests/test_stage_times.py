"""How long a traced request spent in each stage, whatever its end."""

from __future__ import annotations

import msgspec

from inference.neuron.errors import engine_crashed
from inference.neuron.requests.request_table import RequestTable, SequenceOutput
from inference.neuron.text.embeddings import EmbeddingAnswer
from inference.protocol.engine import (
    SequenceCancelled,
    SequenceFailed,
    SequencesEmbedded,
    SequenceStep,
    SequenceUsage,
)
from inference.protocol.events import Cancelled, Failed, Finished, StageTimes
from inference.protocol.generation import EmbeddingRequest, Submit, TextInput
from inference.text.tokens.tokenizer import Tokenizer
from tests.cases import each_case
from tests.inference.neuron.recording_engine import RecordingEngine
from tests.inference.neuron.requests.running_requests import answer_of, output_of, submit_of

TRACED = msgspec.structs.replace(
    submit_of("r"), traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)
EMBEDDING = msgspec.structs.replace(
    TRACED, request=EmbeddingRequest(model="m", input=TextInput(texts=["x"]))
)
FIRST = SequenceStep(sequence_id="r/0", token_ids=[70], prefill_ms=2000.0)
LATER = SequenceStep(sequence_id="r/0", token_ids=[70])
BY_THEN = SequenceUsage(num_prompt_tokens=4, prefill_ms=1500.0)


def cut(used: SequenceUsage) -> SequenceOutput:
    return SequenceFailed(sequence_id="r/0", code="queue_timeout", message="", used=used)


@each_case(
    ("submit", "outputs", "expected"),
    [
        # Its engine has it after 1 s; each output comes 3 s after the one before, the end 3 s on.
        (TRACED, [FIRST, LATER], (1000.0, 1000.0, 2000.0, 6000.0)),
        (
            TRACED,
            [FIRST, cut(SequenceUsage(num_output_tokens=1))],
            (1000.0, 1000.0, 2000.0, 3000.0),
        ),
        (TRACED, [cut(BY_THEN)], (1000.0, 1500.0, 1500.0, None)),
        (TRACED, [SequenceCancelled(sequence_id="r/0")], (1000.0, 3000.0, None, None)),
        (TRACED, [], (1000.0, None, None, None)),
        (EMBEDDING, [SequencesEmbedded(sequence_id="r/0", vectors=[])], (1000.0, None, None, None)),
        (EMBEDDING, [SequenceCancelled(sequence_id="r/0")], (1000.0, None, None, None)),
    ],
)
def test_the_stages(
    tokenizer: Tokenizer,
    submit: Submit,
    outputs: list[SequenceOutput],
    expected: tuple[float | None, ...],
) -> None:
    now_s = 100.0
    table, engine = RequestTable(clock=lambda: now_s), RecordingEngine()
    table.admit(submit)
    now_s += 1.0
    is_text = submit is TRACED
    answer = answer_of(tokenizer) if is_text else EmbeddingAnswer("r", num_prompt_tokens=3)
    table.begin("r", answer, engine)
    events = []
    for output in outputs:
        now_s += 3.0
        events += table.apply([output]).events
    if table.is_live("r"):
        now_s += 3.0
        events += table.fail("r", engine_crashed("m"))
    (times,) = [one.event for one in events if isinstance(one.event, StageTimes)]
    assert (times.prepare_ms, times.queue_ms, times.prefill_ms, times.decode_ms) == expected
    assert times.total_ms == 1000 * (now_s - 100.0)


def test_one_that_is_never_prepared_spent_all_in_preparing() -> None:
    now_s = 7.0
    table = RequestTable(clock=lambda: now_s)
    table.admit(TRACED)
    now_s += 2.0
    times, _ = (one.event for one in table.fail("r", engine_crashed("m")))
    assert times == StageTimes(request_id="r", total_ms=2000.0, prepare_ms=2000.0)


@each_case("is_traced", [True, False])
@each_case("end", ["finish", "engine_cancelled", "crash", "refuse"])
def test_it_is_reported_before_every_end_of_a_traced_request_and_no_other(
    tokenizer: Tokenizer, end: str, is_traced: bool
) -> None:
    table, engine = RequestTable(), RecordingEngine()
    table.admit(TRACED if is_traced else submit_of("r"))
    if end == "refuse":
        events = table.fail("r", engine_crashed("m"))
    else:
        table.begin("r", answer_of(tokenizer), engine)
        table.started("r")
        table.apply([FIRST])
        crash = table.fail_engine(engine, engine_crashed("m")) if end == "crash" else []
        events = crash or table.apply([output_of(end)]).events
    *before, last = (one.event for one in events)
    assert isinstance(last, Finished | Cancelled | Failed)
    times = [one for one in before if isinstance(one, StageTimes)]
    assert len(times) == is_traced
    if is_traced:
        assert before[-1] is times[0] and (times[0].prefill_ms is None) == (end == "refuse")
