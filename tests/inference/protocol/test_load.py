"""The identity of loads, and transient and permanent failures."""

from __future__ import annotations

import msgspec

from inference.protocol.load import EarlierLoads, LoadSpec, spec_digest
from inference.protocol.load_progress import PERMANENT_FAILURES, LoadFailure
from tests.cases import each_case

SPEC = LoadSpec(job_id="j", model="m", source="path:/models/m.gguf")


@each_case(
    "changes",
    [
        {"job_id": "other"},
        {"devices": ["cuda:3"]},
        {"evict": ["n"]},
        {"promised_bytes": 7},
        {"earlier_loads": EarlierLoads(device_kind="cpu", needed_bytes=5)},
        {"dtype": "auto"},
    ],
)
def test_where_a_load_goes_and_what_is_known_of_it_changes_no_digest(changes: dict) -> None:  # type: ignore[type-arg]
    assert spec_digest(msgspec.structs.replace(SPEC, **changes)) == spec_digest(SPEC)


@each_case(
    "changes",
    [
        {"model": "n"},
        {"source": "path:/models/n.gguf"},
        {"revision": "main"},
        {"max_context_tokens": 100},
        {"kv_memory_bytes": 10**9},
        {"max_concurrent_sequences": 3},
        {"chat_template": "{{ messages }}"},
        {"max_prefill_s": 60.0},
        {"min_devices": 2},
        {"tensor_parallel": 2},
    ],
)
def test_what_decides_how_a_model_serves_changes_it(changes: dict) -> None:  # type: ignore[type-arg]
    assert spec_digest(msgspec.structs.replace(SPEC, **changes)) != spec_digest(SPEC)


def test_a_digest_is_the_same_in_every_process_and_version() -> None:
    """It is compared between the control and neurons, and kept over restarts."""
    assert spec_digest(SPEC) == "7361a17729506149"
    assert spec_digest(msgspec.convert(msgspec.to_builtins(SPEC), LoadSpec)) == spec_digest(SPEC)


def test_what_memory_or_a_network_may_mend_is_not_permanent() -> None:
    for code in ("does_not_fit", "lost_its_room", "disk_full", "download_failed", "engine_crashed"):
        assert not LoadFailure(code=code, message="").is_permanent
    for code in PERMANENT_FAILURES:
        assert LoadFailure(code=code, message="").is_permanent


def test_who_sends_a_spec_and_who_receives_it_agree_on_its_digest() -> None:
    """A default word that was read from a database is another object, and an int a float."""
    word = "".join(["au", "to"])
    sent = msgspec.structs.replace(SPEC, dtype=word, max_prefill_s=300)
    received = msgspec.convert(msgspec.to_builtins(sent), LoadSpec)
    stored = msgspec.json.decode(msgspec.json.encode(received), type=LoadSpec)
    plain = msgspec.structs.replace(SPEC, max_prefill_s=300.0)
    assert len({spec_digest(spec) for spec in (sent, received, stored, plain)}) == 1
