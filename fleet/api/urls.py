"""The fleet's paths under ``/api/``."""

from __future__ import annotations

from django.urls import path

from fleet.api import original
from fleet.api.audit import AuditView
from fleet.api.documents import DocumentsView, SchemaView
from fleet.api.invitations import InvitationsView, InvitationView, PolicyView
from fleet.api.jobs import (
    LoadJobCancelView,
    LoadJobEventsView,
    LoadJobsView,
    LoadJobView,
    ModelJobsView,
)
from fleet.api.logs import EngineLogView
from fleet.api.models.catalogue import AliasesView, AliasView, CatalogueModelView, CatalogueView
from fleet.api.models.downloads import (
    CachedView,
    DownloadCancelView,
    DownloadEventsView,
    DownloadsView,
    DownloadView,
    NeuronCachedView,
)
from fleet.api.models.hub import HubRepositoryView, HubSearchView
from fleet.api.models.models_toml import ModelsTomlView
from fleet.api.models.plans import ModelPlanView
from fleet.api.neurons import (
    DESIRED_STATES,
    DevicesView,
    NeuronStateView,
    NeuronsView,
    NeuronView,
    ReplicasView,
)
from fleet.api.overview import AssignmentsView, OverviewView
from fleet.api.settings import SettingsView, SettingView
from fleet.api.upstreams import UpstreamsView, UpstreamTestView, UpstreamView

urlpatterns = [
    path("overview", OverviewView.as_view(), name="api-overview"),
    path("neurons", NeuronsView.as_view(), name="api-neurons"),
    path("neurons/<str:name>", NeuronView.as_view(), name="api-neuron"),
    *(
        path(f"neurons/<str:name>/{desired}", NeuronStateView.as_view(desired=desired))
        for desired in sorted(DESIRED_STATES)
    ),
    path("neurons/<str:name>/cached", NeuronCachedView.as_view(), name="api-neuron-cached"),
    path("neurons/<str:name>/models/<path:model>/logs", EngineLogView.as_view()),
    *(path(f"neurons/<str:name>/{tail}", view) for tail, view in original.PATHS.items()),
    path("invitations", InvitationsView.as_view(), name="api-invitations"),
    path("invitations/<str:name>", InvitationView.as_view(), name="api-invitation"),
    path("policy", PolicyView.as_view(), name="api-policy"),
    path("settings", SettingsView.as_view(), name="api-settings"),
    path("settings/<str:name>", SettingView.as_view(), name="api-setting"),
    path("devices", DevicesView.as_view(), name="api-devices"),
    path("replicas", ReplicasView.as_view(), name="api-replicas"),
    path("assignments", AssignmentsView.as_view(), name="api-assignments"),
    path("catalogue", CatalogueView.as_view(), name="api-catalogue"),
    path("catalogue/<str:name>", CatalogueModelView.as_view(), name="api-catalogue-model"),
    path("catalogue/<str:name>/plan", ModelPlanView.as_view(), name="api-catalogue-plan"),
    *(
        path(f"catalogue/<str:name>/{kind}", ModelJobsView.as_view(kind=kind))
        for kind in ("load", "reload", "sleep", "unload", "wake")
    ),
    path("hub", HubSearchView.as_view(), name="api-hub"),
    path("hub/<str:owner>/<str:name>", HubRepositoryView.as_view(), name="api-hub-repository"),
    path("models.toml", ModelsTomlView.as_view(), name="api-models-toml"),
    path("aliases", AliasesView.as_view(), name="api-aliases"),
    path("aliases/<path:name>", AliasView.as_view(), name="api-alias"),
    path("upstreams", UpstreamsView.as_view(), name="api-upstreams"),
    path("upstreams/<str:name>", UpstreamView.as_view(), name="api-upstream"),
    path("upstreams/<str:name>/test", UpstreamTestView.as_view(), name="api-upstream-test"),
    path("load-jobs", LoadJobsView.as_view(), name="api-load-jobs"),
    path("load-jobs/<uuid:pk>", LoadJobView.as_view(), name="api-load-job"),
    path("load-jobs/<uuid:pk>/cancel", LoadJobCancelView.as_view()),
    path("load-jobs/<uuid:pk>/events", LoadJobEventsView.as_view()),
    path("cached", CachedView.as_view(), name="api-cached"),
    path("downloads", DownloadsView.as_view(), name="api-downloads"),
    path("downloads/<uuid:pk>", DownloadView.as_view(), name="api-download"),
    path("downloads/<uuid:pk>/cancel", DownloadCancelView.as_view()),
    path("downloads/<uuid:pk>/events", DownloadEventsView.as_view()),
    path("audit", AuditView.as_view(), name="api-audit"),
    path("schema", SchemaView.as_view(), name="api-schema"),
    path("docs", DocumentsView.as_view(), name="api-docs"),
]
