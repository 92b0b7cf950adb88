"""Which part of each tensor a rank reads, by what its family declares of it. Pure.

column, table   [ rows of this rank ]           row   [ columns of this rank ]
stacked         [ q .. ][ k .. ][ v .. ]  ─▶  this rank's part of each, side by side
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inference.models.config import ModelConfig
from inference.models.errors import UnsplittableError
from inference.models.families.family import SplitKind, TensorRole
from inference.models.families.registry import family_of
from inference.models.parallel.shares import RankShare


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
    """Which part of each tensor a rank has, by Hugging Face's names. Tensors in none of them are
    whole on every rank."""

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
    """How many inputs of each kind stay together. ``group_of``: the group size of each packed
    weight's inputs, by name; weights without an entry are not packed."""
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
