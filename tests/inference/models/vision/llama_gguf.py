"""The text model of a checkpoint with a tower as llama.cpp's converter writes it, a llama or a
mistral."""

from __future__ import annotations

from pathlib import Path

import gguf
from transformers import PreTrainedModel

from tests.inference.models.families import tiny_gguf
from tests.inference.models.families.parity import in_pairs

NESTED = ("model.text_model.", "model.language_model.")


def save_text(
    reference: PreTrainedModel, path: Path, named: dict[int, str], architecture: str = "llama"
) -> Path:
    """``named``: the tokens of the vocabulary that are no numbers."""
    text = reference.config.get_text_config()
    writer = gguf.GGUFWriter(path, architecture)
    tiny_gguf.add_sizes(writer, text)
    writer.add_rope_dimension_count(text.head_dim)
    writer.add_rope_freq_base(text.rope_parameters["rope_theta"])
    writer.add_vocab_size(text.vocab_size)
    tiny_gguf.add_vocabulary(writer, text.vocab_size, named, pre="smollm", control=("<", "["))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, text.num_hidden_layers)
    for name, tensor in reference.state_dict().items():
        own = next((name.replace(p, "model.") for p in NESTED if name.startswith(p)), name)
        if own == name and name != "lm_head.weight":
            continue
        if own == "lm_head.weight" and reference.config.tie_word_embeddings:
            continue
        is_rotated = ".q_proj." in own or ".k_proj." in own
        values = in_pairs(tensor, text.head_dim) if is_rotated else tensor
        writer.add_tensor(tiny_gguf.name_of(names, own), values.float().contiguous().numpy())
    return tiny_gguf.close(writer, path)
