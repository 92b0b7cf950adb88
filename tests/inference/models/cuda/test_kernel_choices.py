"""Ranks run the kernels that rank 0 chose, whatever their own trials and times are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from inference.models.cuda.packed import PackedLinear
from inference.models.cuda.trials import PackedTrials
from inference.models.errors import UnlikeKernelsError
from inference.models.layers.linear import LinearFactory, QuantizedLinear
from inference.models.parallel.group import SharedChoices
from inference.models.weights.stored import GroupedWeight

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton's interpreter runs trials on processors"
)


def weight() -> GroupedWeight:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (16, 64), generator=generator).to(torch.uint8)
    scales = torch.rand(16, 2, generator=generator).half()
    return GroupedWeight(bits=4, codes=codes, scales=scales, minimums=-8 * scales)


class Rank(LinearFactory):
    """The factory of a rank whose card takes ``ours_ms`` by our kernel and 2 by torch's."""

    def __init__(self, meeting: Path, rank: int, ours_ms: float, reason: str | None = None) -> None:
        super().__init__(CPU, torch.float32)
        self.num_timed = 0
        readings = iter([ours_ms, 2.0])

        def timed(work: Callable[[], object], device: torch.device) -> float:
            self.num_timed += 1
            return next(readings)

        self.packed_trials = PackedTrials(CPU, torch.float32, timed)
        if reason is not None:
            self.packed_trials.reason_against = lambda _: reason  # type: ignore[method-assign]
        self.choose_kernel = SharedChoices(meeting, rank, 2, timeout_s=5)


@pytest.mark.parametrize(
    ("first_ms", "other_ms", "kind"), [(1.0, 3.0, PackedLinear), (3.0, 1.0, QuantizedLinear)]
)
def test_rank_0_decides(tmp_path: Path, first_ms: float, other_ms: float, kind: type) -> None:
    ranks = [Rank(tmp_path / "m", 0, first_ms), Rank(tmp_path / "m", 1, other_ms)]
    for rank in ranks:
        for _ in range(2):
            assert isinstance(rank.linear(weight())[0], kind)
    assert [rank.num_timed for rank in ranks] == [2, 0]


def test_a_rank_that_cannot_run_it_is_named(tmp_path: Path) -> None:
    first, other = Rank(tmp_path / "m", 0, 1.0), Rank(tmp_path / "m", 1, 1.0, "off by 0.3")
    first.linear(weight())
    with pytest.raises(UnlikeKernelsError, match=r"rank 0 multiplies 4-bit weights packed.*0\.3"):
        other.linear(weight())


def test_a_rank_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "m", 1, 1.0)
    rank.choose_kernel = SharedChoices(tmp_path / "m", 1, 2, timeout_s=0.1)
    with pytest.raises(RuntimeError, match="weight 0"):
        rank.linear(weight())
