"""The configuration file, the environment, and names of models; the package's own metadata, and the
process that editors start."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

import helexa_acp
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
from inference.settings.setting import LOG_LEVELS, LogLevel
from inference.version import VERSION
from tests.acp.bridge import PACKAGE_DIR, environment
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
    assert config_path(home) == tmp_path / ".config/helexa-acp/config.toml"
    assert data_dir(home) == tmp_path / ".local/share/helexa-acp"
    assert data_dir(home | {"XDG_DATA_HOME": "/data"}) == Path("/data/helexa-acp")
    assert data_dir(home | {"XDG_DATA_HOME": "not/absolute"}) == data_dir(home)
    assert config_path(home | {"HELEXA_ACP_CONFIG_PATH": "/etc/acp.toml"}) == Path("/etc/acp.toml")
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


def test_selectors_split_at_the_first_colon() -> None:
    """With one endpoint ids have no prefix, and a model's own name may hold a colon."""
    alone = from_table(one(), {})
    two = from_table({"endpoints": [*one()["endpoints"], *one(name="cloud")["endpoints"]]}, {})
    for config, written, chosen in (
        *((two, "cloud:qwen:30b", "cloud:qwen:30b"), (two, "plain", "home:plain")),
        *((alone, "qwen:30b", "qwen:30b"), (alone, "home:qwen", "qwen")),
    ):
        assert parse_selector(written, config).picker_id(config) == chosen
    for wrong in ("", "  ", "cloud:", ":model", "nowhere:model"):
        with pytest.raises(ConfigError):
            parse_selector(wrong, two)


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


REPOSITORY_DIR = PACKAGE_DIR.parent
GREETING = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'


def test_its_metadata_and_the_example() -> None:
    metadata = tomllib.loads((PACKAGE_DIR / "pyproject.toml").read_text())
    files = ("requirements-dev.txt", "requirements-gateway.txt")
    pinned = [line for name in files for line in (REPOSITORY_DIR / name).read_text().splitlines()]
    assert set(metadata["project"]["dependencies"]) <= set(pinned), "it needs what is tested"
    folders = {path.parent for path in (PACKAGE_DIR / "helexa_acp").rglob("*.py")}
    names = {".".join(folder.relative_to(PACKAGE_DIR).parts) for folder in folders}
    assert set(metadata["tool"]["setuptools"]["packages"]) == names
    assert metadata["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "helexa_acp.__version__"
    }
    assert helexa_acp.__version__ == VERSION
    example = tomllib.loads((PACKAGE_DIR / "helexa-acp.example.toml").read_text())
    keys = {f"{name}_API_KEY": "k" for name in ("HELEXA", "OPENAI", "ANTHROPIC", "OPENROUTER")}
    wire_apis = {endpoint.wire_api for endpoint in from_table(example, keys).endpoints}
    assert wire_apis == set(get_args(WireApi))


def started(
    folder: Path, *arguments: str, given: str | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "helexa_acp", *arguments],
        env=environment(folder, **settings),
        **({"stdin": subprocess.DEVNULL} if given is None else {"input": given}),
        capture_output=True,
        text=True,
        timeout=300,
    )


WRONG = "surprise = 1\n[[endpoints]]\nname = 'a'\nbase_url = 'http://a'\n"


@each_case(
    ("arguments", "settings", "exit_code", "expected"),
    [
        (["--help"], {}, 0, "usage: helexa-acp"),
        (["--version"], {}, 0, f"helexa-acp {helexa_acp.__version__}"),
        (["--modle", "x"], {}, 2, "it takes no '--modle'"),
        ([], {}, 1, "an editor starts this"),  # with nothing to read
        ([], {"HELEXA_LOG_LEVEL": "loud"}, 1, "helexa-acp: HELEXA_LOG_LEVEL='loud' is not one of"),
        ([], {"HELEXA_ACP_CONFIG_PATH": "~/wrong"}, 1, "wrong: Object contains unknown field"),
    ],
)
def test_it_prints_what_it_is_where_no_editor_starts_it(
    tmp_path: Path, arguments: list[str], settings: dict[str, str], exit_code: int, expected: str
) -> None:
    (tmp_path / "wrong").write_text(WRONG)
    done = started(tmp_path, *arguments, **settings)
    assert done.returncode == exit_code
    assert expected in (done.stdout if exit_code == 0 else done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_only_the_protocol_is_on_standard_output_until_a_signal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "helexa_acp"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    given = environment(tmp_path, HELEXA_ACP_LOG_FILE=str(log))
    with subprocess.Popen(command, env=given, text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"nonsense\n{GREETING}")
        process.stdin.flush()
        assert '"code":-32700' in process.stdout.readline()
        assert '"name":"helexa-acp"' in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert (*process.communicate(), process.returncode) == ("", "", 0)
    assert "a malformed message" in log.read_text()
    done = started(tmp_path, given="", HELEXA_ACP_LOG_FILE=str(tmp_path / "no" / "log"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "WARNING" in done.stderr and "cannot be written" in done.stderr
    done = started(tmp_path, given="nonsense\n", HELEXA_LOG_LEVEL="DEBUG,helexa_acp=error")
    assert "helexa_acp.transports" not in done.stderr, "the log obeys the level"


@pytest.mark.slow
@pytest.mark.limit_s(600)
def test_it_installs_and_starts(tmp_path: Path) -> None:
    """Needs a package registry."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    # A copy: the build leaves its work beside the sources.
    sources = shutil.copytree(PACKAGE_DIR, tmp_path / "acp")
    install = [str(venv / "bin" / "pip"), "install", "-q", str(sources)]
    subprocess.run(install, check=True, stdin=subprocess.DEVNULL)
    environ = environment(tmp_path)
    del environ["PYTHONPATH"]
    done = subprocess.run(
        [str(venv / "bin" / "helexa-acp")],
        env=environ,
        input=GREETING,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert '"name":"helexa-acp"' in done.stdout
