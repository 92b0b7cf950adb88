"""Whether the vocabulary in a GGUF file's metadata is whole: as many tokens as the embedding has
rows, a type or score for each where the file has any, and special tokens that are among them.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.loading.gguf.header import GGUFHeader
from inference.protocol.load_errors import BadFileError

TABLE = "token_embd.weight"
SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "padding")
"""The tokens whose ids are read."""


def check_vocabulary(header: GGUFHeader) -> None:
    """A file without a vocabulary passes: its tokenizer comes from elsewhere. Raises
    ``BadFileError``."""
    metadata = header.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return
    _check_list(metadata, "tokens", str)
    num_tokens = len(tokens) if isinstance(tokens, list) else 0
    table = header.tensors.get(TABLE)
    if table is not None and table.shape[0] != num_tokens:
        raise BadFileError(
            f"the vocabulary has {num_tokens} tokens, and the embedding {TABLE} has "
            f"{table.shape[0]} rows"
        )
    _check_list(metadata, "merges", str)
    for key, kind in (("token_type", int), ("scores", float)):
        listed = _check_list(metadata, key, kind)
        if listed is not None and len(listed) != num_tokens:
            raise BadFileError(
                f"tokenizer.ggml.{key} has {len(listed)} entries for {num_tokens} tokens"
            )
    for special in SPECIAL:
        key = f"tokenizer.ggml.{special}_token_id"
        token_id = metadata.get(key, 0)
        if not isinstance(token_id, int) or not 0 <= token_id < num_tokens:
            raise BadFileError(
                f"{key} is {token_id!r}, which is outside the vocabulary of {num_tokens} tokens"
            )


def _check_list(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any] | None:
    """``None`` where the file has none. Raises ``BadFileError``."""
    listed = metadata.get(f"tokenizer.ggml.{name}")
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(isinstance(item, kind) for item in listed):
        raise BadFileError(f"tokenizer.ggml.{name} is no list of {kind.__name__} values")
    return listed
