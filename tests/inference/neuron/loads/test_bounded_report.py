"""A report of downloads that Redis would not take is sent in part; a log line names the rest."""

from __future__ import annotations

from inference.neuron.loads.bounded_report import bounded_report
from inference.protocol.downloads import (
    CachedFile,
    CachedModel,
    CacheReport,
    encode_cache_report,
)
from tests.cases import each_case


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
    assert bounded_report(whole) == (whole, "")


def test_the_largest_lose_their_file_names_first() -> None:
    whole = report(model("small", 5), model("large", 500))
    sent, words = bounded_report(whole, max_bytes=2000)
    assert len(encode_cache_report(sent)) <= 2000
    small, large = sent.cached
    assert len(small.files) == 5 and not large.files and large.num_bytes == 5
    assert "org/large" in words and "org/small" not in words


@each_case("num_models", [40, 400])
def test_models_unused_for_longest_go_where_that_is_not_enough(num_models: int) -> None:
    whole = report(*(model(f"m{number}", 2, float(number)) for number in range(num_models)))
    sent, words = bounded_report(whole, max_bytes=1000)
    assert len(encode_cache_report(sent)) <= 1000
    names = [one.source for one in sent.cached]
    assert names == [one.source for one in whole.cached[-len(names) :]] and names
    assert "nothing of huggingface:org/m0," in words and "more" in words
