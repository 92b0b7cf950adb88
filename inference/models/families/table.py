"""docs/models.md, from what families declare: ``python -m inference.models.families.table``."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill

from inference.models.families.family import Family
from inference.models.families.foreign import FOREIGN
from inference.models.families.registry import FAMILIES

HEADER = """\
# Models

Written by `python -m inference.models.families.table > docs/models.md` from the declarations in
`inference/models/families/`; a test compares the two. What is not listed is refused before its
weights are downloaded.

Every family runs on torch's operators, from safetensors as they are or quantised while loading
(`q4`, `q8`; `fp8` where a card has it). On a CPU with a C++ compiler the native decoder runs those
whose layers it computes, on a CUDA card Triton's kernels do: the load report says which, and why
not. Tools and thinking follow from a model's chat template, not from its family.

Safetensors whose weights are quantised already are read as well: AWQ and GPTQ of 4 bits, GPTQ of 8,
compressed-tensors of 4 and 8 bits, and fp8 with scales of blocks, rows or all
(`tests/inference/loading/test_packed_files.py`). Codes of 4 and 8 bits are kept as they are, scales
and zero points in float16 where a kernel wants that; GPTQ ordered by activation becomes bfloat16,
and so does fp8, which `q4`, `q8` and `fp8` then quantise as any dense weight. MXFP4 (gpt-oss) is
kept exactly, in 8 bits. bitsandbytes, NVFP4 and others are refused by name.

Checkpoints that nest a text model beside towers (`mistral3`, `gemma3`, `gemma4`) are read as that
text model (`tests/inference/models/families/test_nested.py`).

Pictures: where a safetensors checkpoint brings its tower and preprocessor_config.json; else, and
from GGUF, it is a text model. Its rows are rotated by time, height and width, which the native
decoder does as well (`tests/inference/models/families/test_native_vision.py`); on a CUDA card it
runs with Triton's attention, and its steps are not captured in CUDA graphs. Videos are not read.

Adapters (LoRA) change the projections of every family's layers, but no experts and nothing else
of an MLP that has some (`tests/inference/engine/test_adapters.py`, on both paths). Prefixes are
kept on disk for every family but hybrids (`tests/inference/engine/test_prefix_disk.py`). Models of
every family sleep, on both paths (`tests/inference/engine/load/test_sleeper.py`), hybrids
(`families/test_hybrid.py::test_a_load`) and transformers' own modules too
(`foreign/test_foreign.py::test_a_whole_load`), which take no adapters; embedding models do not.

Drafts (speculation) are verified for every family, hybrids too, with adapters and behind pictures
(`tests/inference/engine/speculation/`). A draft model has attention layers only, and makes drafts
for any model of its vocabulary, but where all layers of that see through a sliding window. Layers
of multi-token prediction run for `qwen3_next`, `qwen3_5` and `qwen3_5_moe`, from safetensors and on
torch's operators (`tests/inference/models/families/test_predictor.py`).

Tensor parallelism (`tensor_parallel`): every family of the table, with packed weights and pictures
(`tests/inference/models/parallel/test_rank_forward.py`), but not transformers' own modules.

| family | `model_type` | GGUF | prefixes are reused | pictures |
|---|---|---|---|---|
"""


FOREIGN_HEADER = """
## Transformers' own modules

These decoders have no family here. transformers' module computes them, and its attention runs over
our blocks: continuous batching, prefix reuse, preemption and cancellation hold as for a family.
They are slower: projections are neither fused nor packed, and no kernel of ours runs them. The load
report says so. They are read from safetensors only (no GGUF, no quantising while loading; weights
that are quantised become dense), and a sliding window saves no memory. Code that lies beside a
model's weights is never run.

Which of them run is tested against transformers' own answers. A module whose layers do not all
attend once through transformers' attention interface, causally or within a window, is refused,
and so is one that keeps a state beyond keys and values, and rotary scaling that follows the longest
sequence of a batch (`dynamic`, `longrope`).

"""


def markdown(families: Iterable[Family] = FAMILIES) -> str:
    """The page, with a last newline."""
    families = list(families)
    rows = "".join(f"{_row(family)}\n" for family in families if not family.is_foreign)
    foreign = {name for family in families if family.is_foreign for name in family.model_types}
    names = fill(_code(sorted(foreign | set(FOREIGN.model_types))), width=100)
    return f"{HEADER}{rows}{FOREIGN_HEADER}{names}\n"


def _row(family: Family) -> str:
    cells = (
        family.name,
        _code(family.model_types),
        _code(family.gguf_architectures + family.gguf_shared) or "not read",
        "yes" if "prefix_reuse" in family.features else "no",
        "yes" if "vision" in family.features else "no",
    )
    return f"| {' | '.join(cells)} |"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(markdown(), end="")
