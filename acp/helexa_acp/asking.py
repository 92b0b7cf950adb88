"""One request to the model: sends it, shows parts of its answer as they come, and retries without a
field that the refusal names."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from acp import update_agent_thought_text

from helexa_acp import updates
from helexa_acp.compaction import (
    UNBOUNDED,
    Projection,
    budget_tokens,
    project,
    text_tokens,
    window_for,
    without_images,
)
from helexa_acp.config import Config
from helexa_acp.editor import ClientPort
from helexa_acp.endpoints import Endpoints
from helexa_acp.errors import EndpointError
from helexa_acp.history import (
    INVALID_CALL,
    AssistantTurn,
    Image,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Turn,
    Usage,
    answered,
    clean,
    interrupted,
)
from helexa_acp.prompts import system_prompt
from helexa_acp.repair import NotUnderstood, Signature, understand
from helexa_acp.sessions import Session
from helexa_acp.text_tools import Splitter, as_text, tools_prompt
from helexa_acp.tools.base import Tool, plans_dir
from helexa_acp.wire import (
    CallMade,
    Finished,
    ImageMade,
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
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Draft:
    """Belongs to one request; has its answer so far, also after a cancellation."""

    text: str = ""
    thought: str = ""
    thoughts: list[Thought] = field(default_factory=list)
    calls: list[CallMade] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    reason: Reason = "stop"
    usage: Usage = field(default_factory=Usage)
    is_begun: bool = False

    def seal(self, sealed: Any) -> None:
        self.thoughts.append(Thought(self.thought, sealed))
        self.thought = ""

    def turn(self, calls: tuple[ToolCall, ...] = ()) -> AssistantTurn:
        unsealed = (Thought(clean(self.thought)),) if self.thought else ()
        return AssistantTurn(
            text=clean(self.text),
            thoughts=(*self.thoughts, *unsealed),
            calls=calls,
            images=tuple(self.images),
        )

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.thought or self.thoughts or self.images)


def understood(
    made: list[CallMade], tools: dict[str, Tool], history: list[Turn]
) -> tuple[list[ToolCall], dict[str, ToolResult]]:
    """The calls, in order, each under an id of its own; and by their ids the messages to the model
    about those that could not be parsed."""
    taken = {turn.call_id for turn in history if isinstance(turn, ToolResult)}
    calls: list[ToolCall] = []
    misread: dict[str, ToolResult] = {}
    for one in made:
        call_id = clean(one.call_id)
        if not call_id or call_id in taken:
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        taken.add(call_id)
        found = understand(one.name, one.arguments, [_signature(tool) for tool in tools.values()])
        if isinstance(found, NotUnderstood):
            written = {"name": clean(one.name), "written": clean(one.arguments)}
            calls.append(ToolCall(call_id, INVALID_CALL, written))
            why = f"ERROR: this call was not understood: {found.why}. Nothing was done."
            misread[call_id] = interrupted(calls[-1], why)
        else:
            calls.append(ToolCall(call_id, found.name, found.arguments))
    return calls, misread


def _signature(tool: Tool) -> Signature:
    parameters = tool.spec.parameters
    required = parameters.get("required")
    return Signature(
        tool.spec.name,
        frozenset(parameters.get("properties") or ()),
        frozenset(required if isinstance(required, list) else ()),
    )


def error_parts(message: str) -> tuple[Text, ...]:
    return (Text(f"ERROR: {message}"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    config: Config
    endpoints: Endpoints
    data_dir: Path
    session: Session
    port: ClientPort

    async def ask(self, tools: dict[str, Tool], draft: Draft) -> None:
        """Fills ``draft``, also when this is cancelled. Raises EndpointError."""
        selector = self.session.selector
        learnt = self.endpoints.learnt(selector)
        for _ in range(MAX_TRIES):
            has_api_tools = self.endpoints.has_api_tools(selector)
            projection, request = await self._request(tools, has_api_tools)
            try:
                await self._stream(request, draft)
                counted = draft.usage.input_tokens
                learnt.tokens_per_estimated = counted / projection.estimated_tokens
                return
            except EndpointError as error:
                if draft.is_begun:
                    raise
                if (
                    error.refuses_thinking
                    and request.asks_for_thinking
                    and learnt.thinks_when_asked
                ):
                    learnt.thinks_when_asked = False
                elif (
                    error.refuses_images
                    and learnt.reads_images
                    and without_images(projection.turns) != list(projection.turns)
                ):
                    learnt.reads_images = False
                elif error.refuses_tools and request.tools:
                    learnt.has_api_tools = False
                elif error.exceeds_context and projection.can_shrink:
                    learnt.context_window = self._smaller_window(projection)
                else:
                    raise
                log.info("asking again: %s", error)
        raise EndpointError("the endpoint refused the request in every form")

    async def _request(
        self, tools: dict[str, Tool], has_api_tools: bool
    ) -> tuple[Projection, ModelRequest]:
        selector, history = self.session.selector, answered(self.session.history)
        if not self.endpoints.learnt(selector).reads_images:
            history = without_images(history)
        specs = tuple(tool.spec for tool in tools.values())
        written = tools_prompt(specs) if specs else ""
        system = system_prompt(
            configured=self.config.system_prompt,
            cwd=self.session.cwd,
            mode=self.session.mode,
            plans_dir=plans_dir(self.data_dir, self.session.cwd),
            tools_prompt="" if has_api_tools else written,
        )
        bare = ModelRequest(
            model=selector.model,
            system=system,
            turns=(),
            tools=specs if has_api_tools else (),
            max_tokens=selector.endpoint.max_tokens,
            reasoning_effort=selector.endpoint.reasoning_effort,
            asks_for_thinking=self.endpoints.learnt(selector).thinks_when_asked,
        )

        def request_of(projection: Projection) -> ModelRequest:
            turns = projection.turns if has_api_tools else as_text(projection.turns)
            return replace(bare, turns=turns)

        fixed_tokens = text_tokens(system) + (text_tokens(written) if has_api_tools else 0)
        before = self.session.elided_before
        window = self.endpoints.context_window(selector)
        budget = budget_tokens(window, selector.endpoint.max_tokens)
        whole = project(history, budget=UNBOUNDED, fixed_tokens=fixed_tokens, elided_before=before)
        ratio = self.endpoints.learnt(selector).tokens_per_estimated
        if whole.estimated_tokens * max(SURE, SURE * ratio) <= budget:
            return whole, request_of(whole)
        projection, scale = whole, 1.0
        for _ in range(MAX_COUNTS):
            counted = await self.endpoints.count(selector.endpoint, request_of(projection))
            if counted is not None:
                if counted <= budget:
                    break
                scale = counted / projection.estimated_tokens
            shorter = project(
                history, budget=budget, fixed_tokens=fixed_tokens, scale=scale, elided_before=before
            )
            is_last = counted is None or shorter.num_elided == projection.num_elided
            projection = shorter
            if is_last:
                break
        return projection, request_of(projection)

    def _smaller_window(self, projection: Projection) -> int:
        """The window with which the next prompt is considerably shorter than this one."""
        answer_tokens = self.session.selector.endpoint.max_tokens
        prompt_tokens = projection.estimated_tokens
        known = self.endpoints.context_window(self.session.selector)
        if known is not None:
            prompt_tokens = min(prompt_tokens, budget_tokens(known, answer_tokens))
        return window_for(int(prompt_tokens * SHRINK), answer_tokens)

    async def _stream(self, request: ModelRequest, draft: Draft) -> None:
        wire = await self.endpoints.wire(self.session.selector.endpoint)
        splitter = Splitter()
        async with aclosing(wire.stream(request)) as events:
            async for event in events:
                draft.is_begun = True
                match event:
                    case TextDelta(text):
                        pieces: Sequence[WireEvent] = splitter.feed(text)
                    case Finished():
                        pieces = [*splitter.flush(), event]
                    case _:
                        pieces = [event]
                for piece in pieces:
                    await self._take(piece, draft)

    async def _take(self, event: WireEvent, draft: Draft) -> None:
        match event:
            case TextDelta(text):
                draft.text += text
                await self.port.update(updates.message(Text(text)))
            case ThoughtDelta(text):
                draft.thought += text
                await self.port.update(update_agent_thought_text(text))
            case ThoughtSealed(sealed):
                draft.seal(sealed)
            case ImageMade(image):
                draft.images.append(image)
                await self.port.update(updates.message(image))
            case CallMade():
                draft.calls.append(event)
            case Finished(reason, usage):
                draft.reason, draft.usage = reason, usage
