"""Columns and fields of the admin have names in words, with their units."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets, label_for_field
from django.contrib.auth.models import User
from django.db.models import Model
from django.http import HttpRequest
from django.test import RequestFactory

import helexa_site.urls  # registers the admin's models
from tests.cases import each_case

assert helexa_site.urls.urlpatterns
CODED = re.compile(r"_|\b(num|ms|tls|gpus|mb|micro usd)\b| s$")
"""A label that Django made of a column's name."""


@pytest.mark.django_db
@each_case("model", list(admin.site._registry), ids=lambda model: model.__name__)
def test_labels_are_words(model: type[Model]) -> None:
    model_admin = admin.site._registry[model]
    request = RequestFactory().get("/")
    request.user = User(username="root", is_superuser=True, is_staff=True)
    labels = _column_labels(model, request) | _field_labels(model, request)
    assert labels and model_admin.list_display
    assert {label for label in labels if CODED.search(label)} == set()


def _column_labels(model: type[Model], request: HttpRequest) -> set[str]:
    model_admin = admin.site._registry[model]
    columns = model_admin.get_list_display(request)
    return {str(label_for_field(name, model, model_admin)) for name in columns if name != "__str__"}


def _field_labels(model: type[Model], request: HttpRequest) -> set[str]:
    model_admin = admin.site._registry[model]
    fields = model_admin.get_form(request, change=True).base_fields
    read_only = set(flatten_fieldsets(model_admin.get_fieldsets(request))) - set(fields)
    return {str(field.label) for field in fields.values()} | {
        str(label_for_field(name, model, model_admin)) for name in read_only
    }
