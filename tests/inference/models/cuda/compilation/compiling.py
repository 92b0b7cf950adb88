"""Compiles Triton kernels to a card's machine code, for which no card is needed."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_KIB = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""What a block may have: CUDA programming guide, technical specifications per compute
capability."""
LEAST_CODE_BYTES = 1000
DISASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
LABEL = re.compile(r"^(\.L_x_\d+):")
INSTRUCTION = re.compile(r"^/\*[0-9a-f]+\*/\s+(.*)")
BRANCH = re.compile(r"\bBRA\S*\s.*?`\((\.L_x_\d+)\)")


class SlowCodeError(Exception):
    """A loop spends too many instructions on a weight."""


class Case(Protocol):
    """A kernel for one architecture and one combination of what it may be asked for."""

    @property
    def architecture(self) -> int: ...

    @property
    def words(self) -> str: ...

    def shared_bytes(self) -> int:
        """Compiles it. Raises whatever the compiler raises."""
        ...


AnyCase = TypeVar("AnyCase")


def every_nth(cases: Iterable[AnyCase], first: int, stride: int) -> Iterator[AnyCase]:
    return islice(cases, first % stride, None, stride)


def compile_all(cases: Iterable[Case]) -> int:
    """Prints each case with the bytes of shared memory that it takes; 1, and the others by name,
    where any does not compile or does not fit its card."""
    failures = []
    for case in cases:
        try:
            taken = case.shared_bytes()
        except Exception as error:  # noqa: BLE001 -- whatever a compiler raises; named below
            failures.append(f"{case.words}: {type(error).__name__}: {str(error)[-300:]}")
            continue
        if taken > SHARED_KIB[case.architecture] * 1024:
            failures.append(f"{case.words}: {taken} bytes of shared memory")
        print(f"{case.words}: {taken}", flush=True)
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


def compiled_kernel(
    kernel: Any,
    architecture: int,
    types: dict[str, str],
    constants: dict[str, Any],
    num_warps: int = 4,
    num_stages: int = 3,
) -> Any:
    """``types`` of the arguments by name, in Triton's words, ``constants`` of the others. Raises
    whatever the compiler raises."""
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={
            name: "constexpr" if name in constants else types.get(name, "constexpr")
            for name in names
        },
        constexprs={name: value for name, value in constants.items() if name in names},
        attrs={
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(names)
            if name not in constants
            and types.get(name, "").startswith("*")
            and not kernel.params[index].do_not_specialize_on_alignment
        },
    )
    options = {"num_warps": num_warps, "num_stages": num_stages}
    target = GPUTarget("cuda", architecture, 32)
    compiled = triton.compile(source, target=target, options=options)
    assert len(compiled.asm["cubin"]) > LEAST_CODE_BYTES
    return compiled


def check_speed(compiled: Any, lane_weights: float, most: float) -> None:
    """Raises ``SlowCodeError``. ``lane_weights``: how many weights a lane's loop multiplies each
    time round."""
    per_weight = loop_instructions(compiled.asm["cubin"]) / lane_weights
    if per_weight > most:
        raise SlowCodeError(f"{per_weight:.1f} instructions of a lane for each weight")


def loop_instructions(cubin: bytes) -> int:
    """Counts the instructions of the longest loop, from its label to the branch back."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run(
            [DISASSEMBLER, "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    labels: dict[str, int] = {}
    longest = count = 0
    for line in map(str.strip, listing.splitlines()):
        if label := LABEL.match(line):
            labels[label[1]] = count
        elif instruction := INSTRUCTION.match(line):
            count += 1
            back = BRANCH.search(instruction[1])
            if back and back[1] in labels:
                longest = max(longest, count - labels[back[1]])
    return longest
