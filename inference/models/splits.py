"""The part of a model that a stage or a rank holds: a stage has some of the layers, a rank a share
of every layer, by what the family declares. Pure; imports no torch.

Stages
    whole     0 1 2 3 | 4 5 6          model.layers.4.mlp… of the files
    stage 1             0 1 2          is model.layers.0.mlp… of its own config
    beside the layers: tables, the last norm, the tower: the first stage's

Ranks
    queries' heads      0 1 2 3 | 4 5 6 7         as many on each rank
    keys' and values'       0   |   1             or, with fewer of them than ranks:  0 0 | 1 1
    features of an MLP  [  5 groups | 4 groups ]  cut where packed weights' groups end
    experts, tokens     [ 0 1 2 | 3 4 ]           the last rank may have fewer

    column, table       [ rows of this rank ]     row   [ columns of this rank ]
    stacked             [ q .. ][ k .. ][ v .. ]  ─▶  this rank's part of each, side by side"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from inference.models.config import ModelConfig
from inference.models.errors import UnsplittableError
from inference.models.families.registry import family_of
from inference.models.families.roles import SplitKind, TensorRole

IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class LayerRange:
    """``[first, last)``"""

    first: int
    last: int

    @property
    def is_first(self) -> bool:
        """The first stage has the embeddings and the output head beside its layers."""
        return self.first == 0

    def __len__(self) -> int:
        return self.last - self.first

    def __str__(self) -> str:
        return f"{self.first} to {self.last - 1}" if len(self) > 1 else str(self.first)

    def has_tensor(self, name: str) -> bool:
        match = IN_LAYER.match(name)
        return self.is_first if match is None else self.first <= int(match[1]) < self.last

    def own_name(self, name: str) -> str | None:
        """The stage's name of the whole model's ``name``; ``None``: another stage's."""
        match = IN_LAYER.fullmatch(name)
        if match is None:
            return name if self.is_first else None
        index = int(match[1])
        in_stage = self.first <= index < self.last
        return f"model.layers.{index - self.first}.{match[2]}" if in_stage else None

    def whole_name(self, name: str) -> str:
        match = IN_LAYER.fullmatch(name)
        return name if match is None else f"model.layers.{int(match[1]) + self.first}.{match[2]}"


def check_ranges(config: ModelConfig, ranges: Sequence[LayerRange]) -> None:
    """Raises ``UnsplittableError``."""
    if family_of(config).uses_transformers:
        raise UnsplittableError(
            f"{config.architecture} is computed by the transformers backend, which has no stages; "
            "load it on one device"
        )
    bounds = [0, *(one.last for one in ranges)]
    are_in_order = [one.first for one in ranges] == bounds[:-1] and all(map(len, ranges))
    if not are_in_order or bounds[-1] != config.num_layers:
        given = ", ".join(f"[{one.first}, {one.last})" for one in ranges)
        raise UnsplittableError(
            f"stages of the layers {given} are not the model's {config.num_layers} layers, each "
            f"once and in order: the first begins with 0, the last ends with {config.num_layers}"
        )


def stage_config(config: ModelConfig, *ranges: LayerRange) -> ModelConfig:
    indexes = [index for one in ranges for index in range(one.first, one.last)]
    mixers, mlps = config.mixer_kinds, config.mlp_kinds
    return replace(
        config,
        num_layers=len(indexes),
        mixers=tuple(mixers[index] for index in indexes),
        mlps=tuple(mlps[index] for index in indexes),
        layer_kv=tuple(config.layer_kv[index] for index in indexes if config.layer_kv),
        has_predictor=False,
    )


MOST_RANKS = 64

Units = tuple[int, int]
"""``[first, last)``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    rank: int
    num_ranks: int
    units: Mapping[SplitKind, Units]

    def count(self, kind: SplitKind) -> int:
        first, last = self.units[kind]
        return last - first


def rank_share(
    config: ModelConfig, rank: int, num_ranks: int, groups: Mapping[SplitKind, int] | None = None
) -> RankShare:
    """``groups``: features that stay together in packed weights. Raises ``UnsplittableError``."""
    groups = groups or {}
    if reason := _problem(config, num_ranks, groups):
        others = [str(number) for number in range(2, 9) if not _problem(config, number, groups)]
        nearest = f"one of {', '.join(others)}, or 1" if others else "1"
        raise UnsplittableError(f"{reason}; set tensor_parallel to {nearest}")
    return RankShare(rank=rank, num_ranks=num_ranks, units=_units(config, rank, num_ranks, groups))


def rank_config(config: ModelConfig, share: RankShare) -> ModelConfig:
    """The vocabulary stays whole: logits are gathered."""
    experts, delta, conv = config.experts, config.delta, config.short_conv
    if experts is not None:
        shared = "shared_inner" in share.units
        experts = replace(
            experts,
            held=share.units["experts"],
            shared_intermediate_size=share.count("shared_inner") if shared else None,
        )
    if delta is not None:
        key_heads = share.count("key_heads")
        per_key_head = delta.num_value_heads // delta.num_key_heads
        delta = replace(delta, num_key_heads=key_heads, num_value_heads=key_heads * per_key_head)
    if conv is not None:
        conv = replace(conv, channels=share.count("channels"))
    return replace(
        config,
        num_heads=share.count("heads"),
        num_kv_heads=share.count("kv_heads"),
        intermediate_size=share.count("inner"),
        experts=experts,
        delta=delta,
        short_conv=conv,
    )


def kv_replicas(config: ModelConfig, num_ranks: int) -> int:
    """Ranks that hold each head of keys and values."""
    return max(1, num_ranks // config.num_kv_heads)


def _problem(config: ModelConfig, num_ranks: int, groups: Mapping[SplitKind, int]) -> str | None:
    heads, kv_heads = config.num_heads, config.num_kv_heads
    if not 1 <= num_ranks <= MOST_RANKS:
        return f"{num_ranks} ranks are not between 1 and {MOST_RANKS}"
    if num_ranks == 1:
        return None
    if family_of(config).uses_transformers:
        return f"{config.architecture} is computed by the transformers backend, which is not split"
    if config.mamba is not None:
        return "a Mamba-2 layer's norm is of many heads together, and is not split"
    if heads % num_ranks:
        return f"{num_ranks} ranks cannot share {heads} attention heads evenly"
    if kv_heads % num_ranks and num_ranks % kv_heads:
        return f"{num_ranks} ranks can neither share nor repeat {kv_heads} heads of keys and values"
    if config.delta is not None and config.delta.num_key_heads % num_ranks:
        number = config.delta.num_key_heads
        return f"{num_ranks} ranks cannot share {number} key heads of recurrent layers evenly"
    for kind, count in _uneven(config).items():
        group = groups.get(kind, 1)
        if count // group < num_ranks or count % group:
            together = f" in groups of {group}" if group > 1 else ""
            return f"{num_ranks} ranks cannot share {count} {_WORDS[kind]}{together}"
    return None


_WORDS: dict[SplitKind, str] = {
    "inner": "features of an MLP",
    "shared_inner": "features of the shared expert",
    "experts": "experts",
    "channels": "channels of a convolution",
    "vocabulary": "tokens of the vocabulary",
}


def _uneven(config: ModelConfig) -> dict[SplitKind, int]:
    """Counts that need not be shared evenly."""
    counts: dict[SplitKind, int] = {
        "vocabulary": config.vocab_size,
        "inner": config.intermediate_size,
    }
    if config.short_conv is not None:
        counts["channels"] = config.short_conv.channels
    if config.experts is not None:
        counts["experts"] = config.experts.num_experts
        if config.experts.shared_intermediate_size is not None:
            counts["shared_inner"] = config.experts.shared_intermediate_size
    return counts


def _units(
    config: ModelConfig, rank: int, num_ranks: int, groups: Mapping[SplitKind, int]
) -> dict[SplitKind, Units]:
    units = {
        kind: _shared_out(count, rank, num_ranks, groups.get(kind, 1))
        for kind, count in _uneven(config).items()
    }
    units["heads"], units["kv_heads"] = (
        _shared_out(count, rank, num_ranks) for count in (config.num_heads, config.num_kv_heads)
    )
    if config.delta is not None:
        units["key_heads"] = _shared_out(config.delta.num_key_heads, rank, num_ranks)
    if config.num_kv_heads < num_ranks:
        first = rank * config.num_kv_heads // num_ranks
        units["kv_heads"] = first, first + 1
    return units


def _shared_out(count: int, rank: int, num_ranks: int, group: int = 1) -> Units:
    each, more = divmod(count // group, num_ranks)
    first = rank * each + min(rank, more)
    last = first + each + (rank < more)
    return first * group, last * group


@dataclass(frozen=True, slots=True)
class Cut:
    axis: int
    """0 or 1: of inputs."""
    ranges: tuple[tuple[int, int], ...]
    """``[begin, end)`` along it, side by side in this order."""

    @property
    def length(self) -> int:
        return sum(end - begin for begin, end in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCuts:
    """By Hugging Face's names. Other tensors are whole on every rank."""

    cuts: Mapping[str, Cut]
    absent: frozenset[str]
    """The tensors of experts that other ranks hold."""
    zeroed: frozenset[str]
    """Biases of sums that another rank adds."""


def rank_cuts(config: ModelConfig, share: RankShare) -> RankCuts:
    """``config``: of the whole model."""
    cuts: dict[str, Cut] = {}
    absent: set[str] = set()
    zeroed: set[str] = set()
    for tensor in family_of(config).tensors(config):
        if tensor.parts and tensor.sections:
            first, last = share.units[tensor.sections[0].kind]
            absent.update(tensor.parts[:first], tensor.parts[last:])
        elif tensor.sections:
            cuts[tensor.name] = cut_of(tensor, share)
        elif tensor.role == "row_bias" and share.rank:
            zeroed.add(tensor.name)
    return RankCuts(cuts=cuts, absent=frozenset(absent), zeroed=frozenset(zeroed))


def cut_of(tensor: TensorRole, share: RankShare) -> Cut:
    ranges: list[tuple[int, int]] = []
    begin = 0
    for section in tensor.sections:
        first, last = share.units[section.kind]
        ranges.append((begin + first * section.width, begin + last * section.width))
        begin += section.features
    return Cut(1 if tensor.role == "row" else 0, tuple(ranges))


def input_groups(config: ModelConfig, group_of: Mapping[str, int]) -> dict[SplitKind, int]:
    """Inputs of each kind that stay together. ``group_of``: by the names of packed weights."""
    found: dict[SplitKind, int] = {}
    for tensor in family_of(config).tensors(config):
        if tensor.role == "row":
            for section in tensor.sections:
                group = group_of.get(tensor.name, 1)
                found[section.kind] = max(found.get(section.kind, 1), group)
    return found


def check_groups(config: ModelConfig, share: RankShare, group_of: Mapping[str, int]) -> None:
    """Raises ``UnsplittableError``, naming the first weight that would be cut within a group."""
    for tensor in family_of(config).tensors(config):
        group = group_of.get(tensor.name, 1)
        if tensor.role != "row" or group == 1:
            continue
        for begin, end in cut_of(tensor, share).ranges:
            if begin % group or end % group:
                raise UnsplittableError(
                    f"{tensor.name} is packed in groups of {group} inputs, and rank {share.rank} "
                    f"of {share.num_ranks} would have inputs {begin} to {end}; load a file that "
                    "packs it otherwise, or set tensor_parallel to 1"
                )
