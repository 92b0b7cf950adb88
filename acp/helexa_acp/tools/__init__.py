"""A tool: a name and a schema for the model, an action for permissions, and a function.

``prepare`` reads the arguments, the person may be asked, then ``run`` does it. The mode decides:

              read    write            execute   fetch   unknown (a server's tool)
default       yes     ask              ask       ask     ask
bypass        yes     yes              yes       yes     yes
plan          yes     plans only       no        ask     ask if it is declared read-only
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from helexa_acp.config import Config
from helexa_acp.editor import Editor
from helexa_acp.errors import ToolError
from helexa_acp.history import Part, Text
from helexa_acp.wire import ToolSpec

FNV_OFFSET, FNV_PRIME = 0x811C9DC5, 0x01000193
Kind = Literal["read", "edit", "search", "execute", "think", "fetch", "other"]
"""The editor's icon for it."""
Arguments = Mapping[str, Any]
WrittenPath = Annotated[str, Meta(description="Absolute, or from the working directory.")]
Parameters = TypeVar("Parameters")


class Mode(Enum):
    DEFAULT = "default"
    BYPASS = "bypassPermissions"
    PLAN = "plan"


MODE_NAMES = {
    Mode.DEFAULT: ("Default", "Asks before it writes a file or runs a command."),
    Mode.BYPASS: ("Bypass permissions", "Writes files and runs commands without asking."),
    Mode.PLAN: ("Plan", "Reads, and writes plans only; runs nothing."),
}


class Action(Enum):
    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    FETCH = "fetch"
    UNKNOWN = "unknown"
    UNKNOWN_READ = "unknown, declared read-only"


def must_ask(mode: Mode, action: Action, *, is_plan_file: bool = False) -> bool:
    """``is_plan_file``: writes only to the folder of plans, links resolved. Raises ToolError."""
    if mode is Mode.BYPASS or action is Action.READ:
        return False
    if mode is Mode.DEFAULT or action in (Action.FETCH, Action.UNKNOWN_READ):
        return True
    if action is not Action.WRITE:
        raise ToolError("in plan mode nothing is run")
    if not is_plan_file:
        raise ToolError("in plan mode only files in the folder of plans are written")
    return False


def absolute(written: str, cwd: Path) -> Path:
    """``~`` and ``$HOME`` are expanded, ``..`` is resolved."""
    if not written or "\0" in written:
        raise ToolError("the path is empty or holds a NUL character")
    home = str(Path.home())
    for prefix in ("~", "$HOME", "${HOME}"):
        if written == prefix or written.startswith(f"{prefix}/"):
            written = home + written[len(prefix) :]
            break
    return Path(os.path.normpath(cwd / written))


def resolved(path: Path) -> Path:
    """Raises ToolError for a loop of links."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise ToolError(f"{path} cannot be resolved: {error}") from None


def is_within(path: Path, folder: Path) -> bool:
    return resolved(path).is_relative_to(resolved(folder))


def plans_dir(data_dir: Path, cwd: Path) -> Path:
    """One folder for each working directory."""
    digest = FNV_OFFSET
    for byte in str(cwd).encode():  # http://www.isthe.com/chongo/tech/comp/fnv/
        digest = (digest ^ byte) * FNV_PRIME & 0xFFFFFFFF
    return data_dir / "plans" / f"{cwd.name or 'root'}-{digest:08x}"


@dataclass(frozen=True, slots=True)
class ToolContext:
    """``show`` updates the call's card in the editor: ACP's contents."""

    editor: Editor
    cwd: Path
    config: Config
    show: Callable[[list[Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """``shown`` is ACP's content for the editor; empty: ``parts``."""

    parts: tuple[Part, ...]
    is_error: bool = False
    shown: tuple[Any, ...] = ()


Run = Callable[[], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """``remembers`` names the permission for the whole session; ``remembered_as`` is its text for
    the person. ``run`` raises ToolError."""

    title: str
    run: Run
    paths: tuple[Path, ...] = ()
    shown: tuple[Any, ...] = ()
    remembers: str = ""
    remembered_as: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """``prepare`` may read, but changes nothing. It raises ToolError."""

    spec: ToolSpec
    kind: Kind
    action: Action
    prepare: Callable[[ToolContext, Arguments], Awaitable[Prepared]]


def tool(
    name: str,
    kind: Kind,
    action: Action,
    parameters: type[Parameters],
    prepare: Callable[[ToolContext, Parameters], Awaitable[Prepared]],
) -> Tool:
    """The docstring of ``parameters``, a Struct, is the model's description."""

    async def prepare_checked(context: ToolContext, arguments: Arguments) -> Prepared:
        given = {key: value for key, value in arguments.items() if value is not None}
        try:
            read = msgspec.convert(given, parameters, strict=False)
        except msgspec.ValidationError as error:
            raise ToolError(f"the arguments are wrong: {error}") from None
        return await prepare(context, read)

    description = " ".join((parameters.__doc__ or "").split())
    spec = ToolSpec(name=name, description=description, parameters=_schema(parameters))
    return Tool(spec, kind, action, prepare_checked)


def _schema(parameters: type) -> dict[str, Any]:
    """Plain: some servers read no references, and turn defaults into values."""
    _, definitions = msgspec.json.schema_components([parameters])

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(one) for one in value]
        if not isinstance(value, dict):
            return value
        if reference := value.get("$ref"):
            return plain(definitions[reference.rpartition("/")[2]])
        dropped = ("title", "default") if "type" in value else ()
        return {key: plain(one) for key, one in value.items() if key not in dropped}

    found: dict[str, Any] = plain(definitions[parameters.__name__])
    del found["description"]
    return found


def text_outcome(text: str, *shown: Any, is_error: bool = False) -> Outcome:
    return Outcome((Text(text),), is_error, shown)
