"""The configuration file's and the environment's settings, checked. Pure but for reading one file.

HELEXA_ACP_CONFIG_PATH, else $XDG_CONFIG_HOME/helexa-acp/config.toml, else ~/.config/...
without a file: one endpoint, ``default``, from HELEXA_ACP_BASE_URL and its like
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from helexa_acp.errors import ConfigError

WireApi = Literal["openai-chat", "openai-responses", "anthropic-messages"]
ToolCalling = Literal["auto", "native", "prompt"]
DEFAULT_BASE_URL = "http://127.0.0.1:31313/v1"
USUAL_MODEL = "helexa/large"
"""The model of a prompt where the user named none, if the endpoint has it."""
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    name: str
    base_url: str
    """Including ``/v1``, without a slash at its end."""
    wire_api: WireApi = "openai-chat"
    default_model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_tokens: int | None = None
    context_window: int | None = None
    tool_calling: ToolCalling = "auto"
    reasoning_effort: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    endpoints: tuple[Endpoint, ...]
    default_endpoint: Endpoint
    system_prompt: str | None = None
    fetch_hosts: tuple[str, ...] = ()
    """Hosts that the fetch tool may ask; none: there is no fetch tool."""
    bash_timeout_s: float = 600.0

    def endpoint(self, name: str) -> Endpoint | None:
        return next((one for one in self.endpoints if one.name == name), None)


def config_path(environ: Mapping[str, str]) -> Path:
    if named := environ.get("HELEXA_ACP_CONFIG_PATH"):
        return Path(named).expanduser()
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "helexa-acp" / "config.toml"


def data_dir(environ: Mapping[str, str]) -> Path:
    """Sessions and plans are kept here."""
    return _xdg(environ, "XDG_DATA_HOME", ".local/share") / "helexa-acp"


def _xdg(environ: Mapping[str, str], name: str, usual: str) -> Path:
    """Relative paths in these variables count as unset, as their specification has it."""
    named = Path(environ.get(name) or ".")
    return named if named.is_absolute() else Path(environ.get("HOME") or Path.home()) / usual


def load_config(environ: Mapping[str, str]) -> Config:
    """Raises ConfigError, naming the key."""
    path = config_path(environ)
    try:
        written = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if environ.get("HELEXA_ACP_CONFIG_PATH"):
            raise ConfigError(f"{path}, named by HELEXA_ACP_CONFIG_PATH, is not there.") from None
        return from_environment(environ)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    try:
        return from_table(tomllib.loads(written), environ)
    except (ConfigError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def from_environment(environ: Mapping[str, str]) -> Config:
    """The endpoint ``default``, which speaks openai-chat."""
    table = {
        "name": "default",
        "base_url": environ.get("HELEXA_ACP_BASE_URL") or DEFAULT_BASE_URL,
        "default_model": environ.get("HELEXA_ACP_MODEL") or None,
        "api_key": environ.get("HELEXA_ACP_API_KEY") or None,
        "max_tokens": _whole_number(environ, "HELEXA_ACP_MAX_TOKENS"),
        "context_window": _whole_number(environ, "HELEXA_ACP_CONTEXT_WINDOW"),
    }
    named = {key: value for key, value in table.items() if value is not None}
    prompt_path = environ.get("HELEXA_ACP_SYSTEM_PROMPT_PATH")
    return from_table(
        {"endpoints": [named]} | ({"system_prompt_path": prompt_path} if prompt_path else {}),
        environ,
    )


def from_table(table: Mapping[str, Any], environ: Mapping[str, str]) -> Config:
    reader = _Reader(table, "")
    written = reader.take("endpoints", list, default=[])
    endpoints = tuple(_endpoint(entry, i, environ) for i, entry in enumerate(written))
    if not endpoints:
        raise ConfigError("there must be at least one [[endpoints]] table.")
    names = [one.name for one in endpoints]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two endpoints are named {twice!r}.")
    default_name = reader.take("default_endpoint", str, default=names[0])
    if default_name not in names:
        raise ConfigError(f"default_endpoint {default_name!r} is not one of {', '.join(names)}.")
    timeout_s = reader.take("bash_timeout_s", (int, float), default=600)
    if not 0 < timeout_s < float("inf"):
        raise ConfigError("bash_timeout_s must be over 0.")
    hosts = reader.take("fetch_hosts", list, default=[])
    if not all(isinstance(host, str) and host for host in hosts):
        raise ConfigError("fetch_hosts must be a list of host names.")
    config = Config(
        endpoints=endpoints,
        default_endpoint=endpoints[names.index(default_name)],
        system_prompt=_system_prompt(reader.take("system_prompt_path", str, default=None)),
        fetch_hosts=tuple(host.lower() for host in hosts),
        bash_timeout_s=float(timeout_s),
    )
    reader.refuse_the_rest()
    return config


def _endpoint(entry: Any, index: int, environ: Mapping[str, str]) -> Endpoint:
    if not isinstance(entry, dict):
        raise ConfigError(f"endpoints[{index}] must be a table.")
    reader = _Reader(entry, f"endpoints[{index}].")
    name = reader.take("name", str)
    if not name or ":" in name:
        raise ConfigError(f"endpoints[{index}].name must not be empty or hold a ':'.")
    base_url = reader.take("base_url", str).rstrip("/")
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"endpoints[{index}].base_url must begin with http:// or https://.")
    endpoint = Endpoint(
        name=name,
        base_url=base_url,
        wire_api=reader.choose("wire_api", get_args(WireApi), "openai-chat"),
        default_model=reader.take("default_model", str, default=None) or None,
        api_key=_api_key(reader, environ),
        max_tokens=reader.count("max_tokens"),
        context_window=reader.count("context_window"),
        tool_calling=reader.choose("tool_calling", get_args(ToolCalling), "auto"),
        reasoning_effort=reader.take("reasoning_effort", str, default=None) or None,
    )
    reader.refuse_the_rest()
    return endpoint


def _api_key(reader: _Reader, environ: Mapping[str, str]) -> str | None:
    """``api_key`` itself, else what the variable that ``api_key_env`` names holds."""
    written: str | None = reader.take("api_key", str, default=None)
    variable: str | None = reader.take("api_key_env", str, default=None)
    if written or not variable:
        return written or None
    if not environ.get(variable):
        raise ConfigError(f"the variable {variable}, named by {reader.where}api_key_env, is unset.")
    return environ[variable]


def _system_prompt(path: str | None) -> str | None:
    if not path:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"system_prompt_path {path} cannot be read: {error}") from None


def _whole_number(environ: Mapping[str, str], name: str) -> int | None:
    written = environ.get(name)
    if not written:
        return None
    if not written.isdecimal():
        raise ConfigError(f"{name} must be a whole number.")
    return int(written)


class _Reader:
    """Reads the keys of one table, by name and type; a key left over is an error."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self._left = dict(table)
        self.where = where

    def take(self, key: str, kind: type | tuple[type, ...], **default: Any) -> Any:
        value = self._left.pop(key, default.get("default"))
        if value is None:
            if "default" in default:
                return None
            raise ConfigError(f"{self.where}{key} is missing.")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ConfigError(f"{self.where}{key} has the wrong type.")
        return value

    def choose(self, key: str, choices: tuple[Value, ...], usual: Value) -> Value:
        value = self._left.pop(key, usual)
        if value not in choices:
            known = ", ".join(map(str, choices))
            raise ConfigError(f"{self.where}{key} must be one of {known}.")
        return next(choice for choice in choices if choice == value)

    def count(self, key: str) -> int | None:
        value: int | None = self.take(key, int, default=None)
        if value is not None and value < 1:
            raise ConfigError(f"{self.where}{key} must be at least 1.")
        return value

    def refuse_the_rest(self) -> None:
        if self._left:
            raise ConfigError(f"{self.where}{min(self._left)} is not a setting.")


@dataclass(frozen=True, slots=True)
class Selector:
    endpoint: Endpoint
    model: str

    def picker_id(self, config: Config) -> str:
        """The id that clients see: prefixed only where there is more than one endpoint."""
        return f"{self.endpoint.name}:{self.model}" if len(config.endpoints) > 1 else self.model


def parse_selector(written: str, config: Config) -> Selector:
    """A model's own name may hold colons: what stands before the first is an endpoint only where
    one has that name. Raises ConfigError where several endpoints make that a guess."""
    before, colon, after = written.partition(":")
    if colon and before and after:
        if endpoint := config.endpoint(before):
            return Selector(endpoint, after)
        if len(config.endpoints) > 1:
            known = ", ".join(one.name for one in config.endpoints)
            raise ConfigError(f"No endpoint is named {before!r}; there are {known}.")
    if not written.strip() or (colon and not (before and after)):
        raise ConfigError(f"{written!r} names no model: write MODEL or ENDPOINT:MODEL.")
    return Selector(config.default_endpoint, written)
