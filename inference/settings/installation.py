"""Settings of the environment that ``serve`` makes, and of every process's log."""

from __future__ import annotations

from pathlib import Path

from inference.settings import kinds
from inference.settings.setting import Reader, Setting

START = frozenset({Reader.SERVE, Reader.NEURON, Reader.COMMANDS})
TORCH_CPU_INDEX_URL = "https://download.pytorch.org/whl/cpu"
"""The index of torch's own project, which has its builds for CPUs."""

LOG_FORMAT: Setting[str] = Setting(
    name="HELEXA_LOG_FORMAT",
    kind=kinds.Choice(("text", "json")),
    default="text",
    readers=frozenset(Reader) - {Reader.COMMANDS},
    doc="the log of every process: `text`, or `json` with an object a line",
)
LOG_LEVEL: Setting[kinds.LogLevel] = Setting(
    name="HELEXA_LOG_LEVEL",
    kind=kinds.LogLevels(),
    default=kinds.LogLevel(),
    default_words="info (`serve` itself: warning)",
    readers=frozenset(Reader) - {Reader.COMMANDS},
    doc="what every process logs, as `info,inference.neuron=debug`; "
    "see [Watching](monitoring.md#watching)",
)
TORCH_CPU_INDEX: Setting[str | None] = Setting(
    name="HELEXA_TORCH_CPU_INDEX",
    kind=kinds.UrlOrOff(),
    default=TORCH_CPU_INDEX_URL,
    reads_blank=True,
    readers=START,
    doc="where a host without an NVIDIA driver gets torch for CPUs; `off`: from where pip gets "
    "the rest",
)
REQUIRE_HASHES: Setting[bool] = Setting(
    name="HELEXA_REQUIRE_HASHES",
    kind=kinds.Flag(),
    default=True,
    readers=START,
    doc="1: `serve` and the units install the locked files alone; 0: what the package index has, "
    "for one that builds packages itself",
)
VENV: Setting[Path | None] = Setting(
    name="HELEXA_VENV",
    kind=kinds.FilePath(),
    default_words="`.venv`",
    readers=START,
    doc="where `serve` and `test` make their environment",
)
ENVIRONMENT_ATTEMPT: Setting[int] = Setting(
    name="HELEXA_ENVIRONMENT_ATTEMPT",
    kind=kinds.WholeNumber(0, 1000, "attempts"),
    default=0,
    is_internal=True,
    readers=START,
    doc="how often this start has executed itself again in the environment that it made",
)


URL: Setting[str | None] = Setting(
    name="HELEXA_URL",
    kind=kinds.Url(("http", "https"), "an address like http://gpu-box:31313"),
    default_words="this machine's",
    readers=frozenset({Reader.COMMANDS}),
    doc="the server that commands ask, instead of `--url`",
)
