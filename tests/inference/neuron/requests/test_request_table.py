"""Every request ends exactly once, whoever is first, and its end says what it used."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.errors import engine_crashed
from inference.neuron.events.usage_reports import UsageReportBook
from inference.neuron.requests.answers.answers import Answer, Choice
from inference.neuron.requests.answers.embedding_answers import EmbeddingAnswer
from inference.neuron.requests.live_request import AddressedEvent
from inference.neuron.requests.request_table import RequestTable
from inference.protocol.engine import (
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    SequenceTiming,
    SequenceUsage,
)
from inference.protocol.events import TERMINAL_EVENTS, Cancelled, Event, Failed, Finished, Usage
from inference.protocol.generation import GenerationRequest, Submit, TextInput
from inference.text.answers.choice_text import ChoiceText
from inference.text.tokens.tokenizer import Tokenizer
from tests.inference.neuron.recording_engine import RecordingEngine


@pytest.fixture(scope="module")
def tokenizer(byte_level_dir: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_dir)


@pytest.fixture
def table() -> RequestTable:
    return RequestTable(UsageReportBook())


def _submit(request_id: str) -> Submit:
    request = GenerationRequest(model="m", input=TextInput(texts=["x"]))
    return Submit(
        request_id=request_id,
        gateway_id="g",
        model="m",
        request=request,
        deadline_unix_s=0.0,
        receipt=b"sealed",
    )


def _answer(tokenizer: Tokenizer, num_choices: int = 1, num_prompts: int = 1) -> Answer:
    choices = [
        Choice(request_id="r", index=index, text=ChoiceText(tokenizer))
        for index in range(num_choices * num_prompts)
    ]
    return Answer("r", choices, prompt_lengths=[7] * num_prompts, n=num_choices)


def _running(
    table: RequestTable, answer: Answer | EmbeddingAnswer, engine: RecordingEngine | None = None
) -> RecordingEngine:
    engine = engine or RecordingEngine()
    table.admit(_submit("r"))
    table.begin("r", answer, engine)
    table.started("r")
    return engine


STEPS = ["cancel", "begin", "started", "token", "finish", "engine_failed", "engine_cancelled"]
SEQUENCES = st.integers(0, 1)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([*STEPS, "crash", "refuse", "forget"]), SEQUENCES), max_size=14
    )
)
def test_at_most_one_terminal_event(tokenizer: Tokenizer, steps: list[tuple[str, int]]) -> None:
    book, engine = UsageReportBook(), RecordingEngine()
    table = RequestTable(book)
    table.admit(_submit("r"))
    events: list[AddressedEvent] = []
    has_begun = False
    for step, index in steps:
        match step:
            case "cancel":
                events += table.cancel("r")
            case "begin" if not has_begun:
                has_begun = table.begin("r", _answer(tokenizer, num_choices=2), engine)
            case "started":
                table.started("r")
            case "crash":
                events += table.fail_engine(engine, engine_crashed("m"))
            case "refuse":
                events += table.fail("r", engine_crashed("m"))
            case "forget":
                table.forget(["r"])
            case _ if has_begun and step != "begin":
                events += table.apply([_output(step, index)]).events
    events += table.fail_all(engine_crashed("m"))
    names = [step for step, _ in steps]
    terminal = [event for _, event in events if isinstance(event, TERMINAL_EVENTS)]
    assert len(terminal) == (0 if "forget" in names and not terminal else 1)
    assert not events or isinstance(events[-1].event, TERMINAL_EVENTS) or "forget" in names
    book.gateway_died("g", now_unix_s=0.0)
    assert len(book.take_due(9)) == 1, "one account of it, whoever ended it"


def _output(step: str, index: int = 0) -> SequenceStep | SequenceFailed | SequenceCancelled:
    sequence_id = f"r/{index}"
    match step:
        case "token":
            return SequenceStep(sequence_id=sequence_id, token_ids=[70])
        case "finish":
            return SequenceStep(sequence_id=sequence_id, token_ids=[], finish_reason="stop")
        case "engine_failed":
            return SequenceFailed(sequence_id=sequence_id, code="engine_error", message="")
        case _:
            return SequenceCancelled(sequence_id=sequence_id)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (
            "finish",
            {
                *("finished", "prompt=7", "completion=2", "queue_ms=12", "prefill_tokens=50"),
                *("prefill_ms=100", "decode_ms=500", "memory_bytes=123456789"),
            },
        ),
        ("engine_failed", {"engine_error", "prompt=7", "completion=1"}),
        ("engine_cancelled", {"cancelled", "completion=1"}),
    ],
)
def test_each_end_is_a_line_of_the_log(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, end: str, words: set[str]
) -> None:
    caplog.set_level("INFO", logger="inference.neuron.requests.request_table")
    now_s = iter([100.0, 100.25, 101.5])
    table = RequestTable(UsageReportBook(), clock=lambda: next(now_s))
    _running(table, _answer(tokenizer))
    table.apply([_output("token")])
    timing = SequenceTiming(
        queue_ms=12.0,
        prefill_ms=100.0,
        decode_ms=500.0,
        prefill_tokens=50,
        memory_bytes=123_456_789,
    )
    last: dict[str, SequenceStep | SequenceFailed | SequenceCancelled] = {
        "finish": SequenceStep(
            sequence_id="r/0",
            token_ids=[],
            finish_reason="stop",
            num_output_tokens=2,
            timing=timing,
        ),
        "engine_failed": SequenceFailed(
            sequence_id="r/0",
            code="engine_error",
            message="",
            used=SequenceUsage(num_prompt_tokens=7, num_output_tokens=1),
        ),
        "engine_cancelled": SequenceCancelled(
            sequence_id="r/0", used=SequenceUsage(num_prompt_tokens=7, num_output_tokens=1)
        ),
    }
    table.apply([last[end]])
    (line,) = caplog.messages
    assert line.startswith("r model=m ")
    assert words | {"first_token_ms=250", "ms=1500"} <= set(line.split())


def test_a_cancel_before_the_engine_has_it_ends_it(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    engine = RecordingEngine()
    table.admit(_submit("r"))
    assert [event for _, event in table.cancel("r")] == [Cancelled(request_id="r", usage=None)]
    assert not table.begin("r", _answer(tokenizer), engine)
    assert table.cancel("r") == []


def test_a_cancel_while_it_is_handed_over_follows_the_submit(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    engine = RecordingEngine()
    table.admit(_submit("r"))
    assert table.begin("r", _answer(tokenizer), engine)
    assert table.cancel("r") == []
    assert engine.cancelled == [], "a cancel that overtakes its submit would be lost"
    assert table.started("r"), "so it is sent afterwards"


def test_a_frame_delivered_twice_runs_once(table: RequestTable) -> None:
    assert table.admit(_submit("r"))
    assert not table.admit(_submit("r"))


def test_forgotten_requests_are_freed_in_the_engine(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    engine = _running(table, _answer(tokenizer))
    table.forget(["r", "unknown"])
    assert engine.cancelled == ["r/0"]
    assert table.gateway_ids() == set()
    assert table.apply([_output("token")]).events == [], "there is nobody to tell"
    assert table.apply([_output("engine_cancelled")]).events == []
    assert table.count(engine) == 0


def _step(index: int, *token_ids: int, cached: int | None = None) -> SequenceStep:
    return SequenceStep(
        sequence_id=f"r/{index}", token_ids=list(token_ids), num_cached_tokens=cached
    )


def _cancelled(index: int, prompt: int, cached: int = 0, output: int = 0) -> SequenceCancelled:
    used = SequenceUsage(
        num_prompt_tokens=prompt, num_cached_tokens=cached, num_output_tokens=output
    )
    return SequenceCancelled(sequence_id=f"r/{index}", used=used)


def _ends(
    table: RequestTable, *outputs: SequenceStep | SequenceFailed | SequenceCancelled
) -> Event:
    *_, (_, event) = table.apply(outputs).events
    return event


def test_a_prompt_that_was_cut_costs_what_was_computed_of_it(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    _running(table, _answer(tokenizer))
    table.cancel("r")
    usage = Usage(prompt_tokens=5, completion_tokens=0, cached_tokens=4)
    assert _ends(table, _cancelled(0, 5, cached=4)) == Cancelled(request_id="r", usage=usage)


def test_what_only_waited_cost_nothing(tokenizer: Tokenizer, table: RequestTable) -> None:
    _running(table, _answer(tokenizer))
    table.cancel("r")
    assert _ends(table, _cancelled(0, 0)) == Cancelled(request_id="r", usage=None)


def test_all_choices_count_before_a_cancelled_request_ends(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    engine = _running(table, _answer(tokenizer, num_choices=2))
    table.apply([_step(0, 70, 70, cached=3), _step(1, 70, cached=6)])
    table.cancel("r")
    assert engine.cancelled == ["r/0", "r/1"]
    first = table.apply([_cancelled(0, 7, output=3)])
    assert first.events == [], "the other may have gained tokens"
    assert _ends(table, _step(1, 71), _cancelled(1, 7, output=2)) == Cancelled(
        request_id="r", usage=Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3)
    )


def test_a_failed_choice_ends_the_others_and_all_are_counted(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    _running(table, _answer(tokenizer, num_prompts=2))
    table.apply([_step(0, 70, cached=0)])
    used = SequenceUsage(num_prompt_tokens=4)
    failed = SequenceFailed(sequence_id="r/1", code="out_of_memory", message="no room", used=used)
    applied = table.apply([failed])
    assert (applied.events, applied.ended_early) == ([], ["r/0"])
    late = table.apply([_step(0, 70, 71)])
    assert late.events == [], "its client has heard the last of it"
    end = _ends(table, _cancelled(0, 7, output=3))
    assert isinstance(end, Failed)
    assert (end.failure.code, end.failure.message) == ("out_of_memory", "no room")
    assert end.usage == Usage(prompt_tokens=7 + 4, completion_tokens=3)


def test_a_crash_costs_what_the_neuron_knows_of(tokenizer: Tokenizer, table: RequestTable) -> None:
    engine = _running(table, _answer(tokenizer, num_prompts=2))
    table.apply([_step(0, 70, 70, cached=2)])
    ((_, failed),) = table.fail_engine(engine, engine_crashed("m"))
    assert isinstance(failed, Failed)
    assert failed.usage == Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=2)


def test_an_engine_that_dies_while_a_request_fails_does_not_hide_why(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    engine = _running(table, _answer(tokenizer, num_choices=2))
    table.apply([_output("engine_failed")])
    ((_, failed),) = table.fail_engine(engine, engine_crashed("m"))
    assert isinstance(failed, Failed) and failed.failure.code == "engine_error"


def test_a_refused_request_used_nothing(table: RequestTable) -> None:
    table.admit(_submit("r"))
    failure = engine_crashed("m")
    assert table.fail("r", failure) == [("g", Failed(request_id="r", failure=failure, usage=None))]


def test_vectors_that_were_computed_count_though_the_rest_was_not(table: RequestTable) -> None:
    _running(table, EmbeddingAnswer("r", num_prompt_tokens=90))
    table.cancel("r")
    usage = Usage(prompt_tokens=40, completion_tokens=0)
    assert _ends(table, _cancelled(0, 40)) == Cancelled(request_id="r", usage=usage)


def test_an_answer_that_ends_before_its_cancel_arrives_is_finished(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    _running(table, _answer(tokenizer))
    table.apply([_step(0, 70, cached=0)])
    table.cancel("r")
    assert isinstance(_ends(table, _output("finish")), Finished)


def _reported(book: UsageReportBook) -> list[tuple[str, Usage | None]]:
    return [(kept.report.outcome, kept.report.usage) for kept in book.take_due(9)]


def test_a_dead_gateways_request_is_accounted_for_when_its_engine_has_ended_it(
    tokenizer: Tokenizer,
) -> None:
    book = UsageReportBook()
    table = RequestTable(book)
    engine = _running(table, _answer(tokenizer))
    table.apply([_step(0, 70, cached=0)])
    assert table.forget_gateway("g") == 1
    assert table.forget_gateway("g") == 0, "it has been cancelled already"
    assert engine.cancelled == ["r/0"]
    assert _reported(book) == []
    table.apply([_cancelled(0, 7, output=2)])
    assert _reported(book) == [("cancelled", Usage(prompt_tokens=7, completion_tokens=2))]


def test_a_dead_gateways_request_that_no_engine_has_is_accounted_for_at_once(
    tokenizer: Tokenizer,
) -> None:
    book = UsageReportBook()
    table = RequestTable(book)
    table.admit(_submit("r"))
    assert table.forget_gateway("g") == 1
    assert not table.begin("r", _answer(tokenizer), RecordingEngine()), "nobody waits for it"
    assert _reported(book) == [("cancelled", None)]


def test_a_gateway_that_dies_while_its_request_is_handed_over(tokenizer: Tokenizer) -> None:
    book, engine = UsageReportBook(), RecordingEngine()
    table = RequestTable(book)
    table.admit(_submit("r"))
    table.begin("r", _answer(tokenizer), engine)
    table.forget_gateway("g")
    assert engine.cancelled == [], "a cancel that overtakes its submit would be lost"
    assert table.started("r"), "so it is sent afterwards"
    table.fail_engine(engine, engine_crashed("m"))
    assert _reported(book) == [("failed", None)]
