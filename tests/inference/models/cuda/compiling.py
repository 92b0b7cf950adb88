"""Compiles a Triton kernel to a card's machine code, for which no card is needed."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


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
    return triton.compile(source, target=target, options=options)


def in_words(kernel: Any, architecture: int, compiled: Any) -> str:
    """Name, architecture, bytes of machine code, bytes of shared memory."""
    code_bytes, shared_bytes = len(compiled.asm["cubin"]), compiled.metadata.shared
    return f"{kernel.fn.__name__} {architecture} {code_bytes} {shared_bytes}"
