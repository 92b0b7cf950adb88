"""The shape of an embedding model, or of one that scores pairs of texts. Imports
neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pooling = Literal["cls", "mean", "max", "last"]
"""Makes one vector of those of an input's tokens: the first token's, their mean, the largest value
of each dimension, or the last token's."""
Activation = Literal["sigmoid", "identity"]
"""Makes a score of the one number that a cross-encoder computes for a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    architecture: str
    """``model_type`` of config.json."""
    vocab_size: int
    hidden_size: int
    """The width of a token's vector, and so of an input's."""
    intermediate_size: int
    max_input_tokens: int
    """The most tokens of one input, special ones included: the model's positions, or fewer where
    its files declare a lower limit."""
    pad_token_id: int
    pooling: Pooling
    normalize: bool
    """Vectors are brought to length 1."""
    is_matryoshka: bool = False
    """The model declares that the leading dimensions of its vectors are of use alone."""
    matryoshka_dimensions: tuple[int, ...] = ()
    """Their numbers, where it names them; empty: any number."""
    activation: Activation | None = None
    """The end of a model that scores pairs; ``None``: it makes vectors."""
    separator_token_id: int | None = None
    """The separator between the texts of a pair, where the model has segment ids for them;
    ``None``: it has none."""
    prompt_names: tuple[str, ...] = ()
    """Texts that the model knows to be put before inputs. They are not: clients write them."""

    @property
    def dimensions(self) -> int:
        """Numbers for one input."""
        return self.hidden_size if self.activation is None else 1

    def describe(self) -> str:
        """Describes the model's output, for people."""
        if self.activation is not None:
            return f"one score for a pair ({self.activation})"
        words = f"{self.pooling} pooling"
        if self.normalize:
            words += ", normalised"
        if self.prompt_names:
            names = ", ".join(self.prompt_names)
            words += f"; its prompts ({names}) are left to clients to write before their inputs"
        return words
