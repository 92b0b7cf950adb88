"""A ``WeightSource`` of one rank. It asks a source that has this rank's part of each weight, and
joins the tables of the vocabulary with the other ranks'.

    token ids ─▶ rows of this rank's tokens, nought for others' ─▶ sum ─▶ embeddings
    hidden    ─▶ logits of this rank's tokens ─▶ gathered ─▶ all logits
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from inference.models.parallel.group import RankGroup
from inference.models.parallel.shares import RankShare, Units
from inference.models.weights.weight_source import Embedding, ForwardedWeights, Linear, WeightSource

HEAD = "lm_head"


class RankWeights(ForwardedWeights):
    def __init__(
        self, weights: WeightSource, group: RankGroup, shares: Sequence[RankShare]
    ) -> None:
        """``shares``: of all ranks."""
        super().__init__(weights)
        self._group = group
        self._tokens = [share.units["vocabulary"] for share in shares]

    def linear(self, *names: str) -> Linear:
        linear = super().linear(*names)
        return GatheredHead(linear, self._group, self._tokens) if names == (HEAD,) else linear

    def embedding(self, name: str) -> Embedding:
        return SharedEmbedding(super().embedding(name), self._group, self._tokens)


class SharedEmbedding:
    """``part``: of this rank's tokens."""

    def __init__(self, part: Embedding, group: RankGroup, tokens: Sequence[Units]) -> None:
        self._part = part
        self._group = group
        self._tokens = tokens

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        first, last = self._tokens[self._group.rank]
        is_elsewhere = (token_ids < first) | (token_ids >= last)
        own = self._part.lookup((token_ids - first).clamp(0, last - first - 1))
        return self._group.sum(own.masked_fill(is_elsewhere.unsqueeze(1), 0))

    def as_linear(self) -> Linear:
        return GatheredHead(self._part.as_linear(), self._group, self._tokens)


class GatheredHead:
    """``part``: the rows of the head that are this rank's tokens'."""

    is_phaseless = True
    """It sees only rows whose logits are wanted, and those at once."""

    def __init__(self, part: Linear, group: RankGroup, tokens: Sequence[Units]) -> None:
        self.in_features = part.in_features
        self.out_features = tokens[-1][1]
        self._part = part
        self._group = group
        self._counts = [last - first for first, last in tokens]

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        logits = self._part.decode(x)
        missing = max(self._counts) - logits.shape[1]
        parts = self._group.gather(pad(logits, (0, missing)) if missing else logits)
        own = [part[:, :count] for part, count in zip(parts, self._counts, strict=True)]
        return torch.cat(own, dim=1)

    prefill = decode
