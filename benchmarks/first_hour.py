"""The first hour on a card: doctor, the tests marked gpu, loads of every kind of file, figures
beside the peers, sleep and wake, a kill in mid-step. Each part has at most eight minutes and keeps
its logs; a run resumes after the last finished part. Nothing is downloaded. --device cpu is a trial
run without a card, on tiny models.

FOLDER/state.json     how each part ended
FOLDER/logs/PART.N.out, .err     the output of its Nth run; none is ever overwritten
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from benchmarks.first_hour_checks import FACTS, free_bytes
from benchmarks.first_hour_parts import Host, Part, parts_of
from benchmarks.rounds import machine
from benchmarks.subject import REPOSITORY_DIR
from helexa_site.whole_file import write_whole
from inference.version import build_of_checkout

Outcome = Literal["passed", "failed", "timed out"]
END_TIMEOUT_S = 10.0
TABLE_WIDTH = 160
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    outcome: Outcome
    seconds: float
    summary: str
    log: str
    commit: str = ""


def read_state(folder: Path) -> dict[str, Result]:
    """Raises ``ValueError`` that names the file."""
    file = folder / "state.json"
    try:
        return {name: Result(**one) for name, one in json.loads(file.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is no state of a first hour: {error}") from error


def keep_state(folder: Path, results: Mapping[str, Result]) -> None:
    kept = {name: asdict(result) for name, result in results.items()}
    write_whole(folder / "state.json", json.dumps(kept, indent=2))


def next_log(folder: Path, part: Part) -> Path:
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", part.name)
    return logs / f"{name}.{1 + sum(1 for _ in logs.glob(f'{name}.*.out'))}"


def main(words: Sequence[str] | None = None) -> int:
    import torch

    arguments = _parser().parse_args(words)
    device = arguments.device
    folder = arguments.folder or REPOSITORY_DIR / "var" / "first-hour" / device.replace(":", "")
    try:
        if device != "cpu" and not torch.cuda.is_available():
            why = f"torch {torch.__version__} sees none (--device cpu: a trial)"
            raise ValueError(f"no CUDA device: {why}")
        parts, results = parts_of(_host(arguments)), read_state(folder)
        todo = open_parts(parts, results, only=arguments.only, again=arguments.again)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    code = 0 if arguments.list else _run(todo, results, folder, arguments.minutes)
    console = Console(width=max(TABLE_WIDTH, Console().width))
    console.print(table_of(parts, results, f"{machine()}; {folder}"), markup=False)
    wanted = [results.get(part.name) for part in parts if not part.left_out]
    return code or (0 if all(one and one.outcome == "passed" for one in wanted) else 1)


def open_parts(
    parts: Sequence[Part],
    results: Mapping[str, Result],
    *,
    only: Collection[str],
    again: Collection[str],
) -> list[Part]:
    """``again`` may hold ``failed``: all that have not passed. Raises ``ValueError``."""
    repeated = {*again} - {"failed"}
    if unknown := {*only, *repeated} - {part.name for part in parts}:
        raise ValueError(f"no part is called {', '.join(sorted(unknown))}: --list names them")
    if "failed" in again:
        repeated |= {name for name, one in results.items() if one.outcome != "passed"}
    return [
        part
        for part in parts
        if not part.left_out
        and (not only or part.name in only)
        and (part.name in repeated or part.name not in results)
    ]


def _run(
    todo: Sequence[Part], results: dict[str, Result], folder: Path, minutes: float | None
) -> int:
    console = Console(stderr=True)
    ends_s = None if minutes is None else time.monotonic() + 60 * minutes
    environment = os.environ | {
        "HELEXA_DATA_DIR": str(folder / "data"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    build = build_of_checkout(REPOSITORY_DIR)
    commit = f"{build.git_sha}{'-dirty' if build.git_dirty else ''}"
    for part in todo:
        if ends_s is not None and time.monotonic() + part.limit_s > ends_s:
            console.print(f"{part.name} might take longer than what is left: the next run has it")
            break
        console.print(f"{part.name} …", markup=False)
        try:
            result = run_part(part, next_log(folder, part), environment, commit)
        except KeyboardInterrupt:
            console.print(f"{part.name} was interrupted: the next run repeats it")
            return INTERRUPTED
        results[part.name] = result
        keep_state(folder, results)
        words = f"  {result.outcome} after {result.seconds:.0f} s: {result.summary}"
        console.print(words, markup=False, highlight=False)
    return 0


def run_part(part: Part, log: Path, environment: Mapping[str, str], commit: str) -> Result:
    """An interruption of the run ends the part's processes as well."""
    began_s = time.monotonic()
    out, err = log.with_name(f"{log.name}.out"), log.with_name(f"{log.name}.err")
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen(
            [sys.executable, *part.command],
            cwd=REPOSITORY_DIR,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=err_file,
            start_new_session=True,
        )
        try:
            outcome: Outcome = "passed" if process.wait(part.limit_s) == 0 else "failed"
        except subprocess.TimeoutExpired:
            outcome = "timed out"
        finally:
            _end_group(process)
    output, errors = out.read_text(errors="replace"), err.read_text(errors="replace")
    return Result(
        outcome=outcome,
        seconds=round(time.monotonic() - began_s, 1),
        summary=summary_of(output, errors, has_passed=outcome == "passed"),
        log=f"{log.parent.name}/{log.name}",
        commit=commit,
    )


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Engines are in sessions of their own and exit with the process that holds their socket."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
            # The leader has exited; others of its group get the second signal.
    process.wait()


def summary_of(output: str, errors: str, *, has_passed: bool) -> str:
    if output.startswith("{"):
        with contextlib.suppress(ValueError):
            return _bench_in_words(json.loads(output))
    said, complaint = _last_line(output), _last_line(errors)
    if said.startswith(FACTS):
        return said.removeprefix(FACTS)
    # pytest reports failures on its standard output.
    found = said if has_passed or " failed" in said else complaint
    return found or said or complaint or "no output: see the log"


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _bench_in_words(report: Mapping[str, Any]) -> str:
    """``decode, 1 at once: 800 tok/s, 1.40 of llama_cpp``"""
    words = []
    for name, row in report["measurements"].items():
        ours, peers = row["median"].get("helexa_engine"), dict(row["median"])
        peers.pop("helexa_engine", None)
        rates = ["unmeasured" if ours is None else f"{ours:,.0f} {row['unit']}"]
        rates += [f"{ours / rate:.2f} of {peer}" for peer, rate in peers.items() if ours and rate]
        words.append(f"{name}: {', '.join(rates)}")
    words += [f"{kind} is not measured: {why}" for kind, why in report["ended"].items()]
    return "; ".join(words)


def table_of(parts: Sequence[Part], results: Mapping[str, Result], title: str) -> Table:
    """Earlier findings of a part stay in the table where it is left out now."""
    table = Table(title=title, title_justify="left")
    for name in ("part", "result", "seconds", "found", "log"):
        table.add_column(name, no_wrap=name != "found")
    for part in parts:
        if (one := results.get(part.name)) is None:
            outcome = "left out" if part.left_out else "not run"
            table.add_row(part.name, outcome, "", part.left_out, "")
        else:
            table.add_row(part.name, one.outcome, f"{one.seconds:.0f}", one.summary, one.log)
    return table


def _host(arguments: argparse.Namespace) -> Host:
    data_dir = REPOSITORY_DIR / "var" / "bench"
    data_dir.mkdir(parents=True, exist_ok=True)
    has_card = arguments.device != "cpu"
    own_vllm = sys.executable if has_card and importlib.util.find_spec("vllm") else None
    return Host(
        device=arguments.device,
        card_bytes=free_bytes(arguments.device) if has_card else 0,
        disk_bytes=shutil.disk_usage(data_dir).free,
        data_dir=data_dir,
        num_threads=arguments.threads,
        rounds=arguments.rounds,
        vllm_python=arguments.vllm_python or own_vllm,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/first-hour-on-a-card", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--list", action="store_true", help="print the table and run nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="no other parts")
    parser.add_argument(
        "--again",
        nargs="+",
        default=[],
        metavar="PART",
        help="run these once more, though they have ended; 'failed': all that have not passed",
    )
    parser.add_argument(
        "--minutes", type=float, help="start no part that might end later than that from now"
    )
    parser.add_argument("--rounds", type=int, default=2, help="kept rounds of scripts/bench")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--vllm-python", help="an interpreter that has vLLM for this card")
    parser.add_argument("--folder", type=Path, help="of state and logs (var/first-hour/DEVICE)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
