"""Run as a program: prints each argument of a kernel that changes from step to step and that Triton
specialises the kernel on, so that it compiles the kernel again while it serves.

    python -m tests.inference.models.cuda.compilation.specialisations
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from inference.models.cuda.attention_kernels import decode_kernel, prefill_kernel, reduce_kernel
from inference.models.cuda.matmul_kernels import packed_matmul_kernel
from inference.models.cuda.packed_batch import packed_batch_kernel, sum_splits_kernel
from inference.models.cuda.rotation import rotate_kernel

BUFFER, TABLES = (torch.zeros(8, dtype=dtype) for dtype in (torch.int64, torch.int32))
SLICES, TABLE_SLICES = ((buffer[:4], buffer[1:5]) for buffer in (BUFFER, TABLES))
"""Two slices of one upload: the second begins where no 16 bytes do."""
COUNTS = 1, 16, 17
"""Triton may specialise on one, and on multiples of 16."""
VARYING: dict[Any, dict[str, tuple[Any, ...]]] = {
    decode_kernel: {
        "block_ids": TABLE_SLICES,
        "sequences": TABLE_SLICES,
        "positions": SLICES,
        "row_blocks": COUNTS,
    },
    reduce_kernel: {"positions": SLICES},
    prefill_kernel: {
        "block_ids": TABLE_SLICES,
        "last_seen": TABLE_SLICES,
        "row_blocks": COUNTS,
    },
    rotate_kernel: {"positions": SLICES, "slots": SLICES},
    packed_matmul_kernel: {"num_rows": COUNTS},
    packed_batch_kernel: {"num_rows": COUNTS, "split_steps": COUNTS},
    sum_splits_kernel: {"num_values": COUNTS, "num_splits": COUNTS},
}


def specialised() -> Iterator[str]:
    backend = make_backend(GPUTarget("cuda", 80, 32))
    for kernel, arguments in VARYING.items():
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        for name, values in arguments.items():
            given = dict.fromkeys(kernel.arg_names, 0)
            found = {str(bind(**given | {name: value})[1]) for value in values}
            if len(found) > 1:
                yield f"{kernel.fn.__name__}: {name}"


if __name__ == "__main__":
    print("\n".join(specialised()), end="")
