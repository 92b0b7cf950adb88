"""helexa's engine on a folder of dense weights, quantised while they load or not, on any device."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from benchmarks.subjects.helexa_engine import HelexaEngine
from inference.protocol.load import LoadSpec, Quantization

LIBRARIES = ()
"""All of them are imported above."""


def open_subject(
    folder: str, device: str, quantization: str, kv_bytes: str, num_threads: str, data_dir: str
) -> HelexaEngine:
    """Keys and values are bfloat16 in ``kv_bytes`` of memory: the floors count with the one, and
    the other subjects on the device need the rest."""
    spec = LoadSpec(
        job_id="bench",
        model="bench",
        source=f"path:{folder}",
        devices=[device],
        quantization=cast(Quantization, quantization),
        kv_dtype="bf16",
        kv_memory_bytes=int(kv_bytes),
    )
    return HelexaEngine(spec, int(num_threads), Path(data_dir))
