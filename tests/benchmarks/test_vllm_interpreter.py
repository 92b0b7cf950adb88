"""The environment of vLLM's process; vLLM itself is not part of the suite."""

from __future__ import annotations

from pathlib import Path

from benchmarks.vllm_interpreter import process_environment


def test_every_thread_has_a_core_where_the_wheel_brought_openmp(tmp_path: Path) -> None:
    openmp = tmp_path / "lib" / "libiomp5.so"
    openmp.parent.mkdir()
    openmp.touch()
    environment = process_environment(tmp_path / "bin" / "python", 1, tmp_path / "cache")
    assert environment["LD_PRELOAD"] == str(openmp)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["KMP_AFFINITY"].startswith("granularity=fine,explicit,proclist=[")


def test_a_library_that_is_missed_is_not_preloaded(tmp_path: Path) -> None:
    environment = process_environment(tmp_path / "bin" / "python", 2, tmp_path / "cache")
    assert environment["OMP_NUM_THREADS"] == "2"
    assert "KMP_AFFINITY" not in environment
    assert environment["VLLM_CACHE_ROOT"] == str(tmp_path / "cache")
