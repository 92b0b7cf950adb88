"""Each client's settings for a server, and merging them into the client's own file, whose rest
stays unchanged. docs/clients.md shows the same settings; a test compares the two. Source: the
clients' own documentation."""

from __future__ import annotations

import difflib
import json
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ANY_KEY = "not-needed-on-loopback"
"""Clients require a key where the server needs none."""
PROVIDER = "helexa"
KEY_VARIABLE = "HELEXA_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    url: str
    """It has no path and no final slash."""
    model: str
    key: str = ANY_KEY
    context_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    path: str
    """Below the home folder."""
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    environment: Mapping[str, str] = field(default_factory=dict)
    file: SettingsFile | None = None
    is_file_alone_enough: bool = False
    instead_of_file: Mapping[str, str] = field(default_factory=dict)
    pasted_text: str = ""
    """For a file in a folder that only the client knows: ``pasted_into`` names it."""
    pasted_into: str = ""
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def claude(target: Target) -> ClientSettings:
    environment = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_API_KEY": target.key,
        "ANTHROPIC_MODEL": target.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if target.context_tokens is not None:
        environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.context_tokens)
    if target.output_tokens is not None:
        environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(target.output_tokens)
    return ClientSettings(
        environment=environment,
        is_file_alone_enough=True,
        file=SettingsFile(path=".claude/settings.json", values={"env": environment}),
        command=("claude",),
    )


def opencode(target: Target) -> ClientSettings:
    model: dict[str, Any] = {}
    if target.context_tokens is not None and target.output_tokens is not None:
        model["limit"] = {"context": target.context_tokens, "output": target.output_tokens}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": PROVIDER,
        "options": {"baseURL": target.openai_url, "apiKey": target.key},
        "models": {target.model: model},
    }
    values = {"provider": {PROVIDER: provider}, "model": f"{PROVIDER}/{target.model}"}
    return ClientSettings(
        instead_of_file={"OPENCODE_CONFIG_CONTENT": json.dumps(values)},
        file=SettingsFile(path=".config/opencode/opencode.json", values=values),
        command=("opencode",),
    )


def codex(target: Target) -> ClientSettings:
    provider = {
        "name": PROVIDER,
        "base_url": target.openai_url,
        "wire_api": "responses",
        "env_key": KEY_VARIABLE,
    }
    top: dict[str, str | int] = {
        "model": target.model,
        "model_provider": PROVIDER,
        "web_search": "disabled",
    }
    if target.context_tokens is not None:
        top["model_context_window"] = target.context_tokens
    flags = {**top, **{f"model_providers.{PROVIDER}.{name}": provider[name] for name in provider}}
    return ClientSettings(
        environment={KEY_VARIABLE: target.key},
        file=SettingsFile(
            path=".codex/config.toml", values={**top, "model_providers": {PROVIDER: provider}}
        ),
        command=(
            "codex",
            *(word for name in flags for word in ("-c", f"{name}={_toml(flags[name])}")),
        ),
        notes=(f"Codex reads the key from the variable {KEY_VARIABLE}.",),
    )


def qwen(target: Target) -> ClientSettings:
    return ClientSettings(
        environment={
            "OPENAI_BASE_URL": target.openai_url,
            "OPENAI_API_KEY": target.key,
            "OPENAI_MODEL": target.model,
        },
        command=("qwen", "--auth-type", "openai"),
    )


def aider(target: Target) -> ClientSettings:
    return ClientSettings(
        environment={"OPENAI_API_BASE": target.openai_url, "OPENAI_API_KEY": target.key},
        command=("aider", "--model", f"openai/{target.model}"),
    )


def llm(target: Target) -> ClientSettings:
    lines = [
        f"- model_id: {PROVIDER}",
        f"  model_name: {json.dumps(target.model)}",
        f"  api_base: {target.openai_url}",
        "  supports_schema: true",
        "  supports_tools: true",
    ]
    notes: tuple[str, ...] = ()
    if target.key != ANY_KEY:
        lines.append(f"  api_key_name: {PROVIDER}")
        notes = (f"Store the key: llm keys set {PROVIDER} --value {target.key}",)
    return ClientSettings(
        pasted_text="\n".join(lines) + "\n",
        pasted_into="extra-openai-models.yaml, beside the file that 'llm logs path' names",
        notes=(*notes, f"Ask it: llm -m {PROVIDER} 'What is the capital of France?'"),
    )


def open_webui(target: Target) -> ClientSettings:
    return ClientSettings(
        environment={
            "OPENAI_API_BASE_URL": target.openai_url,
            "OPENAI_API_KEY": target.key,
            "ENABLE_OLLAMA_API": "False",
        },
        command=("open-webui", "serve"),
        notes=("Where Open WebUI has started before: Admin, Settings, Connections.",),
    )


def zed(target: Target) -> ClientSettings:
    model: dict[str, Any] = {"name": target.model}
    if target.context_tokens is not None and target.output_tokens is not None:
        model |= {"max_tokens": target.context_tokens, "max_output_tokens": target.output_tokens}
    provider = {"api_url": target.openai_url, "available_models": [model]}
    values = {"language_models": {"openai_compatible": {PROVIDER: provider}}}
    return ClientSettings(
        environment={KEY_VARIABLE: target.key},
        file=SettingsFile(path=".config/zed/settings.json", values=values),
        notes=(f"Zed reads the key from the variable {KEY_VARIABLE}, or from its own settings.",),
    )


CLIENTS: Mapping[str, Callable[[Target], ClientSettings]] = {
    one.__name__.replace("_", "-"): one
    for one in (claude, opencode, codex, qwen, aider, llm, open_webui, zed)
}
NEED_TOOLS = frozenset({"claude", "opencode", "codex", "qwen"})
NEED_LIMITS = frozenset({"zed"})
"""Their settings must name the model's context."""


Card = Mapping[str, Any]
"""A model as ``GET /v1/models`` lists it."""


class NoModelError(Exception):
    pass


def chosen_card(cards: Sequence[Card], wanted: str | None, client: str) -> Card:
    """Prefers a loaded model if none is wanted. Raises ``NoModelError``."""
    writing = [card for card in cards if _writes(card)]
    usable = [card for card in writing if _lacks(card, client) is None]
    if wanted is None:
        if not writing:
            raise NoModelError("no model that writes text is offered yet: 'models add' offers one")
        if not usable:
            raise NoModelError(f"no model that is offered will do: {_lacks(writing[0], client)}")
        return min(usable, key=lambda card: not card.get("loaded"))
    card = _named(cards, wanted)
    if not _writes(card):
        raise NoModelError(f"{card['id']} writes no text")
    if lack := _lacks(card, client):
        others = ", ".join(str(one["id"]) for one in usable[:3])
        raise NoModelError(f"{lack}; {others} will do" if others else lack)
    return card


def _writes(card: Card) -> bool:
    """Capabilities that are unknown before a first load count as present."""
    return "chat" in (card.get("capabilities") or ["chat"])


def _named(cards: Sequence[Card], wanted: str) -> Card:
    by_name = {str(alias): card for card in cards for alias in card.get("aliases") or ()}
    by_name |= {str(card["id"]): card for card in cards}
    if wanted in by_name:
        return {**by_name[wanted], "id": wanted}
    near = difflib.get_close_matches(wanted, by_name, n=2)
    hint = f"; there is {' and '.join(near)}" if near else ""
    raise NoModelError(f"no model {wanted} is offered{hint}")


def _lacks(card: Card, client: str) -> str | None:
    if client in NEED_TOOLS and card.get("tool_call") is False:
        return f"{client} sends tools, and the chat template of {card['id']} has no place for them"
    if client in NEED_LIMITS and not card.get("limit"):
        return (
            f"the settings of {client} name the model's context, and {card['id']} was never loaded"
        )
    return None


class UnmergeableError(Exception):
    """The message is the reason, after the file's path."""


def merged_json(text: str, values: Mapping[str, Any]) -> str:
    """Merges objects, replaces all else. Raises ``UnmergeableError``, also for comments."""
    try:
        found = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise UnmergeableError(f"it is no plain JSON ({error}), perhaps with comments") from error
    if not isinstance(found, dict):
        raise UnmergeableError("it is no JSON object")
    return json.dumps(_merged(found, values), indent=2, ensure_ascii=False) + "\n"


def _merged(found: Any, values: Any) -> Any:
    if not isinstance(found, Mapping) or not isinstance(values, Mapping):
        return values
    merged = {name: _merged(found.get(name), value) for name, value in values.items()}
    return {**found, **merged}


def merged_toml(text: str, values: Mapping[str, Any]) -> str:
    """New keys go above the text, new tables below it. Raises ``UnmergeableError``."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnmergeableError(f"it is no TOML ({error})") from error
    top = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    other = [name for name in top if name in found and found[name] != top[name]]
    if other:
        raise UnmergeableError(f"it sets {', '.join(other)} to something else")
    tables = []
    for group in (name for name in values if name not in top):
        for name, table in values[group].items():
            before = found.get(group, {}).get(name)
            if before is None:
                tables.append(f"[{group}.{name}]\n{_toml_lines(table)}")
            elif before != table:
                raise UnmergeableError(f"its table [{group}.{name}] has other values")
    new = {name: value for name, value in top.items() if name not in found}
    return "\n".join(filter(None, [_toml_lines(new), text.strip("\n"), *tables])) + "\n"


def _toml_lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name} = {_toml(value)}" for name, value in values.items())


def _toml(value: object) -> str:
    """JSON strings and whole numbers are valid TOML."""
    return json.dumps(value, ensure_ascii=False)


def settings_text(client: str, settings: ClientSettings) -> str:
    """A client without a file gets lines that a shell may ``eval``."""
    exports = [f"export {name}={shlex.quote(one)}" for name, one in settings.environment.items()]
    parts = ["\n".join(exports)]
    if settings.file is not None and not settings.is_file_alone_enough:
        parts.append(f"# ~/{settings.file.path}\n{merged(settings.file, '')}")
    if settings.pasted_text:
        parts.append(f"# {settings.pasted_into}\n{settings.pasted_text}")
    comments = [f"# {note}" for note in settings.notes]
    if settings.file is not None:
        comments.append(f"# --write merges this into ~/{settings.file.path}")
    elif settings.command:
        comments.append(f"# then: {shlex.join(settings.command)}")
    if settings.command:
        comments.append(f"# --run starts {client} with it")
    return "\n\n".join(part.strip("\n") for part in [*parts, "\n".join(comments)] if part)


def merged(file: SettingsFile, text: str) -> str:
    """``text``: the file's present content. Raises ``UnmergeableError``."""
    merge = merged_toml if file.path.endswith(".toml") else merged_json
    return merge(text, file.values)
