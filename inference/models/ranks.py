"""A model on several ranks: their collectives, and each rank's decoder: the family's own over the
rank's weights, with sums between.

    token ids ─▶ rows of this rank's tokens, zero for others' ─▶ sum ─▶ embeddings
    layer     ─▶ mixer's part ─▶ sum ─▶ MLP's part ─▶ sum
    hidden    ─▶ logits of this rank's tokens ─▶ gathered ─▶ all logits

Collectives are NCCL's on CUDA, and on CPU gloo's, over loopback alone. One that a rank does not
join is ended by dropping the group: the others' calls then raise, and the engine ends.

Rank 0 chooses all ranks' kernels: each would time them for itself, and choose differently where a
card is busy.

    rank 0   weight 0: packed ─▶ weight 1: torch's ─▶ …      by its own trials and times
                  │ store              │
    others   weight 0 ◀┘         weight 1 ◀┘                 in the same order, timing nothing"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore, Store
from torch.nn.functional import pad

from inference.models.config import ModelConfig
from inference.models.cuda.setup import install_kernels
from inference.models.decoder import DecoderLayer, DecoderModel
from inference.models.errors import RanksDisagreeError
from inference.models.kv_format import KVFormat
from inference.models.layers.attention_mixer import AttentionMixer
from inference.models.registry import build_model
from inference.models.splits import RankShare, Units, kv_replicas, rank_config
from inference.models.weight_source import Embedding, ForwardedWeights, Linear, WeightSource

LOOPBACK = "127.0.0.1"


class TorchRankGroup:
    """Belongs to one thread, except for ``drop``."""

    def __init__(self, rank: int, num_ranks: int, device: torch.device) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._device = device
        self._backend: Any = None

    def join(self, store: Store, timeout_s: float) -> None:
        """``store`` is not used afterwards. ``timeout_s``: of this and of each collective. Raises
        torch's exceptions and ``RanksDisagreeError``."""
        timeout = timedelta(seconds=timeout_s)
        store.set_timeout(timeout)
        if self._device.type == "cuda":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._backend = distributed.ProcessGroupNCCL(store, self.rank, self.num_ranks, options)
        else:
            self._backend = _loopback_gloo(store, self.rank, self.num_ranks, timeout)
        self._check_sums()

    def drop(self) -> None:
        """Calls of other ranks that wait for this one raise. Any thread may call it."""
        backend, self._backend = self._backend, None
        if backend is not None and self._device.type == "cuda":
            backend.abort()  # gloo's is gone with the last reference

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """``part`` may be overwritten."""
        part = part.contiguous()
        self._joined.allreduce([part]).wait()
        return part

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """By rank; all parts are of one shape."""
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.num_ranks)]
        self._joined.allgather([parts], [part]).wait()
        return parts

    def synchronize(self) -> None:
        """NCCL only queues collectives: a call returns also where another rank never comes."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @property
    def _joined(self) -> Any:
        """torch's stubs know no group that is made by itself."""
        if self._backend is None:
            raise distributed.DistError("this rank has left its process group")
        return self._backend

    def _check_sums(self) -> None:
        own = torch.tensor([1.0, float(self.rank)], device=self._device)
        expected = [self.num_ranks, self.num_ranks * (self.num_ranks - 1) / 2]
        found = self.sum(own).tolist()
        if found != expected:
            raise RanksDisagreeError(f"the ranks' first sum is {found} and not {expected}")


def file_store(path: Path, num_ranks: int) -> Store:
    """For processes of one host; opens no port. ``path``: the same new file for all."""
    return FileStore(str(path), num_ranks)


def _loopback_gloo(store: Store, rank: int, num_ranks: int, timeout: timedelta) -> Any:
    """gloo on loopback: by itself it would listen on whatever the host's name resolves to."""
    gloo: Any = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    options._timeout = timeout
    return gloo(store, rank, num_ranks, options)


BUILD_TIMEOUT_S = 3600.0
"""Ranks read their files from one disk."""
FILE = "kernels"


class SharedChoices:
    """Ranks ask in one order: that of their layers."""

    def __init__(
        self, meeting: Path, rank: int, num_ranks: int, timeout_s: float = BUILD_TIMEOUT_S
    ) -> None:
        """``timeout_s``: how long rank 0 may take from one weight to the next."""
        self._store = file_store(meeting.with_name(FILE), num_ranks)
        self._store.set_timeout(timedelta(seconds=timeout_s))
        self._is_first = rank == 0
        self._num_asked = 0

    def __call__(self, decide: Callable[[], bool]) -> bool:
        """Raises torch's ``RuntimeError`` where rank 0 decides nothing in time."""
        key = f"weight {self._num_asked}"
        self._num_asked += 1
        if not self._is_first:
            return bool(self._store.get(key) == b"1")
        chosen = decide()
        self._store.set(key, "1" if chosen else "0")
        return chosen


class Summed:
    """A rank's part of a mixer or an MLP."""

    def __init__(self, part: Callable[..., torch.Tensor], group: TorchRankGroup) -> None:
        self._part = part
        self._group = group

    def __call__(self, *given: Any, **named: Any) -> torch.Tensor:
        return self._group.sum(self._part(*given, **named))


class WideNormedQKV:
    """Norms over all ranks' heads. Decode rows and prompts make one sum each, whatever kernel runs:
    ranks that chose differently must not wait for sums that another does not make."""

    is_phaseless = False

    def __init__(self, mixer: AttentionMixer, config: ModelConfig, group: TorchRankGroup) -> None:
        """``config``: of the whole model."""
        assert mixer.query_norm is not None and mixer.key_norm is not None
        self._qkv = mixer.qkv
        self._norms = mixer.query_norm, mixer.key_norm
        self._eps = config.rms_norm_eps
        self._group = group
        replicas = kv_replicas(config, group.num_ranks)
        self._features = (
            config.num_heads * config.head_dim,
            replicas * config.num_kv_heads * config.head_dim,
        )
        self.in_features = mixer.qkv.in_features
        self.out_features = mixer.qkv.out_features

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return self._normed(self._qkv.decode(x))

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        return self._normed(self._qkv.prefill(x))

    def _normed(self, qkv: torch.Tensor) -> torch.Tensor:
        widths = [len(norm) for norm in self._norms]
        *heads, values = torch.split(qkv, [*widths, qkv.shape[1] - sum(widths)], dim=1)
        squares = torch.stack([part.float().square().sum(dim=1) for part in heads], dim=1)
        means = self._group.sum(squares) / torch.tensor(self._features, device=qkv.device)
        scales = torch.rsqrt(means + self._eps).unsqueeze(2).unbind(1)
        normed = [
            (part.float() * scale).to(qkv.dtype) * norm
            for part, scale, norm in zip(heads, scales, self._norms, strict=True)
        ]
        return torch.cat((*normed, values), dim=1)


def spread(layer: DecoderLayer, config: ModelConfig, group: TorchRankGroup) -> DecoderLayer:
    """``config``: of the whole model."""
    mixer, mlp = layer.mixer, layer.mlp
    assert mixer and mlp, "layers with one of the two come with Mamba-2, which is not split"
    if isinstance(mixer, AttentionMixer) and config.qk_norm and config.is_qk_norm_wide:
        qkv: Linear = WideNormedQKV(mixer, config, group)
        mixer = replace(mixer, qkv=qkv, query_norm=None, key_norm=None)
    return replace(layer, mixer=Summed(mixer, group), mlp=Summed(mlp, group))


HEAD = "lm_head"


class RankWeights(ForwardedWeights):
    def __init__(
        self, weights: WeightSource, group: TorchRankGroup, shares: Sequence[RankShare]
    ) -> None:
        super().__init__(weights)
        self._group = group
        self._tokens = [share.units["vocabulary"] for share in shares]

    def linear(self, *names: str) -> Linear:
        linear = super().linear(*names)
        return GatheredHead(linear, self._group, self._tokens) if names == (HEAD,) else linear

    def embedding(self, name: str) -> Embedding:
        return SharedEmbedding(super().embedding(name), self._group, self._tokens)


class SharedEmbedding:
    def __init__(self, part: Embedding, group: TorchRankGroup, tokens: Sequence[Units]) -> None:
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
    is_phaseless = True
    """It sees only rows whose logits are wanted, and those at once."""

    def __init__(self, part: Linear, group: TorchRankGroup, tokens: Sequence[Units]) -> None:
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


def build_rank(
    config: ModelConfig,
    weights: WeightSource,
    context_tokens: int,
    kv_format: KVFormat | None,
    group: TorchRankGroup,
    shares: Sequence[RankShare],
) -> tuple[DecoderModel, str]:
    """``config``: of the whole model. No steps are captured. Raises what ``build_model`` does."""
    own = rank_config(config, shares[group.rank])
    rank_weights = RankWeights(weights, group, shares)
    model = build_model(own, rank_weights, context_tokens, kv_format)
    assert isinstance(model, DecoderModel), "transformers' modules are not split"
    words = "torch operators"
    if model.device.type == "cuda":
        _, words = install_kernels(model)
    model.layers = [spread(layer, config, group) for layer in model.layers]
    return model, words
