"""Loads the model of a directory and prints, as JSON, how much anonymous memory it held at the most
while its weights came in, and how much once they were there (bytes), and which packages.

    python sharded_load.py DIRECTORY float32|bfloat16|q4|q8

A process of its own: what other tests left in the allocator would blur the peak.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from inference.engine.load.load_engine import load_engine
from inference.engine.load.memory_use import anonymous_bytes
from inference.garbage import release_freed_memory
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.inference.engine.load.loads import cpu_spec

KV_MEMORY_BYTES = 2**26
SAMPLE_EVERY_S = 0.0005
"""A tensor takes tens of milliseconds, so no peak of one goes unseen."""


class Watch:
    def __init__(self) -> None:
        self.peak_bytes = 0
        threading.Thread(target=self._sample, daemon=True).start()

    def on_progress(self, progress: LoadProgress) -> None:
        """The weights are there when the engine begins to try them out, which is not waited for."""
        if progress.stage is LoadStage.WARMUP:
            release_freed_memory()  # or what the allocator hoards would pass for the model
            model_bytes = anonymous_bytes()
            packages = sorted({name.partition(".")[0] for name in sys.modules})
            seen = {"peak_bytes": self.peak_bytes, "model_bytes": model_bytes, "packages": packages}
            print(json.dumps(seen))
            sys.stdout.flush()
            os._exit(0)

    def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes())
            time.sleep(SAMPLE_EVERY_S)


def main(directory: str, kind: str) -> None:
    watch = Watch()
    spec = cpu_spec(directory, kv_memory_bytes=KV_MEMORY_BYTES)
    asked = {"quantization" if kind in ("q4", "q8") else "dtype": kind}
    spec = msgspec.convert(msgspec.to_builtins(spec) | asked, LoadSpec)
    load_engine(spec, Path(os.environ["HELEXA_DATA_DIR"]), watch.on_progress)


if __name__ == "__main__":
    main(*sys.argv[1:])
