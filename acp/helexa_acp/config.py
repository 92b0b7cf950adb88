"""Settings of the configuration file and the environment, and the names of models.

HELEXA_ACP_CONFIG_PATH, else $XDG_CONFIG_HOME/helexa-acp/config.toml, else ~/.config/...
without a file: one endpoint, ``default``, from HELEXA_ACP_BASE_URL and its like
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from helexa_acp.errors import ConfigError

WireApi = Literal["openai-chat", "openai-responses", "anthropic-messages"]
ToolCalling = Literal["auto", "native", "prompt"]
Count = Annotated[int, Meta(ge=1)]
DEFAULT_BASE_URL = "http://127.0.0.1:31313/v1"
USUAL_MODEL = "helexa/large"


class Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``resolved`` reads ``api_key_env`` into ``api_key``."""

    name: Annotated[str, Meta(pattern="^[^:]+$")]
    base_url: Annotated[str, Meta(pattern="^https?://")]
    """Including ``/v1``, without a final slash."""
    wire_api: WireApi = "openai-chat"
    default_model: str | None = None
    api_key: str | None = None
    api_key_env: str | None = None
    max_tokens: Count | None = None
    context_window: Count | None = None
    tool_calling: ToolCalling = "auto"
    reasoning_effort: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {self.base_url!r}, {self.wire_api!r})"

    def resolved(self, environ: Mapping[str, str]) -> Endpoint:
        key = self.api_key
        if not key and self.api_key_env:
            key = environ.get(self.api_key_env)
            if not key:
                raise ConfigError(
                    f"the variable {self.api_key_env}, the api_key_env of {self.name}, is unset."
                )
        return replace(
            self,
            base_url=self.base_url.rstrip("/"),
            api_key=key or None,
            default_model=self.default_model or None,
            reasoning_effort=self.reasoning_effort or None,
        )


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    endpoints: Annotated[tuple[Endpoint, ...], Meta(min_length=1)]
    default_endpoint: str | None = None
    system_prompt_path: str | None = None
    fetch_hosts: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    bash_timeout_s: Annotated[float, Meta(gt=0, lt=1e9)] = 600.0

    def endpoint(self, name: str) -> Endpoint | None:
        return next((one for one in self.endpoints if one.name == name), None)

    @property
    def default(self) -> Endpoint:
        return self.endpoint(self.default_endpoint or "") or self.endpoints[0]

    @property
    def system_prompt(self) -> str | None:
        """Raises ConfigError."""
        if not self.system_prompt_path:
            return None
        try:
            return Path(self.system_prompt_path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            path = self.system_prompt_path
            raise ConfigError(f"system_prompt_path {path} cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class Selector:
    endpoint: Endpoint
    model: str

    def picker_id(self, config: Config) -> str:
        """Prefixed only where there is more than one endpoint."""
        return f"{self.endpoint.name}:{self.model}" if len(config.endpoints) > 1 else self.model


def config_path(environ: Mapping[str, str]) -> Path:
    if named := environ.get("HELEXA_ACP_CONFIG_PATH"):
        return Path(named).expanduser()
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "helexa-acp" / "config.toml"


def data_dir(environ: Mapping[str, str]) -> Path:
    return _xdg(environ, "XDG_DATA_HOME", ".local/share") / "helexa-acp"


def _xdg(environ: Mapping[str, str], name: str, usual: str) -> Path:
    """Relative paths in these variables count as unset, as their specification requires."""
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
    endpoint = {
        "name": "default",
        "base_url": environ.get("HELEXA_ACP_BASE_URL") or DEFAULT_BASE_URL,
        "default_model": environ.get("HELEXA_ACP_MODEL"),
        "api_key": environ.get("HELEXA_ACP_API_KEY"),
        "max_tokens": _whole_number(environ, "HELEXA_ACP_MAX_TOKENS"),
        "context_window": _whole_number(environ, "HELEXA_ACP_CONTEXT_WINDOW"),
    }
    prompt_path = environ.get("HELEXA_ACP_SYSTEM_PROMPT_PATH")
    return from_table({"endpoints": [endpoint], "system_prompt_path": prompt_path}, environ)


def from_table(table: Mapping[str, Any], environ: Mapping[str, str]) -> Config:
    try:
        read = msgspec.convert(table, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from None
    config = replace(
        read,
        endpoints=tuple(endpoint.resolved(environ) for endpoint in read.endpoints),
        fetch_hosts=tuple(host.lower() for host in read.fetch_hosts),
    )
    names = [endpoint.name for endpoint in config.endpoints]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two endpoints are named {twice!r}.")
    if config.default_endpoint and config.default_endpoint not in names:
        known = ", ".join(names)
        raise ConfigError(f"default_endpoint {config.default_endpoint!r} is not one of {known}.")
    _ = config.system_prompt  # readable
    return config


def _whole_number(environ: Mapping[str, str], name: str) -> int | None:
    written = environ.get(name)
    if not written:
        return None
    if not written.isdecimal():
        raise ConfigError(f"{name} must be a whole number.")
    return int(written)


def parse_selector(written: str, config: Config) -> Selector:
    """A model's own name may contain colons: a prefix before the first is an endpoint only where
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
    return Selector(config.default, written)
