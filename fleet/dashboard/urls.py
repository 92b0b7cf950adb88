"""Paths under ``/admin/dashboard/``, for staff alone."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from fleet.dashboard import first_steps, views

urlpatterns = [
    path("board", admin.site.admin_view(views.board), name="dashboard-board"),
    path("outdated", admin.site.admin_view(views.outdated), name="dashboard-outdated"),
    path("log/<str:neuron>/<path:model>", admin.site.admin_view(views.log), name="dashboard-log"),
    path("model-home", admin.site.admin_view(views.model_part), name="dashboard-model-home"),
    path("neuron-home", admin.site.admin_view(views.neuron_part), name="dashboard-neuron-home"),
    path("model", admin.site.admin_view(views.model), name="model-page"),
    path("neuron", admin.site.admin_view(views.neuron), name="neuron-page"),
    path("first-steps", admin.site.admin_view(first_steps.card), name="first-steps"),
    path("first-key", admin.site.admin_view(first_steps.make_key), name="first-key"),
    path("hide-first-steps", admin.site.admin_view(first_steps.hide), name="first-steps-hide"),
    path("sharing", admin.site.admin_view(views.sharing), name="sharing"),
    path("do", admin.site.admin_view(views.do), name="dashboard-do"),
]
