"""Fetching as a process of its own: each end is a message."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from inference.loading.sources import fetch
from inference.loading.sources.fetch import Fetched, FetchFailed, FetchOrder
from inference.loading.sources.hub_sources import hub_cache_dir, repository_dir
from inference.loading.sources.resumed import PendingFile, pending_add
from inference.neuron.loads.files import Fetcher
from inference.protocol.load import LoadSpec
from tests.cases import each_case


def order(cache_dir: Path, source: str) -> FetchOrder:
    spec = LoadSpec(model="tiny", job_id="job", source=source)
    return FetchOrder(spec=spec, cache_dir=str(cache_dir), free_memory_bytes=1 << 30)


def test_what_is_there_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"weights")
    outcome = fetch.fetch(order(tmp_path, f"path:{file}"), lambda _: None)
    assert outcome == Fetched(weights=[str(file)], weight_bytes=7)


@each_case(("number", "code"), [(errno.ENOSPC, "disk_full"), (errno.EACCES, "download_failed")])
def test_what_a_full_disk_broke_off_is_reported_and_among_what_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, code: str
) -> None:
    repository = repository_dir(hub_cache_dir(tmp_path), "org/tiny")
    partial = repository / "blobs" / "blob.incomplete"

    def break_off(*_: Any) -> None:
        pending_add(repository, "one", {"a.gguf": PendingFile(num_bytes=9, etag="blob")})
        partial.parent.mkdir(parents=True)
        partial.write_bytes(b"123")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fetch, "fetch_files", break_off)
    outcome = fetch.fetch(order(tmp_path, "huggingface:org/tiny"), lambda _: None)
    assert isinstance(outcome, FetchFailed)
    assert outcome.failure.code == code
    assert os.strerror(number) in outcome.failure.message
    assert outcome.new_files == {"huggingface:org/tiny@one": ["a.gguf"]}
    Fetcher(tmp_path, lambda: 1).remove(outcome.new_files)
    assert not partial.exists() and not repository.exists()
