"""How long a GGUF file takes until its first token, beside llama.cpp:
``python -m benchmarks.weights.load_time MODEL.gguf [--rounds 3] [--cold] [--threads N]``.

Every load is a process of its own, in alternating rounds, the first of which warms up and is not
kept. A child imports its libraries, then measures wall and processor time from the file's path to
the first token after a prompt of sixteen. ``--cold`` drops the file's pages from the page cache
before every load. Without llama-cpp-python helexa is measured alone.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.report import machine
from benchmarks.workload import DECODE_PROMPT_TOKENS, PromptMaker

CONTEXT_TOKENS = 4096
CHILD_TIMEOUT_S = 900


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    wall_s: float
    cpu_s: float
    peak_mib: float
    """The most that the process held, the file's pages included."""


def helexa(gguf: str, num_threads: int, data_dir: Path) -> Callable[[], None]:
    """Imports what it needs; the call loads the file and computes a token."""
    from inference.engine.engine import Engine
    from inference.engine.load.load_engine import configure_threads, load_engine
    from inference.protocol.engine import SubmitSequence
    from inference.protocol.load import LoadSpec
    from inference.protocol.sampling import SamplingParams

    os.environ["HELEXA_ENGINE_THREADS"] = str(num_threads)
    configure_threads()

    def first_token() -> None:
        spec = LoadSpec(job_id="bench", model="bench", source=f"path:{gguf}", devices=["cpu"])
        engine = load_engine(spec, data_dir, lambda progress: None).engine
        assert isinstance(engine, Engine), "a model of text"
        params = SamplingParams(max_tokens=1, temperature=0.0)
        engine.submit(SubmitSequence(sequence_id="1", token_ids=_prompt(), params=params))
        while engine.has_work:
            engine.step()

    return first_token


def llama_cpp(gguf: str, num_threads: int, data_dir: Path) -> Callable[[], None]:
    import llama_cpp as lib

    silent = lib.llama_log_callback(lambda level, text, user_data: None)
    lib.llama_backend_init()
    lib.llama_log_set(silent, ctypes.c_void_p(0))

    def first_token() -> None:
        _ = silent  # kept alive: ctypes does not
        model = lib.llama_model_load_from_file(gguf.encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = CONTEXT_TOKENS
        params.n_threads = params.n_threads_batch = num_threads
        context = lib.llama_init_from_model(model, params)
        tokens = (ctypes.c_int32 * DECODE_PROMPT_TOKENS)(*_prompt())
        if lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(tokens))):
            raise RuntimeError("llama_decode failed")
        size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        logits = lib.llama_get_logits_ith(context, -1)
        max(range(size), key=logits.__getitem__)

    return first_token


SUBJECTS: dict[str, Callable[[str, int, Path], Callable[[], None]]] = {
    "helexa": helexa,
    "llama_cpp": llama_cpp,
}


def _prompt() -> list[int]:
    return PromptMaker(7).prompt(DECODE_PROMPT_TOKENS)


def measure_here(name: str, gguf: str, num_threads: int, data_dir: Path) -> Reading:
    import resource

    first_token = SUBJECTS[name](gguf, num_threads, data_dir)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    first_token()
    return Reading(
        wall_s=time.perf_counter() - began_s,
        cpu_s=time.process_time() - began_cpu_s,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def in_child(name: str, gguf: Path, num_threads: int, data_dir: Path) -> Reading:
    """Raises ``subprocess.CalledProcessError``."""
    order = json.dumps([name, str(gguf), num_threads, str(data_dir)])
    command = [sys.executable, "-m", "benchmarks.weights.load_time", "--child", order]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=CHILD_TIMEOUT_S
    )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Reading)


def drop_from_page_cache(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # dirty pages would stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def readings(
    gguf: Path, *, num_rounds: int, num_threads: int, is_cold: bool, data_dir: Path
) -> dict[str, list[Reading]]:
    names = [name for name in SUBJECTS if name == "helexa" or importlib.util.find_spec(name)]
    found: dict[str, list[Reading]] = {name: [] for name in names}
    for number in range(num_rounds + 1):
        for name in names:
            if is_cold:
                drop_from_page_cache(gguf)
            reading = in_child(name, gguf, num_threads, data_dir)
            if number:
                found[name].append(reading)
    return found


def print_table(found: dict[str, list[Reading]], title: str) -> None:
    table = Table("", "wall s", "CPU s", "peak MiB", "of llama.cpp's wall", title=title)
    peer = statistics.median(r.wall_s for r in found["llama_cpp"]) if "llama_cpp" in found else None
    for name, own in found.items():
        wall_s = statistics.median(reading.wall_s for reading in own)
        cpu_s = statistics.median(reading.cpu_s for reading in own)
        peak_mib = max(reading.peak_mib for reading in own)
        ratio = "" if peer is None else f"{wall_s / peer:.2f}"
        table.add_row(name, f"{wall_s:.2f}", f"{cpu_s:.2f}", f"{peak_mib:.0f}", ratio)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cold", action="store_true", help="from disk, not from the page cache")
    parser.add_argument("--data-dir", type=Path, help="keeps the compiled decoder (default: none)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        name, gguf, num_threads, data_dir = json.loads(arguments.child)
        reading = measure_here(name, gguf, num_threads, Path(data_dir))
        print(msgspec.json.encode(reading).decode())
        return
    if arguments.gguf is None:
        parser.error("the model file is missing")
    with tempfile.TemporaryDirectory() as temporary:
        found = readings(
            arguments.gguf.resolve(),
            num_rounds=arguments.rounds,
            num_threads=arguments.threads,
            is_cold=arguments.cold,
            data_dir=arguments.data_dir or Path(temporary),
        )
    title = f"{arguments.gguf.name}, {'cold' if arguments.cold else 'warm'}; {machine()}"
    print_table(found, title)


if __name__ == "__main__":
    main()
