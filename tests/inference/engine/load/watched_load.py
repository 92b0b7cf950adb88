"""``python -m tests.inference.engine.load.watched_load DIRECTORY KIND`` prints, as JSON, how much
anonymous memory a load held at the most while the weights came in, how much once they were there
(bytes), and which packages. In a process of its own, which imports what an engine does: what tests
leave in the allocator would blur the peak."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from inference.engine.load.load_engine import load_engine
from inference.engine.load.memory_use import anonymous_bytes
from inference.garbage import release_freed_memory
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadProgress, LoadStage


def load_watched(directory: str, kind: str) -> None:
    peak_bytes = 0

    def sample() -> None:
        nonlocal peak_bytes
        while True:
            peak_bytes = max(peak_bytes, anonymous_bytes())
            time.sleep(0.0005)  # a tensor takes tens of milliseconds, so no peak of one goes unseen

    def on_progress(progress: LoadProgress) -> None:
        """The weights are there when the engine begins to try them out, which is not waited for."""
        if progress.stage is LoadStage.WARMUP:
            release_freed_memory()  # or what the allocator hoards would pass for the model
            packages = sorted({name.partition(".")[0] for name in sys.modules})
            seen = {"peak_bytes": peak_bytes, "model_bytes": anonymous_bytes()}
            print(json.dumps(seen | {"packages": packages}), flush=True)
            os._exit(0)

    threading.Thread(target=sample, daemon=True).start()
    asked: Any = {"quantization" if kind == "q4" else "dtype": kind}
    asked |= {"kv_memory_bytes": 2**26, "devices": ["cpu"]}
    spec = LoadSpec(job_id="1", model="m", source=f"path:{directory}", **asked)
    load_engine(spec, Path(os.environ["HELEXA_DATA_DIR"]), on_progress)


if __name__ == "__main__":
    load_watched(*sys.argv[1:])
