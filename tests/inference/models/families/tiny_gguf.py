"""What the writers of tiny GGUF files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch


def add_sizes(writer: gguf.GGUFWriter, text: Any, num_blocks: int | None = None) -> None:
    """``text``: a text model's config. ``num_blocks``: more than its layers where a file holds
    other blocks too."""
    writer.add_context_length(text.max_position_embeddings)
    writer.add_embedding_length(text.hidden_size)
    writer.add_block_count(num_blocks or text.num_hidden_layers)
    if getattr(text, "intermediate_size", None):
        writer.add_feed_forward_length(text.intermediate_size)
    writer.add_head_count(text.num_attention_heads)
    writer.add_head_count_kv(text.num_key_value_heads)
    if (head_dim := getattr(text, "head_dim", None)) is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(text.rms_norm_eps)


def add_vocabulary(
    writer: gguf.GGUFWriter,
    size: int,
    named: dict[int, str],
    *,
    pre: str = "qwen2",
    control: tuple[str, ...] = (),
) -> None:
    """A token for each number, but for those of ``named``. ``control``: how control tokens
    begin."""
    tokens = [named.get(token, str(token)) for token in range(size)]
    kinds = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds[token.startswith(control)] for token in tokens])
    writer.add_token_merges(["1 2"])


def name_of(names: gguf.TensorNameMap, name: str) -> str:
    """What a file calls a tensor of transformers' model."""
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def unstacked(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A stack of experts with gates apart from what goes up; any other tensor as it is."""
    if name.endswith("experts.gate_up_proj"):
        for part, values in zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=1), strict=True):
            yield name.replace("gate_up_proj", f"{part}.weight"), values
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", tensor
    else:
        yield name, tensor


def close(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Writes all that was added to ``path``, which the writer was made with."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
