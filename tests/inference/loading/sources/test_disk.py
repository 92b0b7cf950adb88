"""A hash that takes minutes reports its progress: a load without any counts as stalled."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from inference.loading.sources import disk
from inference.loading.sources.disk import check_sha256
from inference.protocol.load_errors import HashMismatchError
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.cases import each_case


@each_case("size", [0, 1, 4095, 4096, 4097, 50_000])
def test_progress_and_verdict(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "BUFFER_BYTES", 1000)
    monkeypatch.setattr(disk, "CHUNK_BYTES", 4096)
    path, reported = tmp_path / "weights", list[LoadProgress]()
    path.write_bytes(bytes(index % 251 for index in range(size)))
    check_sha256(path, hashlib.sha256(path.read_bytes()).hexdigest(), reported.append)
    assert len(reported) == size // 4096
    assert all(one.stage is LoadStage.PREFLIGHT and one.total == size for one in reported)
    assert [one.done for one in reported] == sorted({one.done for one in reported})
    with pytest.raises(HashMismatchError):
        check_sha256(path, "0" * 64)
