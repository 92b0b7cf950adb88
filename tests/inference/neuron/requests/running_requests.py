"""Requests of a table that run, and their ends."""

from __future__ import annotations

from inference.neuron.requests.request_table import RequestTable
from inference.neuron.text.answers import Answer
from inference.neuron.text.choice_events import Choice
from inference.neuron.text.embeddings import EmbeddingAnswer
from inference.protocol.engine import SequenceCancelled, SequenceFailed, SequenceStep, SequenceUsage
from inference.protocol.events import Event
from inference.protocol.generation import GenerationRequest, Submit, TextInput
from inference.text.answers.choice_text import ChoiceText
from inference.text.tokens.tokenizer import Tokenizer
from tests.inference.neuron.recording_engine import RecordingEngine


def submit_of(request_id: str) -> Submit:
    request = GenerationRequest(model="m", input=TextInput(texts=["x"]))
    return Submit(
        request_id=request_id,
        gateway_id="g",
        model="m",
        request=request,
        deadline_unix_s=0.0,
    )


def answer_of(tokenizer: Tokenizer, num_choices: int = 1, num_prompts: int = 1) -> Answer:
    choices = [
        Choice(request_id="r", index=index, text=ChoiceText(tokenizer))
        for index in range(num_choices * num_prompts)
    ]
    return Answer("r", choices, prompt_lengths=[7] * num_prompts, n=num_choices)


def running_request(
    table: RequestTable, answer: Answer | EmbeddingAnswer, engine: RecordingEngine | None = None
) -> RecordingEngine:
    engine = engine or RecordingEngine()
    table.admit(submit_of("r"))
    table.begin("r", answer, engine)
    table.started("r")
    return engine


def output_of(step: str, index: int = 0) -> SequenceStep | SequenceFailed | SequenceCancelled:
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


def step_of(index: int, *token_ids: int, cached: int | None = None) -> SequenceStep:
    return SequenceStep(
        sequence_id=f"r/{index}", token_ids=list(token_ids), num_cached_tokens=cached
    )


def cancelled_of(index: int, prompt: int, cached: int = 0, output: int = 0) -> SequenceCancelled:
    used = SequenceUsage(
        num_prompt_tokens=prompt, num_cached_tokens=cached, num_output_tokens=output
    )
    return SequenceCancelled(sequence_id=f"r/{index}", used=used)


def ends_of(
    table: RequestTable, *outputs: SequenceStep | SequenceFailed | SequenceCancelled
) -> Event:
    *_, (_, event) = table.apply(outputs).events
    return event
