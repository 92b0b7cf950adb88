"""``python -m benchmarks.request_path``: the files that one streamed chat passes, in order.

    client's bytes ─▶ gateway ─▶ Redis ─▶ neuron ─▶ engine process ─▶ neuron ─▶ Redis ─▶ gateway

The gateway's server and the neuron run in this process, the engine in its own, with a private Redis
and the default model. ``sys.setprofile`` sees each call of a function of this repository. Several
chats are traced after one that warms everything up; a file is on the way when each of them passed
it, so what a timer does meanwhile is left out. Not traced: the database (the catalogue, keys and
the ledger are in memory here), Celery's delivery of the ring, and the sandbox's workers.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import threading
from pathlib import Path

from benchmarks.request_path.recorder import EngineRecorder, Files
from helexa_site.bootstrap.suite import MODEL_CACHE_DIR

COLUMNS = 118


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", action="store_true", help="print each file's functions")
    parser.add_argument("--engine", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fd", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine is not None:
        return _run_engine(options.engine, options.fd)
    from benchmarks.request_path.trace import trace

    found = trace()
    if options.functions:
        print("\n".join(_functions(found)))
    print("\n".join(by_room(found)))
    return 0


def _run_engine(file: Path, fd: str) -> int:
    """The engine's process, which writes what each frame from the neuron led to."""
    # Where the suite keeps the model and its compiled decoder.
    os.environ |= {"HELEXA_DATA_DIR": str(MODEL_CACHE_DIR.parent), "HELEXA_ENGINE_THREADS": "1"}

    from inference.engine.faults.exit_codes import EngineExit
    from inference.engine.serving import process
    from inference.engine.serving.messenger import Messenger
    from inference.engine.serving.process import Served

    recorder, run = EngineRecorder(file), process.run

    def run_recorded(served: Served, messenger: Messenger) -> EngineExit:
        sys.setprofile(recorder.called)  # not while it loads, which would take minutes
        try:
            return run(served, messenger)
        finally:
            sys.setprofile(None)

    process.run = run_recorded
    threading.setprofile(recorder.called)
    return process.main(["--fd", fd])


def by_room(found: dict[str, Files]) -> list[str]:
    """A line for each folder, in the order in which the chat comes to it, with its files."""
    lines = []
    for process, files in found.items():
        rooms: dict[str, list[str]] = {}
        for file in files:
            room, _, name = file.rpartition("/")
            rooms.setdefault(room, []).append(name.removesuffix(".py"))
        lines.append(f"{process}: {len(files)} files")
        for room, names in rooms.items():
            line = f"{room}: {', '.join(names)}"
            lines += textwrap.wrap(line, COLUMNS, initial_indent="  ", subsequent_indent="      ")
    lines.append(f"{len({file for files in found.values() for file in files})} files")
    return lines


def _functions(found: dict[str, Files]) -> list[str]:
    return [
        f"{process} {file}: {', '.join(names)}"
        for process, files in found.items()
        for file, names in files.items()
    ]


if __name__ == "__main__":
    raise SystemExit(main())
