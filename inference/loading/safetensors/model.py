"""The tensors of a safetensors model, as the decoder that its family declares asks for them.

files ─▶ codes taken apart ─▶ stacks of experts cut up ─▶ the family's names ─▶ parts joined
         packed_files          interleaved_experts,        named_files          joined_tensors
                               transposed_experts                               ─▶ each expert alone
                                                                                   expert_files
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.loading.config.hub_config import read_json
from inference.loading.safetensors.interleaved_experts import cut_interleaved
from inference.loading.safetensors.packed_files import PackedFiles
from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.safetensors.transposed_experts import cut_transposed
from inference.loading.sources.files import ModelFiles
from inference.loading.weights.expert_files import by_expert
from inference.loading.weights.joined_tensors import with_joined_tensors
from inference.loading.weights.named_files import NamedFiles, with_predictor, without_absent_tower
from inference.loading.weights.tensor_files import TensorFiles
from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.quantization import read_quantization
from inference.models.families.registry import family_of


@dataclass(frozen=True, slots=True)
class SafetensorsModel:
    config: ModelConfig
    """The config, without a tower that the files do not hold."""
    tensors: TensorFiles
    left_out: str
    """A sentence for people: what of the files the model does not compute with."""


def open_safetensors(
    files: ModelFiles, config: ModelConfig, *, wants_predictor: bool = False
) -> SafetensorsModel:
    """``wants_predictor``: also open the multi-token prediction layer, where the files have one.
    Raises ``BadFileError``."""
    opened = _opened(files, has_integers=family_of(config).uses_transformers)
    family = family_of(config)
    config = without_absent_tower(config, opened.names)
    if wants_predictor:
        config = with_predictor(config, family, opened.names)
    if isinstance(opened, SafetensorsFiles) and not family.uses_transformers:
        opened = _cut(opened, family, config)
    named = NamedFiles(opened, family, config)
    # Only transformers knows what its own modules make of experts.
    tensors = named if family.uses_transformers else by_expert(with_joined_tensors(named))
    return SafetensorsModel(config, tensors, named.left_out)


def _opened(files: ModelFiles, *, has_integers: bool) -> TensorFiles:
    quantization = read_quantization(read_json(files.directory / "config.json"))
    opened = SafetensorsFiles(
        files.weights, is_quantized=quantization is not None, has_integers=has_integers
    )
    return opened if quantization is None else PackedFiles(opened, quantization)


def _cut(files: SafetensorsFiles, family: Family, config: ModelConfig) -> TensorFiles:
    if family.has_transposed_experts:
        return cut_transposed(files, config.hidden_size)
    return cut_interleaved(files)
