"""What each end of a request counts: tokens computed, tokens given, choices."""

from __future__ import annotations

from inference.neuron.errors import engine_crashed
from inference.neuron.requests.request_table import RequestTable
from inference.neuron.text.embeddings import EmbeddingAnswer
from inference.protocol.engine import SequenceFailed, SequenceUsage
from inference.protocol.events import Cancelled, Failed, Usage
from inference.text.tokens.tokenizer import Tokenizer
from tests.cases import each_case
from tests.inference.neuron.requests.running_requests import (
    answer_of,
    cancelled_of,
    ends_of,
    running_request,
    step_of,
    submit_of,
)


@each_case(
    ("is_text", "prompt", "cached", "usage"),
    [
        (True, 5, 4, Usage(prompt_tokens=5, completion_tokens=0, cached_tokens=4)),
        (True, 0, 0, None),
        (False, 40, 0, Usage(prompt_tokens=40, completion_tokens=0)),
    ],
    ids=["computed of a prompt", "only waited", "vectors that were computed"],
)
def test_what_was_cancelled_costs_what_was_computed_of_it(
    tokenizer: Tokenizer, is_text: bool, prompt: int, cached: int, usage: Usage | None
) -> None:
    table = RequestTable()
    answer = answer_of(tokenizer) if is_text else EmbeddingAnswer("r", num_prompt_tokens=90)
    running_request(table, answer)
    table.cancel("r")
    end = ends_of(table, cancelled_of(0, prompt, cached=cached))
    assert end == Cancelled(request_id="r", usage=usage)


def test_all_choices_count_before_a_cancelled_request_ends(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    engine = running_request(table, answer_of(tokenizer, num_choices=2))
    table.apply([step_of(0, 70, 70, cached=3), step_of(1, 70, cached=6)])
    table.cancel("r")
    assert engine.cancelled == ["r/0", "r/1"]
    first = table.apply([cancelled_of(0, 7, output=3)])
    assert first.events == [], "the other may have gained tokens"
    assert ends_of(table, step_of(1, 71), cancelled_of(1, 7, output=2)) == Cancelled(
        request_id="r", usage=Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3)
    )


def test_a_failed_choice_ends_the_others_and_all_are_counted(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    running_request(table, answer_of(tokenizer, num_prompts=2))
    table.apply([step_of(0, 70, cached=0)])
    used = SequenceUsage(num_prompt_tokens=4)
    failed = SequenceFailed(sequence_id="r/1", code="out_of_memory", message="no room", used=used)
    applied = table.apply([failed])
    assert (applied.events, applied.ended_early) == ([], ["r/0"])
    late = table.apply([step_of(0, 70, 71)])
    assert late.events == [], "its client has received the end"
    end = ends_of(table, cancelled_of(0, 7, output=3))
    assert isinstance(end, Failed)
    assert (end.failure.code, end.failure.message) == ("out_of_memory", "no room")
    assert end.usage == Usage(prompt_tokens=7 + 4, completion_tokens=3)


def test_a_crash_costs_what_the_neuron_knows_of(tokenizer: Tokenizer, table: RequestTable) -> None:
    engine = running_request(table, answer_of(tokenizer, num_prompts=2))
    table.apply([step_of(0, 70, 70, cached=2)])
    ((_, failed),) = table.fail_engine(engine, engine_crashed("m"))
    assert isinstance(failed, Failed)
    assert failed.usage == Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=2)


def test_a_refused_request_used_nothing(table: RequestTable) -> None:
    table.admit(submit_of("r"))
    failure = engine_crashed("m")
    assert table.fail("r", failure) == [("g", Failed(request_id="r", failure=failure, usage=None))]
