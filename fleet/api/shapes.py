"""Rows as JSON. Output only: services check the bodies of writes."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from fleet import selectors
from fleet.catalogue.outdated import is_outdated
from fleet.lifecycles import RecordedReplicaStatus
from fleet.live.reading import held_request_ids
from fleet.models import Alias, CatalogueModel, Device, Download, LoadJob, Neuron, Replica
from metering.models import AuditEntry

UNDER_WAY = (RecordedReplicaStatus.LOADING, RecordedReplicaStatus.RECOVERING)


# A comment, since OpenAPI would show a docstring for every shape.
# A row has its table's columns, but for those that ``Meta`` excludes, then the declared fields.
class RowShape(serializers.ModelSerializer[Any]):
    def get_default_field_names(self, declared_fields: Any, model_info: Any) -> list[str]:
        columns = [model_info.pk.name, *model_info.fields, *model_info.forward_relations]
        return list(dict.fromkeys([*columns, *declared_fields]))


class DeviceShape(RowShape):
    neuron = serializers.CharField(source="neuron.name")
    id = serializers.SerializerMethodField()

    class Meta:
        model = Device
        fields = "__all__"

    def get_id(self, device: Device) -> str:
        return f"{device.kind}:{device.index}"


class HeldStageShape(serializers.Serializer[Any]):
    model = serializers.CharField()
    engine_neuron = serializers.CharField(help_text="The neuron that serves the model.")
    device = serializers.CharField()
    first_layer = serializers.IntegerField()
    last_layer = serializers.IntegerField(help_text="The one after its last layer.")
    status = serializers.CharField(help_text="loading, listening, ready or failed.")
    memory_bytes = serializers.IntegerField(allow_null=True)
    failure = serializers.CharField(help_text="Why it failed; else empty.")


class NeuronShape(RowShape):
    devices = DeviceShape(many=True)
    held_stages = HeldStageShape(
        many=True, help_text="Of models whose engines are on other neurons: no replicas."
    )
    replicas = serializers.SerializerMethodField()
    at_work = serializers.SerializerMethodField(
        help_text="The replicas with requests, or on their way."
    )
    requests = serializers.SerializerMethodField(help_text="The ids of the requests at work there.")

    class Meta:
        model = Neuron
        exclude = ("id",)

    def get_replicas(self, neuron: Neuron) -> list[str]:
        return [replica.model_name for replica in neuron.replicas.all()]

    def get_at_work(self, neuron: Neuron) -> list[dict[str, Any]]:
        return [
            {
                "model": replica.model_name,
                "status": replica.status,
                "num_requests": replica.in_flight + replica.queue_depth,
            }
            for replica in neuron.replicas.all()
            if replica.in_flight + replica.queue_depth or replica.status in UNDER_WAY
        ]

    def get_requests(self, neuron: Neuron) -> list[str]:
        has_some = any(one.in_flight + one.queue_depth for one in neuron.replicas.all())
        return held_request_ids(neuron.name) if has_some else []


class CatalogueShape(RowShape):
    aliases = serializers.SerializerMethodField()
    spec_digest = serializers.SerializerMethodField()
    loaded_on = serializers.SerializerMethodField()

    class Meta:
        model = CatalogueModel
        exclude = ("id", "layer_costs", "unloaded_from")

    def get_aliases(self, model: CatalogueModel) -> list[str]:
        return sorted(alias.name for alias in model.aliases.all())

    def get_spec_digest(self, model: CatalogueModel) -> str:
        return model.entry().spec_digest()

    def get_loaded_on(self, model: CatalogueModel) -> list[str]:
        ready = [replica for replica in model.replicas.all() if replica.status == "ready"]
        return sorted(replica.neuron.name for replica in ready)


class AliasShape(RowShape):
    model = serializers.CharField(source="model.name")

    class Meta:
        model = Alias
        exclude = ("id",)


class ReplicaShape(RowShape):
    model = serializers.CharField(source="model_name")
    neuron = serializers.CharField(source="neuron.name")
    is_outdated = serializers.SerializerMethodField(
        help_text="Loaded by another spec than the catalogue has now; null: it has none."
    )

    class Meta:
        model = Replica
        exclude = ("id", "model_name")

    def get_is_outdated(self, replica: Replica) -> bool | None:
        entry = selectors.catalogue_find(replica.model_name)
        return None if entry is None else is_outdated(replica.spec_digest, entry)


class LoadJobShape(RowShape):
    model = serializers.CharField(source="model_name")
    neuron = serializers.CharField(source="neuron.name")
    progress_fraction = serializers.FloatField(allow_null=True, help_text="0 to 1.")
    share = serializers.FloatField(
        allow_null=True, help_text="Of the whole load, by the last one there. 0 to 1."
    )
    eta_s = serializers.FloatField(
        allow_null=True, help_text="Seconds left, by the last load there, else by its rate."
    )

    class Meta:
        model = LoadJob
        exclude = (
            *("model_name", "stage_links", "may_divide", "stage_started_at"),
            *("engine_started_at", "expected_load_s"),
        )


class DownloadShape(RowShape):
    neuron = serializers.CharField(source="neuron.name")
    progress_fraction = serializers.FloatField(allow_null=True, help_text="0 to 1.")
    eta_s = serializers.FloatField(allow_null=True)

    class Meta:
        model = Download
        exclude = ("sha256",)


class FileShape(serializers.Serializer[Any]):
    name = serializers.CharField()
    num_bytes = serializers.IntegerField()


class CachedShape(serializers.Serializer[Any]):
    """One revision of one source on one neuron's disk."""

    neuron = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]
    revision = serializers.CharField()
    num_bytes = serializers.IntegerField()
    files = FileShape(many=True)
    used_by = serializers.ListField(child=serializers.CharField(), help_text="Models loaded of it.")
    models = serializers.ListField(
        child=serializers.CharField(),
        help_text="Of the catalogue, those that this is the source of.",
    )
    is_partial = serializers.BooleanField(help_text="Broken off; the next pull continues it.")
    missing = serializers.ListField(
        child=serializers.CharField(), help_text="Files that were wanted and are not whole."
    )
    wanted_bytes = serializers.IntegerField(help_text="Once nothing is missing; 0: nothing is.")
    partial_bytes = serializers.IntegerField(help_text="Of the missing files; not in num_bytes.")
    last_used_unix_s = serializers.FloatField(allow_null=True)
    disk_free_bytes = serializers.IntegerField()
    disk_total_bytes = serializers.IntegerField()


class AuditShape(RowShape):
    class Meta:
        model = AuditEntry
        fields = "__all__"


class AssignmentShape(serializers.Serializer[Any]):
    """The models that should be loaded, by the catalogue."""

    model = serializers.CharField()
    neurons = serializers.ListField(
        child=serializers.CharField(), help_text="The neurons that it may run on; empty: any."
    )
    min_replicas = serializers.IntegerField()
    max_replicas = serializers.IntegerField()
    priority = serializers.IntegerField()
    idle_ttl_s = serializers.IntegerField(allow_null=True)
