"""One prompt of one session: a slash command, or rounds of the model in a cancellable task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from acp.helpers import update_available_commands, update_current_mode
from acp.schema import (
    AvailableCommand,
    AvailableCommandInput,
    AvailableCommandsUpdate,
    PromptResponse,
    SessionInfoUpdate,
    UnstructuredCommandInput,
)
from acp.schema import Usage as TokensUsed

from helexa_acp import updates
from helexa_acp.asking import Asker
from helexa_acp.compaction import NUM_PROTECTED_LAST
from helexa_acp.config import Config, parse_selector
from helexa_acp.editor import ClientPort
from helexa_acp.endpoints import Endpoints
from helexa_acp.errors import ConfigError, EndpointError
from helexa_acp.history import Part, Text, ToolResult, Usage
from helexa_acp.modes import Mode
from helexa_acp.rounds import CallRunner, TurnRunner
from helexa_acp.sessions import Phase, Session, Sessions, StopReason
from helexa_acp.tools import tools_for

PLAN_TOOLS = frozenset({"write_file", "edit_file"})
PLAN_MENU = """

The plan is written. How to continue:

1. `/mode default`, then "go on": carry it out, asking before each change
2. `/mode bypassPermissions`, then "go on": carry it out without asking
3. stay in plan mode, and name the changes you want
"""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    description: str
    run: Callable[[Prompter, str], Awaitable[str]]
    """Takes the text after the name; its result is shown to the user."""
    hint: str | None = None


async def show_help(prompter: Prompter, argument: str) -> str:
    return "\n".join(f"- `/{one.name}`: {one.description}" for one in COMMANDS)


async def clear(prompter: Prompter, argument: str) -> str:
    prompter.session.history.clear()
    prompter.session.elided_before = 0
    prompter.session.usage.last_total_tokens = 0
    return "The conversation is forgotten. Files stay as they are."


async def compact(prompter: Prompter, argument: str) -> str:
    session = prompter.session
    session.elided_before = max(len(session.history) - NUM_PROTECTED_LAST, 0)
    return "Long results and answers so far now go out in short. The session keeps them."


async def show_usage(prompter: Prompter, argument: str) -> str:
    session = prompter.session
    used = session.usage
    window = prompter.endpoints.context_window(session.selector) or "an unknown number of"
    lines = [
        f"- tokens in: {used.input_tokens}, of them cached: {used.cached_tokens}",
        f"- tokens out: {used.output_tokens}, of them thoughts: {used.thought_tokens}",
        f"- the context holds {used.last_total_tokens} of {window} tokens",
    ]
    return "\n".join(lines)


async def model(prompter: Prompter, argument: str) -> str:
    if argument:
        try:
            parse_selector(argument, prompter.config)
        except ConfigError as error:
            return str(error)
        await prompter.choose_model(argument)
    chosen = prompter.session.selector
    return f"The model is {chosen.model} at {chosen.endpoint.name}."


async def mode(prompter: Prompter, argument: str) -> str:
    if argument:
        known = {one.value.lower(): one for one in Mode}
        if argument.lower() not in known:
            return f"There is no mode {argument!r}; there are {', '.join(m.value for m in Mode)}."
        await prompter.choose_mode(known[argument.lower()])
    return f"The mode is {prompter.session.mode.value}."


async def show_tools(prompter: Prompter, argument: str) -> str:
    session = prompter.session
    tools = (*tools_for(prompter.config, session.mode), *await session.mcp.tools())
    failed = [f"- MCP server {name}: {why}" for name, why in session.mcp.failures.items()]
    return "\n".join(
        [*(f"- `{tool.spec.name}`: {tool.spec.description}" for tool in tools), *failed]
    )


COMMANDS = (
    Command("help", "Lists the commands.", show_help),
    Command("clear", "Forgets the conversation so far.", clear),
    Command("compact", "Sends long results and answers so far in short.", compact),
    Command("usage", "Shows how many tokens this session has taken.", show_usage),
    Command("model", "Shows or changes the model.", model, "MODEL or ENDPOINT:MODEL"),
    Command("mode", "Shows or changes the mode.", mode, " | ".join(one.value for one in Mode)),
    Command("tools", "Lists the tools that the model has.", show_tools),
)


def find_command(parts: tuple[Part, ...]) -> tuple[Command, str] | None:
    """The command that a prompt names; any other prompt goes to the model."""
    if len(parts) != 1 or not isinstance(parts[0], Text) or not parts[0].text.startswith("/"):
        return None
    name, _, argument = parts[0].text[1:].strip().partition(" ")
    found = next((one for one in COMMANDS if one.name == name), None)
    return None if found is None else (found, argument.strip())


def available_commands() -> AvailableCommandsUpdate:
    listed = [
        AvailableCommand(
            name=one.name,
            description=one.description,
            input=AvailableCommandInput(root=UnstructuredCommandInput(hint=one.hint))
            if one.hint
            else None,
        )
        for one in COMMANDS
    ]
    return update_available_commands(listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompter:
    config: Config
    endpoints: Endpoints
    sessions: Sessions
    data_dir: Path
    session: Session
    port: ClientPort

    async def prompt(self, parts: tuple[Part, ...]) -> PromptResponse:
        """Cancels the prompt before it, and waits until its work has ended. Raises BridgeError."""
        session = self.session
        self.sessions.cancel(session)
        asked = session.num_asked
        async with session.lock:
            if session.num_asked != asked or session.phase is Phase.CLOSED:
                return PromptResponse(stop_reason="cancelled")
            used = Usage()
            session.go(Phase.RUNNING)
            session.turn = asyncio.create_task(self._run(parts, used))
            try:
                reason = await self._outcome(session.turn)
            finally:
                session.turn = None
                session.go(Phase.IDLE)
        await self.port.update(
            SessionInfoUpdate(
                session_update="session_info_update",
                title=session.title,
                updated_at=session.updated_at,
            )
        )
        return PromptResponse(stop_reason=reason, usage=_tokens_used(used))

    async def choose_mode(self, mode: Mode) -> None:
        self.session.mode = mode
        if self.session.hold is not None:
            self.sessions.save(self.session)
        await self.port.update(update_current_mode(mode.value))

    async def choose_model(self, model_id: str) -> None:
        """Raises ConfigError."""
        self.session.selector = parse_selector(model_id, self.config)
        await self.port.update(updates.options_changed(self.config, self.endpoints, self.session))

    async def _outcome(self, turn: asyncio.Task[StopReason]) -> StopReason:
        """This task may be cancelled itself, when the agent exits."""
        try:
            await asyncio.wait([turn])
        except asyncio.CancelledError:
            turn.cancel()
            await asyncio.wait([turn])
            raise
        if turn.cancelled() or self.session.phase is Phase.CANCELLING:
            return "cancelled"
        return turn.result()

    async def _run(self, parts: tuple[Part, ...], used: Usage) -> StopReason:
        if command := find_command(parts):
            return await self._run_command(*command)
        runner = TurnRunner(
            asker=Asker(
                config=self.config,
                endpoints=self.endpoints,
                data_dir=self.data_dir,
                session=self.session,
                port=self.port,
            ),
            calls=CallRunner(
                config=self.config, data_dir=self.data_dir, session=self.session, port=self.port
            ),
            save=self.sessions.save,
        )
        num_before = len(self.session.history)
        try:
            reason = await runner.run(parts, used)
            if reason == "end_turn" and self._has_planned(num_before):
                await self.port.update(updates.message(Text(PLAN_MENU)))
            return reason
        except EndpointError as error:
            endpoint = self.session.selector.endpoint
            message = f"{endpoint.name} ({endpoint.base_url}): {error}"
            log.warning(
                "session %s: the prompt failed (status %s, code %s): %s",
                *(self.session.session_id, error.status, error.code, message),
            )
            raise EndpointError(message, status=error.status, code=error.code) from error

    def _has_planned(self, num_before: int) -> bool:
        """Whether this prompt wrote a plan: nothing else is written in plan mode."""
        return self.session.mode is Mode.PLAN and any(
            isinstance(turn, ToolResult) and turn.name in PLAN_TOOLS and not turn.is_error
            for turn in self.session.history[num_before:]
        )

    async def _run_command(self, command: Command, argument: str) -> StopReason:
        answer = await command.run(self, argument)
        await self.port.update(updates.message(Text(answer)))
        if self.session.hold is not None:
            self.sessions.save(self.session)
        return "end_turn"


def _tokens_used(used: Usage) -> TokensUsed:
    return TokensUsed(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.input_tokens + used.output_tokens,
        cached_read_tokens=used.cached_tokens,
        thought_tokens=used.thought_tokens,
    )
