"""Run as a program: compiles the few combinations of every matrix that the default suite has time
for, in one process.

    python -m tests.inference.models.cuda.compilation.few_cases

Prints and ends as ``kernel_matrix`` does.
"""

from __future__ import annotations

import sys

from tests.inference.models.cuda.compilation import batch_matrix, expert_matrix, kernel_matrix
from tests.inference.models.cuda.compilation.compiling import Case, compile_all


def few_cases() -> list[Case]:
    return [*kernel_matrix.few(), *expert_matrix.few(), *batch_matrix.few()]


if __name__ == "__main__":
    sys.exit(compile_all(few_cases()))
