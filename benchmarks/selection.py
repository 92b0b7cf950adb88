"""Which subjects and rows a run of scripts/bench measures: its command line's choice, checked."""

from __future__ import annotations

import argparse
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.run import Measurement, measurements
from benchmarks.vllm_interpreter import default_interpreter

READING_A_GGUF = ("transformers", "accelerate")
"""transformers dequantises a GGUF with accelerate alone."""
IMPORTABLE_PEERS = {
    "llama_cpp": ("llama_cpp",),
    "transformers_generate": READING_A_GGUF,
    "transformers_continuous": READING_A_GGUF,
}
"""Subject kind -> the modules that must be importable for it."""
PACKAGES = {"llama_cpp": "llama-cpp-python"}
"""Module -> what pip calls it, where that differs."""

KINDS = ("helexa_engine", "helexa_http", *IMPORTABLE_PEERS, "vllm_cpu")
"""The kinds of subjects in the order of the report's columns; ratios are to the first one."""

BOOKKEEPING, MASKS, ENCODING = "bookkeeping", "masks", "encoding"


@dataclass(frozen=True, slots=True)
class Selection:
    """``missing`` has why a wanted subject is not measured; ``own_rows`` are those that have no
    peer."""

    kinds: list[str]
    missing: dict[str, str]
    rows: list[Measurement]
    own_rows: list[str]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subjects", nargs="+", default=KINDS, choices=KINDS, metavar="SUBJECT")
    parser.add_argument("--skip", nargs="*", default=[], choices=KINDS, metavar="SUBJECT")
    parser.add_argument("--no-http", action="store_true", help="the engine only, no server")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="ROW", help="rows that begin so: decode, memory"
    )
    parser.add_argument(
        "--vllm-python", type=Path, default=default_interpreter(), help="has vLLM's CPU build"
    )


def select(arguments: argparse.Namespace) -> Selection:
    """Raises ``ValueError`` where ``--only`` names no row."""
    beginnings = tuple(arguments.only)
    rows = [row for row in measurements() if row.name.startswith(beginnings)]
    own_rows = [row for row in (BOOKKEEPING, MASKS, ENCODING) if row.startswith(beginnings)]
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in [*own_rows, *(r.name for r in rows)]):
            raise ValueError(f"no row begins with {beginning!r}")
    skipped = {*arguments.skip, *(["helexa_http"] if arguments.no_http else [])}
    wanted = [kind for kind in KINDS if kind in arguments.subjects and kind not in skipped]
    if not rows:
        wanted = []
    missing = {kind: why for kind in wanted if (why := _why_missing(kind, arguments.vllm_python))}
    return Selection([kind for kind in wanted if kind not in missing], missing, rows, own_rows)


def _why_missing(kind: str, vllm_python: Path | None) -> str | None:
    if kind == "vllm_cpu":
        if vllm_python is not None and os.access(vllm_python, os.X_OK):
            return None
        return "no interpreter with vLLM: python -m benchmarks.vllm_interpreter makes one"
    missing = [
        PACKAGES.get(module, module)
        for module in IMPORTABLE_PEERS.get(kind, ())
        if importlib.util.find_spec(module) is None
    ]
    return f"pip install {' '.join(missing)} brings what it needs" if missing else None
