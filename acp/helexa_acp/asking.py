"""One request to the model: sends it, shows parts of its answer as they come, and retries without a
field that the refusal names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from acp import update_agent_thought_text

from helexa_acp import updates
from helexa_acp.compaction import (
    UNBOUNDED,
    Projection,
    budget_tokens,
    can_shrink,
    project,
    text_tokens,
    window_for,
    without_images,
)
from helexa_acp.errors import EndpointError
from helexa_acp.history import AssistantTurn, Thought, ToolCall, Usage, answered, clean
from helexa_acp.prompts import system_prompt
from helexa_acp.sessions import Session
from helexa_acp.text_tools import Splitter, as_text, tools_prompt
from helexa_acp.tools.base import Tool
from helexa_acp.wire import (
    CallMade,
    Finished,
    ModelRequest,
    Reason,
    TextDelta,
    ThoughtDelta,
    ThoughtSealed,
    WireEvent,
)

MAX_TRIES = 6
MAX_COUNTS = 3
SURE = 2.0
"""A prompt fits without being counted if this many times its estimate does."""
SHRINK = 0.7
"""A prompt that was too long is retried with this share of it."""
TOO_LONG = ("context_length", "context length", "context window", "too long", "maximum context")
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Draft:
    """Belongs to one request; has its answer so far, also after a cancellation."""

    text: str = ""
    thought: str = ""
    thoughts: list[Thought] = field(default_factory=list)
    calls: list[CallMade] = field(default_factory=list)
    reason: Reason = "stop"
    usage: Usage = field(default_factory=Usage)
    is_begun: bool = False

    def seal(self, sealed: Any) -> None:
        self.thoughts.append(Thought(clean(self.thought), sealed))
        self.thought = ""

    def turn(self, calls: Sequence[ToolCall] = ()) -> AssistantTurn:
        unsealed = (Thought(clean(self.thought)),) if self.thought else ()
        return AssistantTurn(
            text=clean(self.text),
            thoughts=(*self.thoughts, *unsealed),
            calls=tuple(calls),
        )

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.thought or self.thoughts)


async def ask(session: Session, tools: dict[str, Tool], draft: Draft) -> None:
    """Fills ``draft``, also when this is cancelled. Raises EndpointError."""
    learnt = session.home.endpoints.learnt(session.selector)
    for _ in range(MAX_TRIES):
        projection, request = await _request(session, tools)
        try:
            await _stream(session, request, draft)
            learnt.tokens_per_estimated = draft.usage.input_tokens / projection.estimated_tokens
            return
        except EndpointError as error:
            if draft.is_begun or not _learn(session, request, projection, error):
                raise
            log.info("asking again: %s", error)
    raise EndpointError("the endpoint refused the request in every form")


def _learn(
    session: Session, request: ModelRequest, projection: Projection, error: EndpointError
) -> bool:
    """Whether another request may succeed where this one was refused."""
    learnt = session.home.endpoints.learnt(session.selector)
    if error.refuses("thinking") and request.asks_for_thinking and learnt.thinks_when_asked:
        learnt.thinks_when_asked = False
    elif (
        error.refuses("image", "vision", "multimodal")
        and learnt.reads_images
        and without_images(projection.turns) != projection.turns
    ):
        learnt.reads_images = False
    elif (
        error.refuses("tool", "function call", "template_render_failed")
        and request.tools
        and session.selector.endpoint.tool_calling == "auto"
    ):
        learnt.has_api_tools = False
    elif error.refuses(*TOO_LONG) and can_shrink(projection):
        learnt.context_window = _smaller_window(session, projection)
    else:
        return False
    return True


def _smaller_window(session: Session, projection: Projection) -> int:
    """The window with which the next prompt is considerably shorter than this one."""
    answer_tokens = session.selector.endpoint.max_tokens
    known = session.home.endpoints.context_window(session.selector)
    prompt_tokens = min(projection.estimated_tokens, budget_tokens(known, answer_tokens))
    return window_for(int(prompt_tokens * SHRINK), answer_tokens)


async def _request(session: Session, tools: dict[str, Tool]) -> tuple[Projection, ModelRequest]:
    endpoints, selector = session.home.endpoints, session.selector
    endpoint, learnt = selector.endpoint, endpoints.learnt(selector)
    has_api_tools = endpoints.has_api_tools(selector)
    specs = tuple(tool.spec for tool in tools.values())
    written = tools_prompt(specs) if specs else ""
    system = system_prompt(
        configured=session.home.config.system_prompt,
        cwd=session.cwd,
        mode=session.record.mode,
        plans_dir=session.plans_dir,
        tools_prompt="" if has_api_tools else written,
    )
    bare = ModelRequest(
        model=selector.model,
        system=system,
        turns=(),
        tools=specs if has_api_tools else (),
        max_tokens=endpoint.max_tokens,
        reasoning_effort=endpoint.reasoning_effort,
        asks_for_thinking=learnt.thinks_when_asked,
    )
    history = tuple(answered(session.record.history))
    if not learnt.reads_images:
        history = without_images(history)
    budget = budget_tokens(endpoints.context_window(selector), endpoint.max_tokens)
    fixed_tokens = text_tokens(system) + (text_tokens(written) if has_api_tools else 0)

    def projected(budget: int, scale: float) -> tuple[Projection, ModelRequest]:
        projection = project(
            history,
            budget=budget,
            fixed_tokens=fixed_tokens,
            scale=scale,
            elided_before=session.record.elided_before,
        )
        turns = projection.turns if has_api_tools else as_text(projection.turns)
        return projection, replace(bare, turns=turns)

    projection, request = projected(UNBOUNDED, 1.0)
    if projection.estimated_tokens * SURE * max(1.0, learnt.tokens_per_estimated) <= budget:
        return projection, request
    for _ in range(MAX_COUNTS):
        counted = await endpoints.count(endpoint, request)
        if counted is None:
            return projected(budget, 1.0)
        if counted <= budget:
            break
        projection, request = projected(budget, counted / projection.estimated_tokens)
    return projection, request


async def _stream(session: Session, request: ModelRequest, draft: Draft) -> None:
    splitter = Splitter()
    streaming = session.home.endpoints.stream(session.selector.endpoint, request)
    async with aclosing(streaming) as events:
        async for event in events:
            draft.is_begun = True
            pieces: Sequence[WireEvent] = [event]
            if isinstance(event, TextDelta):
                pieces = splitter.feed(event.text)
            elif isinstance(event, Finished):
                pieces = [*splitter.flush(), event]
            for piece in pieces:
                await _take(session, piece, draft)


async def _take(session: Session, event: WireEvent, draft: Draft) -> None:
    match event:
        case TextDelta(text):
            draft.text += text
            await session.editor.update(updates.message(text))
        case ThoughtDelta(text):
            draft.thought += text
            await session.editor.update(update_agent_thought_text(text))
        case ThoughtSealed(sealed):
            draft.seal(sealed)
        case CallMade():
            draft.calls.append(event)
        case Finished(reason, usage):
            draft.reason, draft.usage = reason, usage
