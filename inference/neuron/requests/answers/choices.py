"""What turns a request's tokens into its answer: one text pipeline for each of its choices."""

from __future__ import annotations

from inference.neuron.errors import RequestRefusedError
from inference.neuron.requests.answers.answers import Answer, Choice
from inference.neuron.requests.answers.echo import echo_of
from inference.neuron.requests.answers.prompt_scores import PromptScores
from inference.neuron.requests.prompts.model_text import ModelText
from inference.neuron.requests.prompts.prompts import Prepared
from inference.neuron.requests.request_details import ChoiceDetails, RequestDetails
from inference.protocol.events import Failure
from inference.protocol.generation import ChatInput, GenerationRequest
from inference.text.answers.choice_text import ChoiceText
from inference.text.tool_calls.call_parser import CallParser


def build_answer(
    request_id: str,
    request: GenerationRequest,
    prepared: Prepared,
    text: ModelText,
    details: RequestDetails | None = None,
) -> Answer:
    """``details``: logs the parsed parts of the answer. Raises
    ``RequestRefusedError`` for an empty stop string."""
    if not all(request.stop):
        raise RequestRefusedError(
            Failure(code="invalid_value", message="a stop string is empty", param="stop")
        )
    tool_names = [tool.name for tool in prepared.tools]
    logs = [
        None if details is None else details.choice(index, tool_names)
        for index in range(len(prepared.prompts) * request.n)
    ]
    choices = [
        Choice(
            request_id=request_id,
            index=index,
            text=_choice_text(request, prepared, text, log),
            echo=echo_of(index // request.n, request, prepared, text) if request.echo else None,
            scores=_scores(request_id, index, request),
            is_empty=request.sampling.max_tokens == 0,
            at_limit=prepared.limit.reason,
            returns_token_ids=request.returns_token_ids,
            log=log,
        )
        for index, log in enumerate(logs)
    ]
    prompt_lengths = [len(prompt) for prompt in prepared.prompts]
    return Answer(request_id, choices, prompt_lengths=prompt_lengths, n=request.n)


def _scores(request_id: str, index: int, request: GenerationRequest) -> PromptScores | None:
    """The first choice of each prompt reports its prompt's scores."""
    num_top = request.sampling.prompt_logprobs
    if num_top is None or index % request.n:
        return None
    return PromptScores(request_id, index // request.n, num_top)


def _choice_text(
    request: GenerationRequest, prepared: Prepared, text: ModelText, log: ChoiceDetails | None
) -> ChoiceText:
    tools = prepared.tools
    calls = None
    parser = None
    if isinstance(request.input, ChatInput) and tools:
        calls = text.tool_format_of(request.input)
        parser = None if calls is None else calls.parser(tools)
    if isinstance(parser, CallParser):
        parser.streams_arguments = prepared.params.grammar is not None
        parser.on_decision = None if log is None else log.decision
    return ChoiceText(
        text.tokenizer,
        stop=request.stop,
        continues_text=prepared.continues_text,
        markers=prepared.thinking.markers,
        phrases=prepared.thinking.phrases,
        starts_thinking=prepared.thinking.is_open,
        tool_calls=parser,
        shown_token_ids=frozenset() if calls is None else calls.shown_token_ids(text.tokenizer),
    )
