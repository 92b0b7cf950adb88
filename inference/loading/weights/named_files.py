"""``TensorFiles`` by the model's names and shapes: renamed, a tower's parts joined, and each expert
of a stack a matrix of its own, which is read without the others.

    by_expert         mlp.experts.gate_proj.weight  (E, out, in)     mlp.experts.0.gate_proj.weight
                      mlp.experts.gate_proj.bias    (E, out)         mlp.experts.0.gate_proj.bias
                      mlp.experts.gate_up_proj      (E, 2 out, in)   gate_proj's rows, up_proj's
    cut_transposed    mlp.experts.gate_up_proj      (E, in, 2 out)   the same, transposed
                      mlp.experts.down_proj         (E, in, out)
    cut_interleaved   mlp.experts.gate_up_proj_blocks  (E, 2 out, in / 32, 16)   rows 0, 2, 4 … are
                      mlp.experts.gate_up_proj_scales  (E, 2 out, in / 32)       gate_proj's, rows
                      mlp.experts.gate_up_proj_bias    (E, 2 out)                1, 3, 5 … up_proj's

Transposed are Qwen3-VL's mixtures, some of whose files have their outputs first, as others do: the
model's width shows which. Interleaved are gpt-oss's; dense files of it have a transposed stack in
place of blocks and scales.

MXFP4 (OCP Microscaling Formats 1.0): 32 numbers of four bits share a power of two. Twice such a
number is whole, so that a code of eight bits and half the scale hold it exactly.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from inference.loading.formats import MXFP4
from inference.loading.weights.tensor_files import (
    FileTensor,
    MadeTensor,
    SafeTensor,
    SafetensorsFiles,
    TensorFiles,
)
from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import PREDICTOR
from inference.models.families.family import Family
from inference.models.families.registry import family_of
from inference.models.families.tower import FRAME_AXIS, PATCH_KERNEL, TOWER
from inference.models.stored_weights import (
    GROUP_FEATURES,
    TWICE_THE_MXFP4_VALUES,
    GroupedWeight,
    StoredWeight,
    written_out,
)
from inference.protocol.load_errors import (
    BadFileError,
    MissingTensorError,
    WrongShapeError,
    shape_in_words,
)

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_TOWER_PART = re.compile(rf"({re.escape(TOWER)}.+\.(?:weight|bias))\.(\d)")
Tensors = dict[str, FileTensor]
NUM_PARTS = {PATCH_KERNEL: 2}
"""Into how many parts files divide a tensor; any other has three."""


def named_files(files: TensorFiles, family: Family, config: ModelConfig) -> tuple[TensorFiles, str]:
    """Returns also a sentence for people about the tensors left out, or an empty one."""
    named: dict[str, FileTensor] = {}
    num_left_out: Counter[str] = Counter()
    for name in files:
        own = family.hub_name(name)
        if purpose := next(_purposes(name, own, family, config), None):
            num_left_out[purpose] += 1
        else:
            named[_inside(own, family, config)] = files[name]
    counts = sorted(num_left_out.items())
    words = ", ".join(f"{count} tensors of {purpose} left out" for purpose, count in counts)
    return TensorFiles(named, files.close), words


def _purposes(name: str, own: str, family: Family, config: ModelConfig) -> Iterator[str]:
    computed = {TOWER: config.vision is not None, PREDICTOR: config.has_predictor}
    for start, words in family.left_out.items():
        if not computed.get(start, False) and (name.startswith(start) or own.startswith(start)):
            yield words
    layer = None if family.uses_transformers else _LAYER.match(own)
    # The first of the layers behind the model's own is all that is ever computed.
    if layer and int(layer[1]) >= config.num_layers + config.has_predictor:
        yield "multi-token prediction"


def _inside(own_name: str, family: Family, config: ModelConfig) -> str:
    return family.predictor_name(own_name, config) if family.predictor_name else own_name


def with_predictor(config: ModelConfig, family: Family, names: Collection[str]) -> ModelConfig:
    """``names``: of the files, which may lack it though the family knows one."""
    inside = (_inside(family.hub_name(name), family, config) for name in names)
    has_predictor = family.predictor_name is not None and f"{PREDICTOR}fc.weight" in inside
    return replace(config, has_predictor=has_predictor)


def without_absent_tower(config: ModelConfig, names: Collection[str]) -> ModelConfig:
    hub_name = family_of(config).hub_name
    if config.vision is None or any(hub_name(name).startswith(TOWER) for name in names):
        return config
    return replace(config, vision=None)


def with_joined_tensors(files: TensorFiles) -> TensorFiles:
    """Joins patch_embed.proj.weight and attn.qkv. Raises ``MissingTensorError`` and
    ``WrongShapeError``."""
    found: dict[str, dict[int, str]] = {}
    for name in files:
        if match := _TOWER_PART.fullmatch(name):
            found.setdefault(match[1], {})[int(match[2])] = name
    joined: Tensors = {}
    for whole, parts in found.items():
        _check_parts(files, whole, parts)
        joined[whole] = _joined(whole, [files[parts[i]] for i in sorted(parts)])
    return _replaced(files, joined, {name for parts in found.values() for name in parts.values()})


def _check_parts(files: TensorFiles, whole: str, parts: Mapping[int, str]) -> None:
    wanted = NUM_PARTS.get(whole, 3)
    if parts.keys() != set(range(wanted)):
        raise MissingTensorError(f"the files have {len(parts)} of {wanted} parts of {whole}")
    first = files[parts[0]].shape
    for name in parts.values():
        if (shape := files[name].shape) != first:
            raise WrongShapeError(name, first, shape)


def _joined(whole: str, parts: Sequence[FileTensor]) -> MadeTensor:
    first, are_frames = parts[0], whole == PATCH_KERNEL
    shape = (len(parts) * first.shape[0], *first.shape[1:])
    if are_frames:
        shape = (*first.shape[:FRAME_AXIS], len(parts), *first.shape[FRAME_AXIS:])

    def read() -> torch.Tensor:
        tensors = [part.dense() for part in parts]
        return torch.stack(tensors, dim=FRAME_AXIS) if are_frames else torch.cat(tensors)

    return MadeTensor(shape, first.format, sum(part.num_bytes for part in parts), read)


EXPONENT_BIAS = 127
_STACK = re.compile(
    r"(?P<prefix>.*\.experts)\.(?P<projection>gate_proj|up_proj|down_proj|gate_up_proj)"
    r"(?P<kind>\.weight|\.bias)?"
)
_INTERLEAVED = re.compile(
    r"(?P<prefix>.*\.experts)\.(?P<projection>gate_up_proj|down_proj)(_blocks|_scales|_bias)?"
)


def by_expert(files: TensorFiles) -> TensorFiles:
    """Raises ``BadFileError``."""
    parts: Tensors = {}
    stacks = {name: match for name in files if (match := _STACK.fullmatch(name))}
    for source, match in stacks.items():
        stack = files[source]
        is_bias = match["kind"] == ".bias"
        if len(stack.shape) != 3 - is_bias:
            words = shape_in_words(stack.shape)
            raise BadFileError(f"{source} is {words}, and no stack of experts")
        num_rows = 1 if is_bias else stack.shape[1]
        names = [match["projection"]] if is_bias else _projections(match)
        count, shape = num_rows // len(names), stack.shape[2:]
        for name, expert, index in _each(match, names, stack.shape[0]):
            first = expert * num_rows + index * count
            if is_bias:
                read = partial(_vector, stack, first)
                parts[f"{name}.bias"] = _made(stack, stack.shape[1:], read)
            else:
                rows = partial(stack.stored_rows, first, first + count)
                parts[f"{name}.weight"] = _made(stack, (count, *shape), rows)
    return _replaced(files, parts, stacks)


def _vector(stack: FileTensor, index: int) -> torch.Tensor:
    return written_out(stack.stored_rows(index, index + 1)).view(-1)


def cut_transposed(files: SafetensorsFiles, hidden_size: int) -> TensorFiles:
    parts: Tensors = {}
    stacks = [name for name in files if _is_transposed(name, files, hidden_size)]
    for source in stacks:
        match, stack = _STACK.fullmatch(source), files[source]
        assert match is not None
        names = _projections(match)
        num_experts, inputs, num_outputs = stack.shape
        width = num_outputs // len(names)
        for name, expert, index in _each(match, names, num_experts):
            outputs = slice(index * width, (index + 1) * width)
            read = partial(_transposed, stack, expert, outputs)
            parts[f"{name}.weight"] = _made(stack, (width, inputs), read)
    return _replaced(files, parts, stacks)


def _is_transposed(name: str, files: SafetensorsFiles, hidden_size: int) -> bool:
    match, shape = _INTERLEAVED.fullmatch(name), files[name].shape
    if match is None or len(shape) != 3 or shape[1] == shape[2]:
        return False
    return hidden_size == (shape[1] if match["projection"] == "gate_up_proj" else shape[2])


def _transposed(stack: SafeTensor, expert: int, outputs: slice) -> torch.Tensor:
    return stack.columns(expert, outputs).T.contiguous()


def cut_interleaved(files: SafetensorsFiles) -> TensorFiles:
    """Raises ``BadFileError``."""
    parts: Tensors = {}
    stacks = {name: match for name in files if (match := _INTERLEAVED.fullmatch(name))}
    for source, match in stacks.items():
        if source.endswith("_bias"):
            parts |= _interleaved(files, source.removesuffix("_bias"), match)
    return _replaced(files, parts, stacks)


def _interleaved(files: SafetensorsFiles, source: str, match: re.Match[str]) -> Tensors:
    biases, names = files[f"{source}_bias"], _projections(match)
    if len(biases.shape) != 2:
        words = shape_in_words(biases.shape)
        raise BadFileError(f"{source}_bias is {words}, and no stack of vectors")
    num_experts, num_outputs = biases.shape
    each = [
        (name, expert, slice(index, None, len(names)), len(range(index, num_outputs, len(names))))
        for name, expert, index in _each(match, names, num_experts)
    ]
    parts: Tensors = {}
    for name, expert, outputs, count in each:
        parts[f"{name}.bias"] = _made(biases, (count,), partial(_entry, biases, expert, outputs))
    if {f"{source}_blocks", f"{source}_scales"} <= files.keys():
        blocks, scales = files[f"{source}_blocks"], files[f"{source}_scales"]
        groups = scales.shape[2:]
        _check_shape(f"{source}_scales", scales, (*biases.shape, *groups[:1]))
        _check_shape(f"{source}_blocks", blocks, (*biases.shape, *groups, GROUP_FEATURES // 2))
        row_bytes = (blocks.num_bytes + scales.num_bytes) // math.prod(biases.shape)
        for name, expert, outputs, count in each:
            read = partial(_packed, blocks, scales, expert, outputs, f"{name}.weight")
            shape = count, groups[0] * GROUP_FEATURES
            parts[f"{name}.weight"] = MadeTensor(shape, MXFP4, count * row_bytes, read)
    elif source in files:
        stack = files[source]
        _check_shape(source, stack, (num_experts, *stack.shape[1:2], num_outputs))
        for name, expert, outputs, count in each:
            read_dense = partial(_transposed, stack, expert, outputs)
            parts[f"{name}.weight"] = _made(stack, (count, stack.shape[1]), read_dense)
    return parts


def _entry(stack: SafeTensor, expert: int, outputs: slice) -> torch.Tensor:
    return stack.part(expert)[outputs]


def _packed(
    blocks: SafeTensor, scales: SafeTensor, expert: int, outputs: slice, name: str
) -> GroupedWeight:
    return unpacked(_entry(blocks, expert, outputs), _entry(scales, expert, outputs), name)


def unpacked(blocks: torch.Tensor, scales: torch.Tensor, name: str = "a weight") -> GroupedWeight:
    """``blocks`` (rows, groups, 16) uint8, the lower four bits first; ``scales`` (rows, groups)
    uint8 exponents. Exact. Raises ``BadFileError``."""
    values = torch.tensor(TWICE_THE_MXFP4_VALUES, dtype=torch.int8)
    pairs = torch.stack((blocks & 15, blocks >> 4), dim=-1)
    codes = values[pairs.flatten().int()].view(blocks.shape[0], -1)
    exponents = scales.int() - EXPONENT_BIAS - 1
    if bool((scales == 255).any()):
        raise BadFileError(f"{name} has a scale that is not a number")
    powers = torch.ldexp(torch.ones(exponents.shape), exponents)
    return GroupedWeight(bits=8, codes=codes, scales=powers, is_mxfp4=True)


def _each(
    match: re.Match[str], names: Collection[str], num_experts: int
) -> Iterator[tuple[str, int, int]]:
    for expert in range(num_experts):
        for index, name in enumerate(names):
            yield f"{match['prefix']}.{expert}.{name}", expert, index


def _projections(match: re.Match[str]) -> tuple[str, ...]:
    projection = match["projection"]
    return ("gate_proj", "up_proj") if projection == "gate_up_proj" else (projection,)


def _made(
    stack: FileTensor, shape: tuple[int, ...], read: Callable[[], torch.Tensor | StoredWeight]
) -> MadeTensor:
    num_bytes = stack.num_bytes * math.prod(shape) // math.prod(stack.shape)
    return MadeTensor(shape, stack.format, num_bytes, read)


def _replaced(
    files: TensorFiles, tensors: Mapping[str, FileTensor], sources: Collection[str]
) -> TensorFiles:
    if not tensors:
        return files
    others = {name: tensor for name, tensor in files.items() if name not in sources}
    return TensorFiles({**others, **tensors}, files.close)


def _check_shape(name: str, stack: FileTensor, expected: tuple[int, ...]) -> None:
    if stack.shape != expected:
        raise WrongShapeError(name, expected, stack.shape)
