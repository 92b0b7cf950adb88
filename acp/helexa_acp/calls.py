"""The model's tools, and its calls: which tool each means, the person's permission, and its result.

``understand`` repairs malformed calls: up to three superfluous closing braces are dropped, a name
inside the arguments is moved out, and a missing name is inferred where only one tool has the keys.
A text that could be two calls is none. The server's ``call_repairs`` does the same
(``tests/acp/test_repair.py`` compares them).
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from acp import update_tool_call
from acp.schema import PermissionOption, ToolCallUpdate

from helexa_acp import updates
from helexa_acp.config import Config
from helexa_acp.errors import ToolError
from helexa_acp.history import INVALID_CALL, Text, ToolCall, ToolResult, Turn, clean, failed
from helexa_acp.sessions import Session
from helexa_acp.tools import (
    Action,
    Mode,
    Outcome,
    Prepared,
    Tool,
    ToolContext,
    fetch,
    files,
    is_within,
    must_ask,
    programs,
    update_plan,
)
from helexa_acp.wire import CallMade, Json, ToolSpec

TOOLS: tuple[Tool, ...] = (
    files.READ_FILE,
    files.WRITE_FILE,
    files.EDIT_FILE,
    files.LIST_DIR,
    programs.SEARCH,
    programs.BASH,
    update_plan.UPDATE_PLAN,
)
ALLOW_ONCE, ALLOW_ALWAYS, REJECT_ONCE = "allow_once", "allow_always", "reject_once"
NOT_ALLOWED = "the user did not allow it; do not try it in another way"
MAX_SPARE_BRACES = 3
ARGUMENTS_KEYS = ("arguments", "parameters")
LABELS = frozenset({"type", "id"})
CALL_KEYS = frozenset({"name", "function", *ARGUMENTS_KEYS, *LABELS})
AMBIGUOUS_KEYS = frozenset({"path"})
Call = tuple[str, Json]
log = logging.getLogger(__name__)


def tools_for(config: Config, mode: Mode) -> tuple[Tool, ...]:
    tools = (*TOOLS, fetch.FETCH) if config.fetch_hosts else TOOLS
    if mode is Mode.PLAN:
        tools = tuple(tool for tool in tools if tool.action is not Action.EXECUTE)
    return tools


class NotUnderstood(ValueError):  # noqa: N818 - a finding, and its text a reason
    pass


def understand(name: str, written: str, specs: Sequence[ToolSpec]) -> Call:
    """``written``: JSON text of the arguments, possibly malformed; of the whole call where ``name``
    is empty. Raises NotUnderstood."""
    arguments, is_trimmed = _arguments(written)
    if any(spec.name == name for spec in specs):
        return name, arguments
    has_inner = bool(arguments.keys() & {*ARGUMENTS_KEYS, "function"})
    if not name and not has_inner and is_trimmed:
        raise NotUnderstood("one of its braces may be of an object whose beginning is missing")
    if name and not isinstance(arguments.get("name"), str):
        raise NotUnderstood(f"there is no tool named {name!r}")
    return _read(arguments, specs)


def _read(members: Json, specs: Sequence[ToolSpec]) -> Call:
    function = members.get("function")
    if isinstance(function, dict) and members.keys() - LABELS == {"function"}:
        return _read(function, specs)
    keys = [key for key in ARGUMENTS_KEYS if key in members]
    if not keys:
        return _nameless(members, specs)
    names = [members[key] for key in ("name", "function") if members.get(key)]
    inner = members[keys[0]]
    if isinstance(inner, str):
        inner, _ = _arguments(inner)
    if not isinstance(inner, dict | None):
        raise NotUnderstood("its arguments are not a JSON object")
    if len(keys) > 1 or len(names) > 1 or members.keys() - CALL_KEYS:
        raise NotUnderstood("there is more beside its arguments")
    if not names:
        return _nameless(inner or {}, specs)
    if not any(spec.name == names[0] for spec in specs):
        raise NotUnderstood(f"there is no tool named {names[0]!r}")
    return names[0], inner or {}


def _nameless(arguments: Json, specs: Sequence[ToolSpec]) -> Call:
    fitting = [spec.name for spec in specs if _fits(arguments, spec)]
    can_infer = len(fitting) == 1 and not arguments.keys() <= AMBIGUOUS_KEYS
    named = next((spec for spec in specs if spec.name == arguments.get("name")), None)
    rest = {key: value for key, value in arguments.items() if key != "name"}
    if named is not None:
        if len(rest) == 1 and next(iter(rest)) in ARGUMENTS_KEYS:
            return _read(arguments, specs)
        if not rest:
            return named.name, rest
        if _fits(rest, named):
            if can_infer:
                raise NotUnderstood("it may be two calls")
            return named.name, rest
    if not can_infer:
        raise NotUnderstood("it names no tool, and its arguments fit none or several")
    return fitting[0], arguments


def _fits(keys: Iterable[str], spec: ToolSpec) -> bool:
    required = spec.parameters.get("required")
    known = set(spec.parameters.get("properties") or ())
    return set(required if isinstance(required, list) else ()) <= set(keys) <= known


def _arguments(written: str) -> tuple[Json, bool]:
    """The members, and whether braces were dropped."""
    text = written.strip() or "{}"
    for num_dropped in range(MAX_SPARE_BRACES + 1):
        try:
            read = clean(json.loads(text, strict=False, object_pairs_hook=_unique))
        except (ValueError, RecursionError):
            if not text.endswith("}"):
                break
            text = text[:-1].rstrip()
            continue
        if not isinstance(read, dict):
            break
        return read, num_dropped > 0
    raise NotUnderstood("its arguments are not a JSON object")


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key stands twice")
    return members


def understood(
    made: list[CallMade], tools: dict[str, Tool], history: list[Turn]
) -> tuple[list[ToolCall], dict[str, ToolResult]]:
    """Each call has an id of its own; those that did not parse have a message by id."""
    taken = {turn.call_id for turn in history if isinstance(turn, ToolResult)}
    calls: list[ToolCall] = []
    misread: dict[str, ToolResult] = {}
    specs = [tool.spec for tool in tools.values()]
    for one in made:
        call_id = clean(one.call_id)
        if not call_id or call_id in taken:
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        taken.add(call_id)
        try:
            name, arguments = understand(one.name, one.arguments, specs)
            calls.append(ToolCall(call_id, name, arguments))
        except NotUnderstood as why:
            written = {"name": clean(one.name), "written": clean(one.arguments)}
            calls.append(ToolCall(call_id, INVALID_CALL, written))
            message = f"this call was not understood: {why}. Nothing was done."
            misread[call_id] = failed(calls[-1], message)
    return calls, misread


async def run_call(session: Session, call: ToolCall, tool: Tool) -> ToolResult:
    """Always returns a result, except for cancellation and a disconnected editor."""
    update = session.editor.update

    async def show(contents: Sequence[Any]) -> None:
        await update(update_tool_call(call.call_id, status="in_progress", content=contents))

    context = ToolContext(session.editor, session.cwd, session.home.config, show)
    try:
        prepared = await tool.prepare(context, call.arguments)
    except ToolError as error:
        result = failed(call, str(error))
        await update(updates.call_failed(call, tool, result))
        return result
    paths, shown = prepared.paths, prepared.shown
    await update(updates.call_started(call, tool, prepared.title, paths=paths, shown=shown))
    try:
        if _must_ask(session, tool, prepared):
            await _ask(session, call, tool, prepared)
        await update(update_tool_call(call.call_id, status="in_progress"))
        outcome = await prepared.run()
    except ToolError as error:
        outcome = Outcome(failed(call, str(error)).parts, is_error=True)
    except asyncio.CancelledError:
        # The task is being cancelled: the message must not wait for anything.
        await asyncio.shield(asyncio.ensure_future(update(_ended(call, Outcome((), True)))))
        raise
    except ConnectionError:
        raise
    except Exception:
        log.exception("tool %s failed", tool.spec.name)
        outcome = Outcome(failed(call, "the tool itself failed").parts, is_error=True)
    await update(_ended(call, outcome))
    parts = tuple(Text(clean(p.text)) if isinstance(p, Text) else p for p in outcome.parts)
    return ToolResult(call_id=call.call_id, name=call.name, parts=parts, is_error=outcome.is_error)


def _ended(call: ToolCall, outcome: Outcome) -> Any:
    status: updates.Status = "failed" if outcome.is_error else "completed"
    shown = list(outcome.shown) or updates.contents(outcome.parts) or None
    return update_tool_call(call.call_id, status=status, content=shown)


def _must_ask(session: Session, tool: Tool, prepared: Prepared) -> bool:
    is_plan_file = (
        tool.action is Action.WRITE
        and bool(prepared.paths)
        and all(is_within(path, session.plans_dir) for path in prepared.paths)
    )
    asks = must_ask(session.record.mode, tool.action, is_plan_file=is_plan_file)
    return asks and prepared.remembers not in session.allowed


async def _ask(session: Session, call: ToolCall, tool: Tool, prepared: Prepared) -> None:
    """The mode may have changed while the person was asked."""
    asked = ToolCallUpdate(
        tool_call_id=call.call_id,
        title=prepared.title,
        kind=tool.kind,
        status="pending",
        content=list(prepared.shown) or None,
        locations=updates.locations(prepared.paths),
        raw_input=call.arguments,
    )
    always = prepared.remembered_as
    options = [
        PermissionOption(option_id=ALLOW_ONCE, kind="allow_once", name="Allow once"),
        PermissionOption(option_id=ALLOW_ALWAYS, kind="allow_always", name=always),
        PermissionOption(option_id=REJECT_ONCE, kind="reject_once", name="Reject"),
    ]
    chosen = await session.editor.ask(asked, options)
    if chosen not in (ALLOW_ONCE, ALLOW_ALWAYS):
        raise ToolError(NOT_ALLOWED)
    if chosen == ALLOW_ALWAYS:
        session.allowed.add(prepared.remembers)
    _must_ask(session, tool, prepared)
