"""A model as its configs and file headers describe it, checked to be complete; and whether one
model's drafts can serve another. Reads headers, and no weights."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from inference.loading.checked_config import check_tower
from inference.loading.gguf.config import check_vocabulary, read_gguf_model
from inference.loading.gguf.header import GGUFHeader
from inference.loading.gguf.tensors import GGUFTensorFiles
from inference.loading.hub_config import (
    learnt_config,
    read_directory_config,
    read_json,
    refuses_malformed,
)
from inference.loading.image_processor import with_bounded_pixels
from inference.loading.sources.files import ModelFiles
from inference.loading.weights.named_files import (
    by_expert,
    cut_interleaved,
    cut_transposed,
    named_files,
    with_joined_tensors,
    with_predictor,
    without_absent_tower,
)
from inference.loading.weights.packed_files import PackedFiles
from inference.loading.weights.tensor_files import SafetensorsFiles, TensorFiles
from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import has_gguf_predictor
from inference.models.families.quantization import read_quantization
from inference.models.families.registry import family_of
from inference.models.families.roles import TensorRole
from inference.models.kv_format import cache_layout
from inference.protocol.load_errors import (
    BadSourceError,
    MissingTensorError,
    OtherVocabularyError,
    WrongShapeError,
)


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """The caller closes ``files``."""

    config: ModelConfig
    files: TensorFiles
    left_out: str
    """A sentence for people: the tensors that the model does not use."""
    gguf_header: GGUFHeader | None
    """Set for a GGUF without a tokenizer.json beside it; its vocabulary was checked."""
    projector: Path | None = None


def describe_model(
    files: ModelFiles, device_type: str, *, wants_predictor: bool = False
) -> DescribedModel:
    """``device_type``: torch's name, which bounds the size of images. ``wants_predictor``: also
    open the multi-token prediction layer, if any. Raises ``UnknownArchitectureError``,
    ``BadFileError``, ``MissingFileError``."""
    describe = _described_gguf if files.is_gguf else _described_safetensors
    described = describe(files, device_type, wants_predictor=wants_predictor)
    try:
        _check_whole(described)
    except Exception:
        described.files.close()
        raise
    return described


def _described_safetensors(
    files: ModelFiles, device_type: str, *, wants_predictor: bool
) -> DescribedModel:
    config = read_directory_config(files.directory)
    config = learnt_config(_bounded(config, files, device_type))
    family = family_of(config)
    with refuses_malformed("a header of the safetensors files"):
        opened = _opened(files, has_integers=family.uses_transformers)
        config = without_absent_tower(config, opened)
        if wants_predictor:
            config = with_predictor(config, family, opened)
        if isinstance(opened, SafetensorsFiles) and family.has_transposed_experts:
            opened = cut_transposed(opened, config.hidden_size)
        elif isinstance(opened, SafetensorsFiles) and not family.uses_transformers:
            opened = cut_interleaved(opened)
        named, left_out = named_files(opened, family, config)
        # Only transformers knows what its own modules make of experts.
        tensors = named if family.uses_transformers else by_expert(with_joined_tensors(named))
        return DescribedModel(config, tensors, left_out, gguf_header=None)


def _opened(files: ModelFiles, *, has_integers: bool) -> TensorFiles:
    quantization = read_quantization(read_json(files.directory / "config.json"))
    opened = SafetensorsFiles(
        files.weights, is_quantized=quantization is not None, has_integers=has_integers
    )
    return opened if quantization is None else PackedFiles(opened, quantization)


def _described_gguf(
    files: ModelFiles, device_type: str, *, wants_predictor: bool
) -> DescribedModel:
    model = read_gguf_model(files, lambda config: _bounded(config, files, device_type))
    header, config = model.header, model.config
    if wants_predictor and family_of(config).predictor_name is not None:
        has_predictor = has_gguf_predictor(config, header.tensors)
        config = replace(config, has_predictor=has_predictor)
    has_tokenizer = (files.directory / "tokenizer.json").is_file()
    if not has_tokenizer:
        check_vocabulary(header)
    vocabulary = None if has_tokenizer else header
    if family_of(config).uses_transformers:
        from inference.loading.gguf.module import DequantisedTensors  # imports transformers

        tensors = DequantisedTensors(header, config)
        return DescribedModel(config, tensors, model.no_images, vocabulary)
    with refuses_malformed(f"the header of {header.path.name}"):
        found = GGUFTensorFiles(header, config)
        left_out = "; ".join(filter(None, (found.left_out, model.no_images)))
        whole = by_expert(with_joined_tensors(found))
        return DescribedModel(config, whole, left_out, vocabulary, model.projector)


def _bounded(config: ModelConfig, files: ModelFiles, device_type: str) -> ModelConfig:
    if files.wanted.is_text_only:
        return replace(config, vision=None)
    return with_bounded_pixels(config, device_type, os.environ)


def _check_whole(described: DescribedModel) -> None:
    config = check_tower(described.config)
    check_tensors(config, described.files)
    if family_of(config).uses_transformers:
        from inference.models.transformers_backend.hub_module import (
            declared_shapes,  # imports transformers
        )

        check_module_tensors(declared_shapes(config), described.files)


Shape = tuple[int, ...]

MOST_COUNTED = 1000


def check_tensors(config: ModelConfig, files: TensorFiles) -> None:
    lacking = (
        name
        for tensor in family_of(config).tensors(config)
        if tensor.name not in files and not tensor.is_optional
        for name in tensor.parts or (tensor.name,)
        if name not in files
    )
    missing = list(islice(lacking, MOST_COUNTED))
    if missing:
        count = f"{'more than ' if len(missing) == MOST_COUNTED else ''}{len(missing) - 1}"
        others = f" and {count} more" if len(missing) > 1 else ""
        raise MissingTensorError(f"the weight files lack {missing[0]}{others}")
    for tensor in family_of(config).tensors(config):
        for name, expected in _expected(tensor, files):
            found = files[name].shape
            if not _is_same(tensor, expected, found):
                raise WrongShapeError(name, expected, found)


def check_module_tensors(
    declared: Mapping[str, Shape], files: TensorFiles, prefix: str = ""
) -> None:
    """Only a transformers module knows how the files' tensors become its own, so tensors of one
    name need only hold as many numbers. ``prefix``: what files may put before the module's names,
    or leave out. Raises ``WrongShapeError``."""
    for name in files:
        names = name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}"
        own = next((own for own in names if own in declared), None)
        if own is None:
            continue
        expected, found = declared[own], files[name].shape
        if math.prod(expected) != math.prod(found):
            raise WrongShapeError(name, expected, found)


def _expected(tensor: TensorRole, names: Collection[str]) -> Iterator[tuple[str, Shape]]:
    """A weight's bias is read wherever files have one, also where no family declares it."""
    is_whole = tensor.name in names
    held = (tensor.name,) if is_whole else tensor.parts
    shape = tensor.shape if is_whole else tensor.shape[1:]
    for name in held:
        if name not in names:
            continue
        yield name, shape
        stem, _, kind = name.rpartition(".")
        if kind == "weight" and f"{stem}.bias" in names:
            yield f"{stem}.bias", shape[:1]


def _is_same(tensor: TensorRole, expected: Shape, found: Shape) -> bool:
    """Files may leave out axes of one entry."""
    if tensor.may_be_folded:
        return math.prod(found) == math.prod(expected)
    return found in (expected, tuple(size for size in expected if size != 1))


def takes_draft_model(answering: ModelConfig) -> bool:
    """A drafter reads the blocks of all earlier tokens; a sliding window gives up the oldest."""
    return answering.widest_window is None


def check_draft_config(config: ModelConfig, source: str) -> None:
    """Raises ``BadSourceError``."""
    if cache_layout(config).has_states:
        raise BadSourceError(
            f"the draft model {source} has recurrent layers, whose state cannot be taken back; "
            "choose one whose layers are all attention"
        )


def check_shared_vocabulary(answering_dir: Path, drafting_dir: Path, drafting: str) -> None:
    """The longer one's further tokens do not count. Raises ``OtherVocabularyError``."""
    texts, others = _by_id(answering_dir), _by_id(drafting_dir)
    for token_id in range(min(max(texts), max(others)) + 1):
        text, other = texts.get(token_id), others.get(token_id)
        if text != other:
            raise OtherVocabularyError(
                f"the draft model {drafting} has another vocabulary: token {token_id} is "
                f"{_shown(text)} to the model and {_shown(other)} to it; choose one of the same "
                "family and generation"
            )


def _by_id(directory: Path) -> dict[int, str]:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return {token_id: text for text, token_id in tokenizer.get_vocab().items()} or {-1: ""}


def _shown(text: str | None) -> str:
    return "no token" if text is None else repr(text)
