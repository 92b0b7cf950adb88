"""Paths under ``/admin/dashboard/``, for staff alone."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from fleet.dashboard import views

urlpatterns = [
    path("board", admin.site.admin_view(views.board), name="dashboard-board"),
    path("outdated", admin.site.admin_view(views.outdated), name="dashboard-outdated"),
    path("log/<int:pk>", admin.site.admin_view(views.log), name="dashboard-log"),
    path("do", admin.site.admin_view(views.do), name="dashboard-do"),
]
