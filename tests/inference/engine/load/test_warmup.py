"""A load that warms up counts its steps, from which the rest of its time is estimated."""

from __future__ import annotations

from pathlib import Path

from inference.engine.load.load_engine import load_engine
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadProgress, LoadStage


def test_a_first_load_counts_its_steps(tiny_model_dir: Path, data_dir: Path) -> None:
    spec = LoadSpec(
        job_id="1",
        model="tiny",
        source=f"path:{tiny_model_dir}",
        devices=["cpu"],
        kv_memory_bytes=4 * 1024**2,
    )
    reported: list[LoadProgress] = []
    load_engine(spec, data_dir, reported.append)
    steps = [one for one in reported if one.stage is LoadStage.WARMUP]
    assert {one.unit for one in steps} == {"steps"}
    (total,) = {one.total for one in steps}
    assert [one.done for one in steps] == list(range(total)) and total > 3
