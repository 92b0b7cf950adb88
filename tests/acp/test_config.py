"""The configuration file, the environment, and names of models."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from helexa_acp.__main__ import read_levels
from helexa_acp.config import (
    WireApi,
    config_path,
    data_dir,
    from_table,
    load_config,
    parse_selector,
)
from helexa_acp.errors import ConfigError
from inference.settings.kinds import LOG_LEVELS, LogLevel
from tests.cases import each_case

TWO = """
default_endpoint = "cloud"
system_prompt_path = "{prompt}"
fetch_hosts = ["docs.python.org", "*.Example.org"]
bash_timeout_s = 30

[[endpoints]]
name = "home"
base_url = "http://127.0.0.1:31313/v1/"
wire_api = "openai-responses"
default_model = "qwen:30b"
max_tokens = 4096
context_window = 32768

[[endpoints]]
name = "cloud"
base_url = "https://api.example.com/v1"
wire_api = "anthropic-messages"
api_key_env = "CLOUD_KEY"
tool_calling = "prompt"
reasoning_effort = "low"
"""


def one(**more: Any) -> dict[str, Any]:
    return {"endpoints": [{"name": "home", "base_url": "http://h/v1"} | more]}


def test_a_file_with_two_endpoints(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.md"
    prompt.write_text("Be terse.")
    path = tmp_path / "helexa-acp" / "config.toml"
    path.parent.mkdir()
    path.write_text(TWO.format(prompt=prompt))
    config = load_config({"XDG_CONFIG_HOME": str(tmp_path), "CLOUD_KEY": "secret"})
    home, cloud = config.endpoints
    assert config.default is cloud
    assert config.system_prompt == "Be terse."
    assert config.fetch_hosts == ("docs.python.org", "*.example.org")
    assert config.bash_timeout_s == 30.0
    assert (home.base_url, home.wire_api) == ("http://127.0.0.1:31313/v1", "openai-responses")
    assert (home.default_model, home.max_tokens, home.context_window) == ("qwen:30b", 4096, 32768)
    assert (cloud.api_key, cloud.tool_calling) == ("secret", "prompt")
    assert cloud.reasoning_effort == "low"
    assert "secret" not in repr(config)


def test_the_environment_alone(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.md"
    prompt.write_text("Be terse.")
    home = {"HOME": str(tmp_path)}
    (endpoint,) = load_config(home).endpoints
    assert (endpoint.name, endpoint.wire_api) == ("default", "openai-chat")
    assert endpoint.base_url == "http://127.0.0.1:31313/v1"
    assert (endpoint.default_model, endpoint.api_key) == (None, None)
    settings = {
        "HELEXA_ACP_BASE_URL": "http://box:31313/v1",
        "HELEXA_ACP_MODEL": "small",
        "HELEXA_ACP_API_KEY": "hx-1",
        "HELEXA_ACP_MAX_TOKENS": "100",
        "HELEXA_ACP_CONTEXT_WINDOW": "8192",
        "HELEXA_ACP_SYSTEM_PROMPT_PATH": str(prompt),
    }
    config = load_config(home | settings)
    (endpoint,) = config.endpoints
    assert (endpoint.base_url, endpoint.default_model) == ("http://box:31313/v1", "small")
    assert (endpoint.api_key, endpoint.max_tokens, endpoint.context_window) == ("hx-1", 100, 8192)
    assert config.system_prompt == "Be terse."


def test_where_things_are() -> None:
    home = {"HOME": "/home/u"}
    assert config_path(home) == Path("/home/u/.config/helexa-acp/config.toml")
    assert data_dir(home) == Path("/home/u/.local/share/helexa-acp")
    assert data_dir(home | {"XDG_DATA_HOME": "/data"}) == Path("/data/helexa-acp")
    assert data_dir(home | {"XDG_DATA_HOME": "not/absolute"}) == data_dir(home)
    assert config_path(home | {"HELEXA_ACP_CONFIG_PATH": "/etc/acp.toml"}) == Path("/etc/acp.toml")


@each_case(
    ("table", "message"),
    [
        ({}, "missing required field `endpoints`"),
        ({"endpoints": []}, "length >= 1"),
        ({"endpoints": ["home"]}, "Expected `object`"),
        ({"endpoints": [{"base_url": "http://h"}]}, r"field `name` - at `\$.endpoints\[0\]`"),
        (one(name="a:b"), r"endpoints\[0\].name`"),
        (one(base_url="ftp://h"), "https\\?://"),
        (one(wire_api="grpc"), r"'grpc' - at `\$.endpoints\[0\].wire_api`"),
        (one(max_tokens=0), "`int` >= 1"),
        (one(temperature=1), "unknown field `temperature`"),
        (one(api_key_env="NOT_SET"), "NOT_SET"),
        (one() | {"default_endpoint": "other"}, "'other' is not one of home"),
        (one() | {"surprise": 1}, "unknown field `surprise`"),
        (one() | {"bash_timeout_s": -1}, "`float` > 0"),
        (one() | {"fetch_hosts": [1]}, r"fetch_hosts\[0\]"),
        (one() | {"system_prompt_path": "/not/there"}, "cannot be read"),
        ({"endpoints": one()["endpoints"] * 2}, "two endpoints"),
    ],
)
def test_mistakes_are_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_table(table, {})


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "acp.toml"
    path.write_text("endpoints = [")
    for settings, why in (
        ({"HELEXA_ACP_CONFIG_PATH": str(path)}, str(path)),
        ({"HELEXA_ACP_CONFIG_PATH": str(tmp_path / "none.toml")}, "is not there"),
        ({"HELEXA_ACP_CONFIG_PATH": str(tmp_path)}, "cannot be read"),
        ({"HOME": str(tmp_path), "HELEXA_ACP_MAX_TOKENS": "many"}, "HELEXA_ACP_MAX_TOKENS"),
    ):
        with pytest.raises(ConfigError, match=why):
            load_config(settings)


@each_case(
    ("written", "is_alone", "chosen"),
    [
        ("cloud:qwen:30b", False, "cloud:qwen:30b"),
        ("plain", False, "home:plain"),
        *((bad, False, None) for bad in ("", "  ", "cloud:", ":model", "nowhere:model")),
        ("qwen:30b", True, "qwen:30b"),
        ("home:qwen", True, "qwen"),
    ],
)
def test_selectors_split_at_the_first_colon(
    written: str, is_alone: bool, chosen: str | None
) -> None:
    """With one endpoint ids have no prefix, and a model's own name may hold a colon."""
    table = {"endpoints": [*one()["endpoints"], *one(name="cloud")["endpoints"]]}
    config = from_table(one() if is_alone else table, {})
    if chosen is None:
        with pytest.raises(ConfigError):
            parse_selector(written, config)
    else:
        assert parse_selector(written, config).picker_id(config) == chosen


def test_the_example_is_a_configuration() -> None:
    example = Path(__file__).parents[2] / "acp" / "helexa-acp.example.toml"
    keys = {f"{name}_API_KEY": "k" for name in ("HELEXA", "OPENAI", "ANTHROPIC", "OPENROUTER")}
    config = from_table(tomllib.loads(example.read_text()), keys)
    assert {endpoint.wire_api for endpoint in config.endpoints} == set(get_args(WireApi))


@each_case(
    "word",
    [
        *(" ", "info", "info,debug", "info,", "a.b=info", "debug, httpx = info", "=info", "1=info"),
        *("a=loud", "a=info,a=error", "a=info,a=INFO"),
    ],
)
def test_the_levels_are_read_as_the_server_reads_them(word: str) -> None:
    names = logging.getLevelNamesMapping()
    try:
        wanted = LOG_LEVELS.parse(word) if word.strip() else LogLevel()
    except ValueError:
        with pytest.raises(ConfigError):
            read_levels(word)
        return
    levels = {name: names[level.upper()] for name, level in wanted.by_logger}
    if wanted.default is not None:
        levels[""] = names[wanted.default.upper()]
    assert read_levels(word) == levels
