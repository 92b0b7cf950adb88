"""Slash commands: typed at the beginning of a prompt and answered without the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from acp.schema import (
    AvailableCommand,
    AvailableCommandInput,
    AvailableCommandsUpdate,
    UnstructuredCommandInput,
)

from helexa_acp.config import Config
from helexa_acp.conversation.compaction import NUM_PROTECTED_LAST
from helexa_acp.conversation.history import Part, Text
from helexa_acp.conversation.sessions import Session
from helexa_acp.endpoints import Endpoints
from helexa_acp.errors import ConfigError
from helexa_acp.rounds.modes import Mode
from helexa_acp.selectors import parse_selector
from helexa_acp.tools import tools_for


@dataclass(frozen=True, slots=True)
class CommandContext:
    """``choose_model`` and ``choose_mode`` change the session and notify the editor."""

    config: Config
    endpoints: Endpoints
    session: Session
    choose_model: Callable[[str], Awaitable[None]]
    choose_mode: Callable[[Mode], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    description: str
    run: Callable[[CommandContext, str], Awaitable[str]]
    """Given what follows the name; its result is shown to the user."""
    hint: str | None = None


async def show_help(context: CommandContext, argument: str) -> str:
    return "\n".join(f"- `/{one.name}`: {one.description}" for one in COMMANDS)


async def clear(context: CommandContext, argument: str) -> str:
    context.session.history.clear()
    context.session.elided_before = 0
    context.session.usage.last_total_tokens = 0
    return "The conversation is forgotten. Files stay as they are."


async def compact(context: CommandContext, argument: str) -> str:
    session = context.session
    session.elided_before = max(len(session.history) - NUM_PROTECTED_LAST, 0)
    return "Long results and answers so far now go out in short. The session keeps them."


async def show_usage(context: CommandContext, argument: str) -> str:
    session = context.session
    used = session.usage
    window = context.endpoints.context_window(session.selector) or "an unknown number of"
    lines = [
        f"- tokens in: {used.input_tokens}, of them cached: {used.cached_tokens}",
        f"- tokens out: {used.output_tokens}, of them thoughts: {used.thought_tokens}",
        f"- the context holds {used.last_total_tokens} of {window} tokens",
    ]
    return "\n".join(lines)


async def model(context: CommandContext, argument: str) -> str:
    if argument:
        try:
            parse_selector(argument, context.config)
        except ConfigError as error:
            return str(error)
        await context.choose_model(argument)
    chosen = context.session.selector
    return f"The model is {chosen.model} at {chosen.endpoint.name}."


async def mode(context: CommandContext, argument: str) -> str:
    if argument:
        known = {one.value.lower(): one for one in Mode}
        if argument.lower() not in known:
            return f"There is no mode {argument!r}; there are {', '.join(m.value for m in Mode)}."
        await context.choose_mode(known[argument.lower()])
    return f"The mode is {context.session.mode.value}."


async def show_tools(context: CommandContext, argument: str) -> str:
    session = context.session
    tools = (*tools_for(context.config, session.mode), *await session.mcp.tools())
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
    return AvailableCommandsUpdate(
        session_update="available_commands_update", available_commands=listed
    )
