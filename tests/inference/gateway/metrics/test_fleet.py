"""The fleet as a scrape sees it."""

from __future__ import annotations

from dataclasses import replace

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from inference.gateway.metrics.endpoint import DatabaseCounts, FleetCollector, fleet_metrics
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus

GIB = 1 << 30
Found = dict[tuple[str, tuple[str, ...]], float]

REPLICA = ReplicaView(
    neuron="beast",
    model="tiny",
    job_id="1",
    status=ReplicaStatus.READY,
    status_age_s=5.0,
    num_restarts=2,
    in_flight=3,
    queue_depth=4,
    max_in_flight=256,
    max_queue_depth=512,
    kv_blocks_used=5,
    kv_blocks_total=400,
    num_preemptions=6,
    prefix_hit_tokens=700,
    num_drafted_tokens=90,
    num_accepted_drafts=60,
    decode_tokens_per_s=50.0,
    prefill_tokens_per_s=500.0,
    last_forward_age_s=0.5,
    host_memory_bytes=7,
)
CARD = DeviceInfo(
    index=1,
    kind="cuda",
    name="Card",
    total_memory_bytes=24 * GIB,
    free_memory_bytes=4 * GIB,
    utilization_percent=80,
    temperature_c=61,
)


def snapshot(replica: ReplicaView, device: DeviceInfo) -> FleetSnapshot:
    neuron = NeuronView(
        name="beast", epoch="e", version="1.2", devices=(device,), replicas=(replica,)
    )
    return FleetSnapshot(neurons=(neuron,))


def found(of: FleetSnapshot) -> Found:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in fleet_metrics(of)
        for sample in family.samples
    }


def test_every_number_of_a_replica_and_a_device_has_its_gauge() -> None:
    assert found(snapshot(REPLICA, CARD)) == {
        ("helexa_neuron_info", ("beast", "1.2")): 1,
        ("helexa_replica_status", ("tiny", "beast", "ready")): 1,
        ("cortex_model_in_flight", ("tiny", "beast")): 3,
        ("cortex_model_queue_depth", ("tiny", "beast")): 4,
        ("cortex_model_max_in_flight", ("tiny", "beast")): 256,
        ("cortex_model_max_queue_depth", ("tiny", "beast")): 512,
        ("cortex_model_tok_s_prefill", ("tiny", "beast")): 500,
        ("cortex_model_tok_s_decode", ("tiny", "beast")): 50,
        ("helexa_kv_blocks_used", ("tiny", "beast")): 5,
        ("helexa_kv_blocks", ("tiny", "beast")): 400,
        ("helexa_engine_last_forward_age_seconds", ("tiny", "beast")): 0.5,
        ("helexa_replica_host_memory_bytes", ("tiny", "beast")): 7,
        ("helexa_engine_restarts_total", ("tiny", "beast")): 2,
        ("helexa_engine_preemptions_total", ("tiny", "beast")): 6,
        ("helexa_engine_prefix_hit_tokens_total", ("tiny", "beast")): 700,
        ("helexa_engine_drafted_tokens_total", ("tiny", "beast")): 90,
        ("helexa_engine_accepted_draft_tokens_total", ("tiny", "beast")): 60,
        ("cortex_device_vram_used_mb", ("beast", "1")): 20 * 1024,
        ("cortex_device_vram_free_mb", ("beast", "1")): 4 * 1024,
        ("cortex_device_utilization_pct", ("beast", "1")): 80,
        ("cortex_device_temp_c", ("beast", "1")): 61,
    }


def test_what_nobody_reported_has_no_gauge() -> None:
    replica = replace(REPLICA, max_in_flight=None, last_forward_age_s=None)
    cpu = DeviceInfo(index=0, kind="cpu", name="CPU", total_memory_bytes=GIB, free_memory_bytes=GIB)
    names = {name for name, _ in found(snapshot(replica, cpu))}
    assert "cortex_model_in_flight" in names and "cortex_device_vram_free_mb" in names
    assert names.isdisjoint(
        {
            "cortex_model_max_in_flight",
            "helexa_engine_last_forward_age_seconds",
            "cortex_device_utilization_pct",
            "cortex_device_temp_c",
        }
    )


def test_a_fleet_that_cannot_be_seen_has_no_gauges() -> None:
    counts = DatabaseCounts(load_jobs={"pending": 2}, reservations=7)
    families = list(FleetCollector(lambda: None, lambda: counts).collect())
    values = [(s.name, s.labels, s.value) for family in families for s in family.samples]
    assert values == [
        ("helexa_load_jobs", {"state": "pending"}, 2),
        ("helexa_reservations_open", {}, 7),
    ]
