"""The fleet as it is at a scrape: gauges out of the newest snapshot and the database's load jobs.

Nothing is kept between scrapes, so an offline neuron has no gauges. Each gateway reports the same
of the fleet; sum over gateways only what counts requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from inference.protocol.heartbeat import DeviceInfo

MIB = 1 << 20
Read = Callable[[ReplicaView], float | None]
ReadDevice = Callable[[DeviceInfo], float | None]

REPLICA_GAUGES: tuple[tuple[str, str, Read], ...] = (
    (
        "cortex_model_in_flight",
        "Sequences that are being computed.",
        lambda replica: replica.in_flight,
    ),
    (
        "cortex_model_queue_depth",
        "Sequences that wait for the engine.",
        lambda replica: replica.queue_depth,
    ),
    (
        "cortex_model_max_in_flight",
        "Sequences that may be computed at once.",
        lambda replica: replica.max_in_flight,
    ),
    (
        "cortex_model_max_queue_depth",
        "Sequences that may wait.",
        lambda replica: replica.max_queue_depth,
    ),
    (
        "cortex_model_tok_s_prefill",
        "Tokens of prompts a second, as the engine last measured.",
        lambda replica: replica.prefill_tokens_per_s,
    ),
    (
        "cortex_model_tok_s_decode",
        "Tokens of answers a second, as the engine last measured.",
        lambda replica: replica.decode_tokens_per_s,
    ),
    (
        "helexa_kv_blocks_used",
        "Blocks of keys and values that a running sequence holds.",
        lambda replica: replica.kv_blocks_used,
    ),
    (
        "helexa_kv_blocks",
        "Blocks of keys and values that there are.",
        lambda replica: replica.kv_blocks_total,
    ),
    (
        "helexa_engine_last_forward_age_seconds",
        "Since the model last computed something.",
        lambda replica: replica.last_forward_age_s,
    ),
    (
        "helexa_replica_host_memory_bytes",
        "Of the host's memory, what the weights of a model that sleeps take.",
        lambda replica: replica.host_memory_bytes,
    ),
)
REPLICA_COUNTERS: tuple[tuple[str, str, Read], ...] = (
    (
        "helexa_engine_restarts",
        "Engines that ended by themselves and were started again.",
        lambda replica: replica.num_restarts,
    ),
    (
        "helexa_engine_preemptions",
        "Sequences that lost their blocks to others and were computed again.",
        lambda replica: replica.num_preemptions,
    ),
    (
        "helexa_engine_prefix_hit_tokens",
        "Tokens of prompts that were served from the prefix cache.",
        lambda replica: replica.prefix_hit_tokens,
    ),
    (
        "helexa_engine_drafted_tokens",
        "Tokens that were guessed and verified.",
        lambda replica: replica.num_drafted_tokens,
    ),
    (
        "helexa_engine_accepted_draft_tokens",
        "Guessed tokens that were right and are in an answer.",
        lambda replica: replica.num_accepted_drafts,
    ),
)
DEVICE_GAUGES: tuple[tuple[str, str, ReadDevice], ...] = (
    (
        "cortex_device_vram_used_mb",
        "Memory in use; a CPU's is its host's.",
        lambda device: (device.total_memory_bytes - device.free_memory_bytes) / MIB,
    ),
    (
        "cortex_device_vram_free_mb",
        "Memory that is free.",
        lambda device: device.free_memory_bytes / MIB,
    ),
    (
        "cortex_device_utilization_pct",
        "Of the last moments, in how many the device computed.",
        lambda device: device.utilization_percent,
    ),
    ("cortex_device_temp_c", "Degrees Celsius.", lambda device: device.temperature_c),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseCounts:
    load_jobs: Mapping[str, int]
    reservations: int


class FleetCollector(Collector):
    def __init__(
        self,
        read_snapshot: Callable[[], FleetSnapshot | None],
        read_counts: Callable[[], DatabaseCounts | None],
    ) -> None:
        self._read_snapshot = read_snapshot
        self._read_counts = read_counts

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are checked by being collected."""
        return ()

    def collect(self) -> Iterator[Metric]:
        if (counts := self._read_counts()) is not None:
            yield _load_jobs(counts.load_jobs)
            yield GaugeMetricFamily(
                "helexa_reservations_open",
                "Reservations that stand, one for each cap of an open request.",
                counts.reservations,
            )
        snapshot = self._read_snapshot()
        if snapshot is not None:
            yield from fleet_metrics(snapshot)


def fleet_metrics(snapshot: FleetSnapshot) -> Iterator[Metric]:
    yield _neurons(snapshot.neurons)
    replicas = tuple(snapshot.replicas())
    yield _statuses(replicas)
    for name, documentation, read in REPLICA_GAUGES:
        gauge = GaugeMetricFamily(name, documentation, labels=("model", "node"))
        _add_all(gauge, replicas, read)
        yield gauge
    for name, documentation, read in REPLICA_COUNTERS:
        counter = CounterMetricFamily(name, documentation, labels=("model", "node"))
        _add_all(counter, replicas, read)
        yield counter
    for name, documentation, read_device in DEVICE_GAUGES:
        gauge = GaugeMetricFamily(name, documentation, labels=("node", "device"))
        for neuron in snapshot.neurons:
            for device in neuron.devices:
                if (value := read_device(device)) is not None:
                    name = str(device.index) if device.kind == "cuda" else "cpu"
                    gauge.add_metric((neuron.name, name), value)
        yield gauge


def _add_all(
    family: GaugeMetricFamily | CounterMetricFamily, replicas: Iterable[ReplicaView], read: Read
) -> None:
    for replica in replicas:
        if (value := read(replica)) is not None:
            family.add_metric((replica.model, replica.neuron), value)


def _neurons(neurons: Iterable[NeuronView]) -> Metric:
    family = GaugeMetricFamily(
        "helexa_neuron_info", "Neurons that are here: always 1.", labels=("node", "version")
    )
    for neuron in neurons:
        family.add_metric((neuron.name, neuron.version), 1)
    return family


def _statuses(replicas: Iterable[ReplicaView]) -> Metric:
    family = GaugeMetricFamily(
        "helexa_replica_status",
        "The status that each replica has: always 1.",
        labels=("model", "node", "status"),
    )
    for replica in replicas:
        family.add_metric((replica.model, replica.neuron, replica.status.value), 1)
    return family


def _load_jobs(by_state: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily("helexa_load_jobs", "Load jobs by their state.", labels=("state",))
    for state, num_jobs in sorted(by_state.items()):
        family.add_metric((state,), num_jobs)
    return family
