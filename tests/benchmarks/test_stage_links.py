"""What rows take on a link: measured by the benchmark, and computed from their bytes."""

from __future__ import annotations

import pytest
import torch

from benchmarks.stage_links import Peer, gigabit_ms
from inference.engine.stages.row_link import HEADER, RowLink
from tests.cases import each_case

pytestmark = pytest.mark.slow


def test_each_number_of_rows_is_measured() -> None:
    with Peer(num_features=64) as peer:
        found = [peer.measure(num_rows, 0.2) for num_rows in (1, 300)]
    assert [row.num_bytes for row in found] == [HEADER.size + 128, HEADER.size + 300 * 128]
    for row in found:
        assert 0 < row.there_and_back_p10_ms <= row.there_and_back_p50_ms
        assert row.one_way_rows_per_s > 0 and row.cpu_s_per_gb > 0
    assert found[1].gigabit_ms > found[0].gigabit_ms


class Counted:
    """A connection that counts what it is to send."""

    num_bytes = 0

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        self.num_bytes += memoryview(data).nbytes

    def read_into(self, view: memoryview, *, begins_frame: bool) -> None:
        raise EOFError

    def close(self) -> None:
        raise NotImplementedError


@each_case(
    ("is_narrow", "num_bytes", "least_ms", "most_ms"), [(True, 2, 2.7, 3), (False, 4, 5.4, 6)]
)
def test_32_rows_of_5120_features_at_1_gbit_per_s(
    is_narrow: bool, num_bytes: int, least_ms: float, most_ms: float
) -> None:
    """The bytes are those that a link sends; between hosts they cross in less than 3 ms."""
    counted = Counted()
    RowLink(counted, 5120, is_narrow=is_narrow).send(1, torch.randn(32, 5120))
    num_sent = counted.num_bytes
    assert num_sent == HEADER.size + 32 * 5120 * num_bytes
    assert least_ms < gigabit_ms(num_sent) < most_ms
