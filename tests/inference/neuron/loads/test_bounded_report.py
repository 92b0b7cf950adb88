"""A report of downloads that Redis would not take whole is sent in part."""

from __future__ import annotations

from inference.neuron.loads.downloads import bounded_report
from inference.protocol.downloads import (
    CachedFile,
    CachedModel,
    CacheReport,
    encode_cache_report,
)


def model(name: str, num_files: int, used_s: float = 1.0) -> CachedModel:
    files = [CachedFile(name=f"part-{number}", num_bytes=1) for number in range(num_files)]
    source = f"huggingface:org/{name}"
    return CachedModel(
        source=source, revision="r", files=files, num_bytes=5, last_used_unix_s=used_s
    )


def report(*cached: CachedModel) -> CacheReport:
    return CacheReport(
        neuron="n1",
        time_unix_s=1.0,
        disk_total_bytes=2,
        disk_free_bytes=1,
        cached=list(cached),
        jobs=[],
    )


def test_what_fits_stays_as_it_is() -> None:
    whole = report(model("a", 3))
    assert bounded_report(whole) is whole


def test_what_does_not_fit_is_sent_without_the_names_of_files() -> None:
    sent = bounded_report(report(model("small", 5), model("large", 500)), max_bytes=2000)
    assert len(encode_cache_report(sent)) <= 2000
    assert [(one.source, one.files, one.num_bytes) for one in sent.cached] == [
        ("huggingface:org/small", [], 5),
        ("huggingface:org/large", [], 5),
    ]
