"""Messages to neurons for jobs. Every function raises ``BrokerUnavailableError``."""

from __future__ import annotations

import msgspec

from fleet import neuron_client
from fleet.live.load_orders import load_orders
from fleet.models import LoadJob, Replica
from inference.protocol.load import LoadSpec


def send_load(job: LoadJob) -> None:
    neuron_client.send_load(neuron_name=job.neuron.name, spec=spec_of(job))


def send_unload(job: LoadJob) -> None:
    neuron_client.send_unload(neuron_name=job.neuron.name, model_name=job.model_name)


def send_unload_at_once(job: LoadJob) -> None:
    neuron_client.send_unload(neuron_name=job.neuron.name, model_name=job.model_name, at_once=True)


def send_sleep(job: LoadJob) -> None:
    neuron_client.send_sleep(
        neuron_name=job.neuron.name, model_name=job.model_name, job_id=str(job.pk)
    )


def send_drop_adapter(job: LoadJob) -> None:
    assert job.model is not None, "an adapter is in the catalogue"
    base = job.model.settings().base
    assert base is not None, "it is an adapter"
    neuron_client.send_drop_adapter(
        neuron_name=job.neuron.name, model_name=base, adapter_name=job.model_name
    )


def send_reload(job: LoadJob) -> None:
    """Send a reload. A neuron replaces only a replica with another spec, so one with the same spec
    is unloaded first."""
    replica = Replica.objects.filter(model_name=job.model_name, neuron=job.neuron).first()
    if replica is None or replica.spec_digest in ("", job.spec_digest):
        send_unload(job)
    send_load(job)


def spec_of(job: LoadJob) -> LoadSpec:
    assert job.model is not None, "a load is of a model in the catalogue"
    entry = job.model.entry()
    spec = entry.load_spec(job_id=str(job.pk), neuron=job.neuron.name)
    devices = list(job.devices)
    if not devices and entry.device != "auto":
        devices = [entry.device]
    order = load_orders().order(neuron=job.neuron.name, model=job.model_name)
    return msgspec.structs.replace(
        spec,
        devices=devices,
        stages=job.stage_specs,
        predicted_tokens_per_s=job.predicted_tokens_per_s,
        evict=list(job.evict),
        order=order,
    )
