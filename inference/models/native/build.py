"""Compiles the native decoder once per (source, compiler, CPU) and keeps the library on disk."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from inference.environment import Role, environment_for
from inference.models.kv_format import KVFormat

SOURCE_DIR = Path(__file__).resolve().parent / "cpp"
SOURCE_NAME = "library.cpp"
"""Includes all others."""
FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-pthread",
)
COMPILE_TIMEOUT_S = 900
"""It takes about 40 s of CPU; a crowded machine may need many times that."""


class NativeUnavailableError(Exception):
    """The native decoder cannot run here; the message is the load report's reason."""


def automatic_kv_format() -> KVFormat:
    """The default format of keys and values: int8 where this CPU multiplies bytes."""
    return "int8" if b" avx512_vnni " in _cpu().replace(b"\n", b" ") + b" " else "bf16"


def find_compiler() -> str | None:
    """``CXX`` where it names a program, else the first C++ compiler on the PATH."""
    candidates = [os.environ.get("CXX"), "g++", "clang++", "c++"]
    return next((found for name in candidates if name and (found := shutil.which(name))), None)


def load_library(cache_dir: Path) -> ctypes.CDLL:
    """The compiled library; compiles it (some seconds) when ``cache_dir`` has none that fits.
    Raises ``NativeUnavailableError``."""
    compiler = find_compiler()
    if compiler is None:
        raise NativeUnavailableError("no C++ compiler found (g++, clang++, or CXX)")
    library = cache_dir / f"decoder-{_fingerprint(compiler)}.so"
    if not library.exists():
        _compile(compiler, library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise NativeUnavailableError(f"the compiled decoder does not load: {error}") from error


def _compile(compiler: str, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    # Two engines may compile at once: each into its own file, and the rename is atomic.
    partial = library.with_suffix(f".{os.getpid()}.partial")
    command = [compiler, *FLAGS, "-o", str(partial), str(SOURCE_DIR / SOURCE_NAME)]
    try:
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            timeout=COMPILE_TIMEOUT_S,
            env=environment_for(Role.OTHER, os.environ),
        )
    except subprocess.CalledProcessError as error:
        first_lines = error.stderr.decode(errors="replace").strip()[:500]
        raise NativeUnavailableError(f"{compiler} could not compile: {first_lines}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailableError(f"{compiler} did not run: {error}") from error
    partial.rename(library)


def _fingerprint(compiler: str) -> str:
    """Names what the library depends on: our source, the compiler, and what ``native`` means."""
    digest = hashlib.sha256()
    for source in (SOURCE_DIR / SOURCE_NAME, *sorted(SOURCE_DIR.glob("*.h"))):
        digest.update(source.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    digest.update(b"\0".join([compiler.encode(), version, " ".join(FLAGS).encode(), _cpu()]))
    return digest.hexdigest()[:16]


def _cpu() -> bytes:
    """The CPU's model and features: a data directory may move to another machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor().encode() + platform.machine().encode()
    kept = ("model name", "flags", "Features")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(kept))).encode()
