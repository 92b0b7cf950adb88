"""The slash commands, which answer without the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from acp.helpers import update_current_mode
from acp.schema import AvailableCommandsUpdate

from helexa_acp import updates
from helexa_acp.config import parse_selector
from helexa_acp.errors import ConfigError
from helexa_acp.history import NUM_PROTECTED_LAST, Part, Text
from helexa_acp.sessions import Session
from helexa_acp.tools import tools_for
from helexa_acp.tools.base import Mode


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    description: str
    run: Callable[[Session, str], Awaitable[str]]
    """Takes the text after the name; its result is shown to the user. Raises ConfigError."""
    hint: str | None = None


async def show_help(session: Session, argument: str) -> str:
    return "\n".join(f"- `/{one.name}`: {one.description}" for one in COMMANDS)


async def clear(session: Session, argument: str) -> str:
    session.record.history.clear()
    session.record.elided_before = 0
    session.record.usage.last_total_tokens = 0
    return "The conversation is forgotten. Files stay as they are."


async def compact(session: Session, argument: str) -> str:
    session.record.elided_before = max(len(session.record.history) - NUM_PROTECTED_LAST, 0)
    return "Long results and answers so far now go out in short. The session keeps them."


async def show_usage(session: Session, argument: str) -> str:
    used = session.record.usage
    window = session.home.endpoints.context_window(session.selector) or "an unknown number of"
    lines = [
        f"- tokens in: {used.input_tokens}, of them cached: {used.cached_tokens}",
        f"- tokens out: {used.output_tokens}, of them thoughts: {used.thought_tokens}",
        f"- the context holds {used.last_total_tokens} of {window} tokens",
    ]
    return "\n".join(lines)


async def model(session: Session, argument: str) -> str:
    if argument:
        session.selector = parse_selector(argument, session.home.config)
        await session.editor.update(updates.options_changed(session))
    chosen = session.selector
    return f"The model is {chosen.model} at {chosen.endpoint.name}."


async def mode(session: Session, argument: str) -> str:
    if argument:
        await choose_mode(session, argument)
    return f"The mode is {session.record.mode.value}."


async def show_tools(session: Session, argument: str) -> str:
    theirs, failures = await session.mcp.tools()
    tools = (*tools_for(session.home.config, session.record.mode), *theirs.values())
    lines = [f"- `{tool.spec.name}`: {tool.spec.description}" for tool in tools]
    return "\n".join([*lines, *(f"- MCP server {one}: {why}" for one, why in failures.items())])


COMMANDS = (
    Command("help", "Lists the commands.", show_help),
    Command("clear", "Forgets the conversation so far.", clear),
    Command("compact", "Sends long results and answers so far in short.", compact),
    Command("usage", "Shows how many tokens this session has taken.", show_usage),
    Command("model", "Shows or changes the model.", model, "MODEL or ENDPOINT:MODEL"),
    Command("mode", "Shows or changes the mode.", mode, " | ".join(one.value for one in Mode)),
    Command("tools", "Lists the tools that the model has.", show_tools),
)


async def answer_command(session: Session, parts: tuple[Part, ...]) -> bool:
    """Whether the prompt is a command; any other goes to the model."""
    match parts:
        case (Text(text),) if text.startswith("/"):
            name, _, argument = text[1:].strip().partition(" ")
        case _:
            return False
    command = next((one for one in COMMANDS if one.name == name), None)
    if command is None:
        return False
    try:
        answer = await command.run(session, argument.strip())
    except ConfigError as error:
        answer = str(error)
    await session.editor.update(updates.message(answer))
    session.save_if_stored()
    return True


def available_commands() -> AvailableCommandsUpdate:
    listed = [
        {"name": one.name, "description": one.description, "input": one.hint and {"hint": one.hint}}
        for one in COMMANDS
    ]
    update = {"sessionUpdate": "available_commands_update", "availableCommands": listed}
    return AvailableCommandsUpdate.model_validate(update)


async def choose_mode(session: Session, written: str) -> None:
    """Raises ConfigError."""
    known = {one.value.lower(): one for one in Mode}
    if written.lower() not in known:
        names = ", ".join(one.value for one in Mode)
        raise ConfigError(f"There is no mode {written[:100]!r}; there are {names}.")
    session.record.mode = known[written.lower()]
    session.save_if_stored()
    await session.editor.update(update_current_mode(session.record.mode.value))
