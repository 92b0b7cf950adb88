"""Run as a program: compiles kernels to machine code, for which no card is needed.

    python -m tests.inference.models.cuda.compilation.compile_cases others
    python -m tests.inference.models.cuda.compilation.compile_cases attention diagonal
    python -m tests.inference.models.cuda.compilation.compile_cases attention 80
    python -m tests.inference.models.cuda.compilation.compile_cases attention 80 131

``diagonal`` has every value of each axis, in few combinations; the last form compiles one in 131
for one architecture, others for each. Prints each combination with the bytes of shared memory that
it takes. Ends with 1, naming each, where any does not compile, fits the card in none of the tunings
that a load tries, or spends too many instructions on a weight.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tests.inference.models.cuda.compilation import (
    attention_cases,
    batch_cases,
    expert_cases,
    other_cases,
)
from tests.inference.models.cuda.compilation.compiling import Case, compile_all

MATRICES = {"attention": attention_cases, "batches": batch_cases, "experts": expert_cases}


def cases(name: str, *arguments: str) -> Iterable[Case]:
    if name == "others":
        return other_cases.all_cases()
    if arguments == ("diagonal",):
        return MATRICES[name].diagonal()
    architecture, stride = [*arguments, "1"][:2]
    return MATRICES[name].some_cases(int(architecture), int(stride))


if __name__ == "__main__":
    sys.exit(compile_all(cases(*sys.argv[1:])))
