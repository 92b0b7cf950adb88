"""The fleet's paths under ``/api/``."""

from __future__ import annotations

from django.urls import path

from fleet.api import original
from fleet.api.catalogue import Aliases, Catalogue, ModelPlanView, ModelsTomlView, Upstreams
from fleet.api.documents import DocumentsView, SchemaView
from fleet.api.hub import HubRepositoryView, HubSearchView
from fleet.api.jobs import CachedView, Downloads, Jobs, ModelJobsView, NeuronCachedView
from fleet.api.neurons import DevicesView, Invitations, Neurons, PolicyView, ReplicasView
from fleet.api.overview import (
    AssignmentsView,
    AuditView,
    EngineLogView,
    OverviewView,
    Settings,
)

NOUNS = (Neurons, Invitations, Catalogue, Aliases, Upstreams, Jobs, Downloads, Settings)
urlpatterns = [
    *(one for noun in NOUNS for one in noun.urls()),
    path("overview", OverviewView.as_view()),
    path("neurons/<str:name>/cached", NeuronCachedView.as_view()),
    path("neurons/<str:name>/models/<path:model>/logs", EngineLogView.as_view()),
    *(path(f"neurons/<str:name>/{tail}", view) for tail, view in original.PATHS.items()),
    path("policy", PolicyView.as_view()),
    path("devices", DevicesView.as_view()),
    path("replicas", ReplicasView.as_view()),
    path("assignments", AssignmentsView.as_view()),
    path("catalogue/<str:name>/plan", ModelPlanView.as_view()),
    *(
        path(f"catalogue/<str:name>/{kind}", ModelJobsView.as_view(kind=kind))
        for kind in ("load", "reload", "sleep", "unload", "wake")
    ),
    path("hub", HubSearchView.as_view()),
    path("hub/<str:owner>/<str:name>", HubRepositoryView.as_view()),
    path("models.toml", ModelsTomlView.as_view()),
    path("cached", CachedView.as_view()),
    path("audit", AuditView.as_view()),
    path("schema", SchemaView.as_view(), name="api-schema"),
    path("docs", DocumentsView.as_view(), name="api-docs"),
]
