"""The original's ``bench.sqlite``, read as the columns of a run.

Its ``chat:<n>`` was served by prefix caches, and is ``chat:<n>:warm`` here; the rest keeps its id.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from metering.bench.errors import BenchFileError
from metering.bench.sweeps.probing import moment_of

MAGIC = b"SQLite format 3\x00"
SAME = """
target_name target_kind endpoint hostname driver_version cuda_version git_sha git_sha_long
package_version bench_version bench_sha model_id harness prompt_size_approx prompt_tokens_actual
max_tokens ttft_s decode_tps total_s completion_tokens error prefill_ms decode_ms prefill_tokens
vram_used_mb gpu_util_pct gpu_temp_c concurrency ttft_p95_s queue_wait_ms rejected swap_unload_ms
swap_load_ms artifact quality_score scorer
""".split()  # noqa: SIM905 - columns, as the original's table has them
LISTS = {
    "gpus_json": "gpus",
    "features_json": "features",
    "capabilities_json": "capabilities",
    "devices_json": "devices",
}
TEXTS = frozenset(SAME[:13]) | {"error", "artifact", "scorer"}


def is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_original(path: Path) -> Iterator[Mapping[str, Any]]:
    """Raises ``BenchFileError``."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            for row in database.execute("SELECT * FROM runs ORDER BY id"):
                yield _row(dict(row))
    except sqlite3.Error as error:
        raise BenchFileError(f"no database of helexa-bench: {error}") from error


def _row(original: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: original[name] for name in SAME if name in original and original[name] is not None
    }
    for name in TEXTS & row.keys():
        row[name] = str(row[name])
    for name, column in LISTS.items():
        row[column] = _list(original.get(name))
    timestamp = moment_of(original.get("ts"))
    if timestamp is None:
        raise BenchFileError(f"run {original.get('id')} has no moment: {original.get('ts')!r}")
    prefill_ms, tokens = original.get("prefill_ms"), original.get("prefill_tokens")
    if prefill_ms and tokens:
        row["prefill_tps"] = tokens / prefill_ms * 1000
    row |= {
        "ts": timestamp,
        "build_timestamp": moment_of(original.get("build_timestamp")),
        "git_dirty": bool(original.get("git_dirty")),
        "build": str(original.get("git_sha") or "external")[:100],
        "scenario_id": _scenario(str(original["scenario_id"])),
        "timing": "server" if original.get("decode_ms") else "client",
        "ok": bool(original.get("ok")),
    }
    return row


def _scenario(scenario: str) -> str:
    return f"{scenario}:warm" if scenario.startswith("chat:") else scenario


def _list(text: Any) -> list[Any]:
    try:
        value = json.loads(text) if text else []
    except (TypeError, ValueError):
        return []
    if not isinstance(value, list):
        return []
    return [one.get("name", one) if isinstance(one, dict) else one for one in value]
