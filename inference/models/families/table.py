"""docs/models.md, from what families declare: ``python -m inference.models.families.table``."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill

from inference.models.families.family import Family
from inference.models.families.gguf_types import GGUF_TYPES, GGUFType
from inference.models.families.registry import FAMILIES
from inference.models.families.tower_gguf import LEAST_TOKENS, MOST_TOKENS, PROJECTOR_TYPES
from inference.models.families.transformers_cached import TRANSFORMERS_CACHED
from inference.models.families.transformers_gguf import MODULES
from inference.models.families.transformers_paged import TRANSFORMERS_PAGED
from inference.models.families.transformers_types import ROW_BY_ROW_TYPES

HEADER = """\
# Models

Written by `python -m inference.models.families.table > docs/models.md` from the declarations in
`inference/models/families/`; a test compares the two. A model not listed is refused before its
weights are downloaded.

Every family runs on torch's operators, from safetensors as they are or quantised while loading
(`q4`, `q5`, `q6`, `q8`; `fp8` where a card has it). On a CPU with a C++ compiler the native decoder
runs those whose layers it computes, on a CUDA card Triton's kernels do: the load report names
which, and why not. Tools and thinking follow from a model's chat template, not from its family.

Safetensors whose weights are quantised already are read as well: AWQ and GPTQ of 4 bits, GPTQ of 8,
compressed-tensors of 4 and 8 bits, and fp8 with scales of blocks, rows or all
(`tests/inference/loading/safetensors/test_packed_files.py`). Codes of 4 and 8 bits are kept as they
are, scales and zero points in float16 where a kernel wants that; GPTQ ordered by activation becomes
bfloat16, and so does fp8, which `q4` to `q8` and `fp8` then quantise as any dense weight. MXFP4
(gpt-oss) is kept exactly: in 4 bits by the native decoder, in 8 on torch's operators. On a card
experts stay what they are, MXFP4 in 4 bits and fp8 with scales of blocks in 8. bitsandbytes, NVFP4
and others are refused by name.

Checkpoints that nest a text model beside towers which are not computed (`gemma4`) are read as that
text model (`tests/inference/models/families/test_nested.py`).

Images: where a safetensors checkpoint brings its tower and preprocessor_config.json, and from GGUF
where an mmproj file brings the tower ([below](#images-from-gguf)); else it is a text model. Qwen's
rows are rotated by time, height and width, and Gemma 3's rows of one image attend to each other;
the native decoder computes both (`tests/inference/models/vision/test_images.py`), and so do
Triton's kernels on a CUDA card, where steps without images are captured in CUDA graphs. An image
that is seen whole is never cut by a prompt's chunks: it may take a step longer than others are.
Videos are not read.

Idefics3 and SmolVLM scale an image's longer side to one length (2,048 pixels of SmolVLM-256M), cut
it into square tiles, and put the whole image as one more tile behind them. The prompt names each
tile by row and column, so an image's tokens are in several runs
(`tests/inference/models/vision/test_images.py`). On a CPU the longer side becomes 768
pixels unless `HELEXA_VISION_MAX_PIXELS` names more: its square root is that length. In `low` detail
an image is the one tile alone.

Pixtral and Mistral Small 3 keep an image's shape, reduce its longer side to one length (1,540
pixels of Mistral Small 3.1) and enlarge none. A token of text ends each row of an image's tokens
(`tests/inference/models/vision/test_images.py`). `HELEXA_VISION_MAX_PIXELS` bounds the
square of the longer side: on a CPU it is 768 pixels at most by default, and in `low` detail 512. Of
LLaVA's layout (`llava`) only Pixtral's tower is computed.

Gemma 3 makes every image a square of one size (896 pixels, 4,096 patches, 256 tokens), also in
`low` detail: no bound on pixels changes that, and a CPU takes long for one. Pan and scan is not
computed; a checkpoint that asks for it is refused.

Adapters (LoRA) change the projections of every family's layers, but no experts and nothing else
of an MLP that has some (`tests/inference/engine/test_adapters.py`, on both paths): of what PEFT
trains as `all-linear` that leaves out a mixture's shared expert and a tower
(`families/test_adapter_targets.py`). Prefixes are
kept on disk for every family but hybrids (`tests/inference/engine/cache/test_prefix_disk.py`).
Models of every family sleep, on both paths (`tests/inference/engine/load/test_sleeper.py`), hybrids
(`families/test_hybrid.py::test_a_load`) and transformers' own modules too
(`transformers_backend/test_transformers_model.py::test_a_whole_load`), which take no adapters;
embedding models do not.

Multi-head latent attention (DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash) keeps one latent and one
rotated key of a token, for all heads together (`tests/inference/models/families/test_deepseek.py`,
`test_native_latent.py`). GGUF's `deepseek2` is read with `attn_kv_b` whole or in two; kept whole it
becomes dense, and no adapter changes it. On a CUDA card torch's operators attend and decode steps
are not captured, as the load report states. DeepSeek V3.2 runs as transformers' own module.

Drafts (speculation) are verified for every family, hybrids too, with adapters and behind images
(`tests/inference/engine/speculation/`). A draft model has attention layers only, and makes drafts
for any model of its vocabulary, but where all layers of that see through a sliding window. Layers
of multi-token prediction run for `qwen3_next`, `qwen3_5`, `qwen3_5_moe` and `glm4_moe`, from
safetensors (`tests/inference/models/families/test_predictor.py`) and GGUF (`blk.N.nextn.*`;
`test_gguf_predictor.py`), on both paths.

Tensor parallelism (`tensor_parallel`): every family of the table, with packed weights and images
(`tests/inference/models/parallel/test_rank_forward.py`), but neither models with Mamba-2 layers nor
transformers' own modules.

| family | `model_type` | GGUF | prefixes are reused | images |
|---|---|---|---|---|
"""

IMAGES_HEADER = """
## Images from GGUF

llama.cpp's converter puts a model's vision tower into a file of its own, `mmproj-*.gguf`. It is
read with the weights that it lies beside, and `file` can name another, or `none`
([operating/models.md](operating/models.md#images)). The projectors (`clip.projector_type`) that are
computed, for the families above whose images come from GGUF: {projectors}.

The tower becomes dense, whatever its file's type. Queries, keys and values may be apart, and lie in
one tensor in memory. Sizes of images and how they are normalised come
from the file's metadata; without `clip.vision.image_min_pixels` and `image_max_pixels` an image of
Qwen's has {least} to {most} tokens, as in llama.cpp. A tower of either format gives the same rows
(`tests/inference/models/vision/test_towers.py`). An `idefics3` file's
`clip.vision.preproc_image_size` is the length of the longer side; without it an image is one tile.
A `pixtral` file's `clip.vision.image_size` is that length. Gemma 3's files may
call an MLP's projections by each other's names, as earlier converters did, and a vocabulary may
lack `<image_soft_token>`: then its last unused token stands for an image's rows.

With an mmproj file of any other projector, or of another model, a text model is loaded: the load
report states it and the reason. One that `file` names is refused instead.
"""

TYPES_HEADER = """
## GGUF's types

A file may mix these types in any way, experts too. Of a type with a table the codes are looked up
in the values that the format defines. On CPU the native decoder keeps every type packed, in as many
bits a weight as the last column gives; no value changes. The IQ types of 1 to 3 bits store places
in a grid of neighbours; in memory each weight has a code of its own, which takes more room and less
time. On a card they stay packed too, those with a table in 4 bits and a scale for each 32 or 16
weights: 4.5 or 5 bits. Without a C++ compiler they become dense on CPU. A scale of a whole tensor
beside an NVFP4 weight (`.scale`), or of each expert in a stack, multiplies it; scales of
activations (`.input_scale`) are left out, as the load report states. Other types are refused by
name, with the nearest of these
(`tests/inference/loading/gguf/test_quants.py`, `tests/inference/loading/test_packed_gguf.py`,
`tests/inference/models/cuda/test_table_types.py`).

| type | table | bits a weight in the file | on CPU |
|---|---|---|---|
"""

PAGED_HEADER = """
## Transformers' own modules

These decoders have no family here. transformers' module computes them over our blocks: continuous
batching, prefix reuse, preemption and cancellation hold as for a family. They are slower:
projections are neither fused nor packed, and no kernel of ours runs them. The load report states
it, and in which of two forms they run. They are read from safetensors, and some from GGUF (below);
nothing is quantised while loading, weights that are quantised become dense, and a sliding window
saves no memory. The load report names tensors that the module has no place for. Code that lies
beside a model's weights is never run.

Which of them run is tested against transformers' own answers
(`tests/inference/models/transformers_backend/test_sweep.py`, `test_cached_sweep.py`). The others
are refused by name, with the reason, and so is rotary scaling that follows the longest sequence of
a batch (`dynamic`, `longrope`).

**Behind paged attention**: every layer attends once through transformers' attention interface,
causally or within a window. All rows of a step are computed together.

"""
CACHED_HEADER = """
**With transformers' own cache**, whose keys and values lie in our blocks and whose states in our
state slots, as do states that a module keeps beside that cache: for layers that attend by rules of
their own, or keep a state. One sequence is computed after the other, so many of them at once are no
faster than one by one. The kept tensors are found before weights are downloaded, by running the
module without any; a module that keeps anything else is refused. As with a hybrid family, a prefix
is reused where a snapshot of its state was kept.

"""
BY_ROWS_HEADER = """
Of these, the following do not continue from a state with several tokens at once: a prompt's first
chunk is computed in one go, all that follow it token by token.

"""
GGUF_HEADER = """
**From GGUF** these are read by transformers' reader, which dequantises all weights while loading:
the memory is that of dense weights, as the load report states. Files in several parts are
refused.

"""


def markdown(families: Iterable[Family] = FAMILIES) -> str:
    """The page, with a last newline."""
    families = list(families)
    rows = "".join(f"{_row(family)}\n" for family in families if not family.uses_transformers)
    whole = {name for family in families if family.uses_transformers for name in family.model_types}
    lists = (
        (PAGED_HEADER, whole | set(TRANSFORMERS_PAGED.model_types)),
        (CACHED_HEADER, set(TRANSFORMERS_CACHED.model_types)),
        (BY_ROWS_HEADER, set(ROW_BY_ROW_TYPES)),
        (GGUF_HEADER, set(MODULES)),
    )
    modules = "".join(
        f"{header}{fill(_code(sorted(names)), width=100)}\n" for header, names in lists if names
    )
    types = "".join(f"{_type_row(type)}\n" for type in GGUF_TYPES)
    images = IMAGES_HEADER.format(
        projectors=_code(PROJECTOR_TYPES), least=LEAST_TOKENS, most=f"{MOST_TOKENS:,}"
    )
    return f"{HEADER}{rows}{images}{TYPES_HEADER}{types}{modules}"


def _row(family: Family) -> str:
    cells = (
        family.name,
        _code(family.model_types),
        _code(family.gguf_architectures + family.gguf_shared) or "not read",
        "yes" if "prefix_reuse" in family.features else "no",
        _images(family),
    )
    return f"| {' | '.join(cells)} |"


def _images(family: Family) -> str:
    formats = ["safetensors"] if "vision" in family.features else []
    if family.gguf_projectors:
        formats.append(f"GGUF ({_code(family.gguf_projectors)})")
    return ", ".join(formats) or "no"


def _type_row(type: GGUFType) -> str:
    on_cpu = "float32" if type.cpu_bits is None else f"{type.cpu_bits:g}"
    has_table = "yes" if type.is_table else "no"
    return f"| {type.name} | {has_table} | {type.file_bits:g} | {on_cpu} |"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(markdown(), end="")
