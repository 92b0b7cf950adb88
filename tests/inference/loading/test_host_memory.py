"""What a host has is what its control group leaves of it."""

from __future__ import annotations

from pathlib import Path

import psutil

from inference.loading.host_memory import HostMemory, host_memory

MIB = 2**20


def _group(directory: Path, limit: str, used: int) -> Path:
    (directory / "memory.max").write_text(f"{limit}\n")
    (directory / "memory.current").write_text(f"{used}\n")
    return directory


def test_a_control_group_confines(tmp_path: Path) -> None:
    group = _group(tmp_path, str(100 * MIB), 30 * MIB)
    assert host_memory(group) == HostMemory(100 * MIB, 70 * MIB)


def test_a_group_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    assert host_memory(_group(tmp_path, str(100 * MIB), 101 * MIB)).free_bytes == 0


def test_without_a_limit_it_is_the_whole_host(tmp_path: Path) -> None:
    total_bytes = psutil.virtual_memory().total
    for group in (tmp_path, _group(tmp_path, "max", 5)):
        found = host_memory(group)
        assert found.total_bytes == total_bytes
        assert 0 < found.free_bytes <= total_bytes


def test_a_limit_over_what_the_host_has_changes_nothing(tmp_path: Path) -> None:
    total_bytes = psutil.virtual_memory().total
    assert host_memory(_group(tmp_path, str(2**60), 0)).total_bytes == total_bytes
