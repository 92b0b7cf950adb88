"""One request to the model, retried without a field that the refusal names.

An endpoint whose API has no tools gets them as text, in the format of NousResearch's Hermes models:
tools in the system prompt, calls as ``<tool_call>`` JSON, results as ``<tool_response>``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from acp import update_agent_thought_text

from helexa_acp import updates
from helexa_acp.errors import EndpointError
from helexa_acp.history import (
    INVALID_CALL,
    UNBOUNDED,
    AssistantTurn,
    Image,
    Part,
    Projection,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Turn,
    Usage,
    UserTurn,
    answered,
    budget_tokens,
    can_shrink,
    clean,
    project,
    text_of,
    text_tokens,
    window_for,
    without_images,
)
from helexa_acp.sessions import Session
from helexa_acp.tools import Mode, Tool
from helexa_acp.wire import (
    CallMade,
    Finished,
    ModelRequest,
    Reason,
    TextDelta,
    ThoughtDelta,
    ThoughtSealed,
    ToolSpec,
    WireEvent,
)

MAX_TRIES = 6
MAX_COUNTS = 3
SURE = 2.0
"""A prompt fits without being counted if this many times its estimate does."""
SHRINK = 0.7
"""A prompt that was too long is retried with this share of it."""
TOO_LONG = ("context_length", "context length", "context window", "too long", "maximum context")
THOUGHT_MARKERS = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
TextEvent = TextDelta | ThoughtDelta | CallMade
CALL_OPENS, CALL_CLOSES = "<tool_call>", "</tool_call>"
INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{signatures}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
USUAL = """\
You are a coding agent in the user's editor. You work in their project with the tools you have.

- Look before you change: read the files that matter, and search for what you need.
- Make the smallest change that does what was asked, in the style of what is there.
- Prefer edit_file to write_file for files that exist. Quote old_text exactly.
- After a change run the project's tests, if it has some, and mend what fails.
- When a tool answers ERROR, read why and try something else.
- For tasks of several steps show a plan with update_plan, and keep it up to date.
- Be brief. Say what you did and what is left; do not repeat what the editor shows anyway."""
PLAN_MODE = """\
You are in plan mode: you look and plan, and change nothing. Commands are not run. The only files
you may write are plans, in {plans_dir}. When the plan is clear, say it and ask whether to go on."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Draft:
    """Has its request's answer so far, also after a cancellation."""

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
    answer_tokens = session.selector.endpoint.max_tokens
    known = session.home.endpoints.context_window(session.selector)
    prompt_tokens = min(projection.estimated_tokens, budget_tokens(known, answer_tokens))
    return window_for(int(prompt_tokens * SHRINK), answer_tokens)


async def _request(session: Session, tools: dict[str, Tool]) -> tuple[Projection, ModelRequest]:
    endpoints, selector = session.home.endpoints, session.selector
    endpoint, learnt = selector.endpoint, endpoints.learnt(selector)
    has_api_tools = endpoints.has_api_tools(selector)
    specs = tuple(tool.spec for tool in tools.values())
    written = _tools_prompt(specs) if specs else ""
    system = _system_prompt(session, "" if has_api_tools else written)
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
        turns = projection.turns if has_api_tools else _as_text(projection.turns)
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


def _system_prompt(session: Session, tools_prompt: str) -> str:
    """``tools_prompt`` is set where the endpoint's API has no tools."""
    own = (session.home.config.system_prompt or USUAL).strip()
    in_plan = session.record.mode is Mode.PLAN
    plan = PLAN_MODE.format(plans_dir=session.plans_dir) if in_plan else ""
    where = f"The working directory is {session.cwd}."
    return "\n\n".join(filter(None, (own, where, plan, tools_prompt)))


def _tools_prompt(tools: Sequence[ToolSpec]) -> str:
    signatures = [json.dumps({"type": "function", "function": one.function()}) for one in tools]
    return INSTRUCTIONS.format(signatures="\n".join(signatures))


def _as_text(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    written: list[Turn] = []
    for turn in turns:
        match turn:
            case AssistantTurn(calls=calls) if calls:
                text = "\n".join([*filter(None, [turn.text]), *map(_called, calls)])
                written.append(AssistantTurn(text=text))
            case ToolResult():
                response: tuple[Part, ...] = (
                    Text(f"<tool_response>\n{text_of(turn.parts)}\n</tool_response>"),
                    *(part for part in turn.parts if isinstance(part, Image)),
                )
                if written and isinstance(before := written[-1], UserTurn):
                    written[-1] = UserTurn(before.parts + response)
                else:
                    written.append(UserTurn(response))
            case _:
                written.append(turn)
    return tuple(written)


def _called(call: ToolCall) -> str:
    if call.name == INVALID_CALL:
        text = str(call.arguments.get("written", ""))
    else:
        text = json.dumps({"name": call.name, "arguments": call.arguments})
    return f"{CALL_OPENS}\n{text}\n{CALL_CLOSES}"


class Splitter:
    """A thought is only recognised at the beginning: prose about ``<think>`` stays prose. A call's
    text is its arguments, and always whole."""

    def __init__(self) -> None:
        self._held = ""
        self._closes = ""
        """The end marker of the thought or call; empty in a text."""
        self._is_at_start = True
        self._skips_newlines = False

    def feed(self, text: str) -> list[TextEvent]:
        self._held += text
        return list(self._pieces())

    def flush(self) -> list[TextEvent]:
        return list(self._released(len(self._held)))

    def _pieces(self) -> Iterator[TextEvent]:
        while True:
            if self._skips_newlines:
                self._held = self._held.lstrip("\n")
                self._skips_newlines = not self._held
            if self._is_at_start and not self._starts():
                return
            marker = self._closes or CALL_OPENS
            found = self._held.find(marker)
            if found < 0:
                if marker != CALL_CLOSES:
                    yield from self._released(len(self._held) - _overlap(self._held, marker))
                return
            yield from self._released(found)
            self._held = self._held[len(marker) :]
            self._skips_newlines = bool(self._closes) and self._closes != CALL_CLOSES
            self._closes = "" if self._closes else CALL_CLOSES

    def _starts(self) -> bool:
        begun = self._held.lstrip()
        for opens, closes in THOUGHT_MARKERS.items():
            if begun.startswith(opens):
                self._held, self._closes = begun[len(opens) :], closes
        self._is_at_start = not self._closes and any(
            opens.startswith(begun) for opens in THOUGHT_MARKERS
        )
        return not self._is_at_start

    def _released(self, length: int) -> Iterator[TextEvent]:
        text, self._held = self._held[:length], self._held[length:]
        if not text:
            return
        if not self._closes:
            yield TextDelta(text)
        elif self._closes == CALL_CLOSES:
            yield CallMade(arguments=text)
        else:
            yield ThoughtDelta(text)


def _overlap(text: str, marker: str) -> int:
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)
