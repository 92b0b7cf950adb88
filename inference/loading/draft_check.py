"""Whether one model's drafts can serve another, by their configs and their vocabularies."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from inference.models.cache.kv_format import cache_layout
from inference.models.config import ModelConfig
from inference.protocol.load_errors import BadSourceError, OtherVocabularyError


def takes_draft_model(answering: ModelConfig) -> bool:
    """A drafter reads the blocks of all earlier tokens; a sliding window gives up the oldest."""
    return answering.widest_window is None


def check_draft_config(config: ModelConfig, source: str) -> None:
    """``source``: of the draft model, for the message. Raises ``BadSourceError``."""
    if cache_layout(config).has_states:
        raise BadSourceError(
            f"the draft model {source} has recurrent layers, whose state cannot be taken back; "
            "choose one whose layers are all attention"
        )


def check_shared_vocabulary(answering_dir: Path, drafting_dir: Path, drafting: str) -> None:
    """Compares the vocabularies of two models' tokenizer directories. What only fills up the longer
    one does not count. ``drafting`` names the drafting model. Raises ``OtherVocabularyError``."""
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
