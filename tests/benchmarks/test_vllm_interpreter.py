"""What vLLM's process is told; vLLM itself is not part of the suite."""

from __future__ import annotations

from pathlib import Path

from benchmarks.vllm_interpreter import process_environment


def test_every_thread_has_a_core_where_the_wheel_brought_openmp(tmp_path: Path) -> None:
    openmp = tmp_path / "lib" / "libiomp5.so"
    openmp.parent.mkdir()
    openmp.touch()
    told = process_environment(tmp_path / "bin" / "python", 1, tmp_path / "cache")
    assert told["LD_PRELOAD"] == str(openmp)
    assert told["OMP_NUM_THREADS"] == "1"
    assert told["KMP_AFFINITY"].startswith("granularity=fine,explicit,proclist=[")


def test_a_library_that_is_missed_is_not_preloaded(tmp_path: Path) -> None:
    told = process_environment(tmp_path / "bin" / "python", 2, tmp_path / "cache")
    assert told["OMP_NUM_THREADS"] == "2"
    assert "KMP_AFFINITY" not in told
    assert told["VLLM_CACHE_ROOT"] == str(tmp_path / "cache")
