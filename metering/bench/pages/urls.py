"""The paths under ``/bench/``."""

from __future__ import annotations

from django.urls import path

from metering.bench.pages import jobs, views

urlpatterns = [
    path("", views.overview, name="bench-overview"),
    path("trends/", views.trends, name="bench-trends"),
    path("concurrency/", views.concurrency, name="bench-concurrency"),
    path("compare/", views.compare, name="bench-compare"),
    path("runs/", views.runs, name="bench-runs"),
    path("runs.csv", views.runs_as_csv, name="bench-runs-csv"),
    path("runs/<int:pk>/", views.run, name="bench-run"),
    path("jobs/", jobs.jobs, name="bench-jobs"),
    path("jobs/start", jobs.start, name="bench-start"),
    path("jobs/<int:pk>", jobs.state, name="bench-job"),
    path("jobs/<int:pk>/cancel", jobs.cancel, name="bench-cancel"),
]
