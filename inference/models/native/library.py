"""The native decoder's library, compiled once per (source, compiler, CPU) and kept on disk; and the
structs that C++ and Python share, read from the headers that declare them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

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
    """The message is the load report's reason."""


def automatic_kv_format() -> KVFormat:
    """int8 where this CPU multiplies bytes."""
    return "int8" if b" avx512_vnni " in _cpu().replace(b"\n", b" ") + b" " else "bf16"


def find_compiler() -> str | None:
    candidates = [os.environ.get("CXX"), "g++", "clang++", "c++"]
    return next((found for name in candidates if name and (found := shutil.which(name))), None)


def load_library(cache_dir: Path) -> ctypes.CDLL:
    """Compiles it unless ``cache_dir`` has it. Raises ``NativeUnavailableError``."""
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


INT, POINTER = ctypes.c_int32, ctypes.c_void_p
TYPES: dict[str, Any] = {
    "int8_t": ctypes.c_int8,
    "int32_t": INT,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "Format": INT,
}
HEADERS = "formats.h", "linear.h", "low_rank.h", "model.h", "draw.h", "pack.h", "ggml_blocks.h"
_CONSTANT = re.compile(r"^constexpr int (\w+) = (\d+);", re.MULTILINE)
_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELDS = re.compile(r"^  (?:const )?(\w+)((?:\*| const)*) ([\w, \[\]]+);", re.MULTILINE)
_FIELD = re.compile(r"(\w+)(?:\[(\w+)\])?")


def _read_headers() -> tuple[dict[str, type[ctypes.Structure]], dict[str, int]]:
    """The structs that Python fills, and numbers that they are as large as, as C++ declares them:
    a line for each type of fields, the methods behind all fields."""
    structs: dict[str, type[ctypes.Structure]] = {}
    constants: dict[str, int] = {}
    for header in HEADERS:
        text = (SOURCE_DIR / header).read_text()
        constants |= {name: int(number) for name, number in _CONSTANT.findall(text)}
        for name, body in _STRUCT.findall(text):
            fields: list[tuple[str, Any]] = []
            for type_name, stars, names in _FIELDS.findall(re.split(r"\) const \{", body)[0]):
                kind: Any = structs.get(type_name) or TYPES.get(type_name)
                if stars:
                    is_struct = type_name in structs and stars == "*"
                    kind = ctypes.POINTER(structs[type_name]) if is_struct else POINTER
                for own, size in _FIELD.findall(names):
                    length = size and int(constants.get(size, size))
                    fields.append((own, kind * length if length else kind))
            if fields and all(kind is not None for _, kind in fields):
                structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return structs, constants


STRUCTS, CONSTANTS = _read_headers()
