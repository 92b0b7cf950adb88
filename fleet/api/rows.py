"""The list, the rows and the actions of a noun over REST, in one class.

    GET, POST            /api/aliases         list, add
    GET, PATCH, DELETE   /api/aliases/{name}  find, change, remove

Bodies, their checks and their OpenAPI schemas follow from the noun's fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, cast

from django.db import transaction
from django.db.models import Model
from django.urls import URLPattern, path
from drf_spectacular.plumbing import get_doc
from drf_spectacular.utils import OpenApiParameter, inline_serializer
from rest_framework import serializers
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from fleet import selectors
from fleet.api.access import BOOLEANS, DRY_RUN, FleetView, body_of
from fleet.catalogue.kinds import Count, Flag, Money, NeuronNames, Number, Text, Word
from fleet.nouns import Field, Kind, Moment, Names, Noun, moment_of
from metering.api.problems import ProblemError, invalid
from metering.api.schema import ApiSchema
from metering.audit import Actor
from metering.models import AuditEntry

OF_ONE = {"change": ("patch", "partial_update"), "remove": ("delete", "destroy")}
HOOKS = {"create": "add", "partial_update": "change", "destroy": "remove"}


FIRST = ("id", "prefix", "account", "name", "user", "kind", "model", "neuron", "source", "status")


class RowShape(serializers.ModelSerializer[Any]):
    def get_default_field_names(self, declared_fields: Any, model_info: Any) -> list[str]:
        columns = [model_info.pk.name, *model_info.fields, *model_info.forward_relations]
        names = dict.fromkeys([*columns, *declared_fields])
        return [
            *(name for name in FIRST if name in names),
            *(name for name in names if name not in FIRST),
        ]


class RowsSchema(ApiSchema):
    """The schema of a ``RowsView``'s operations, by its noun and its hooks' docstrings."""

    view: Any

    def get_description(self) -> str:  # type: ignore[override]
        is_list = self.view.action == "list"
        return super().get_description() if is_list else get_doc(self.operation())

    def operation(self) -> Any:
        hook = getattr(type(self.view), HOOKS.get(self.view.action, ""), None)
        return hook if hook and hook.__doc__ else super().operation()

    def get_override_parameters(self) -> list[Any]:
        is_removal = self.view.action == "destroy"
        return [DRY_RUN_PARAMETER] if is_removal else super().get_override_parameters()

    def get_request_serializer(self) -> Any:
        noun: Noun = self.view.noun
        if self.view.action == "create" and noun.fields:
            fields = {field.name: _serialized(field, field.is_required) for field in noun.fields}
            name = f"{noun.word.capitalize()}Start"
            return inline_serializer(name, fields | self.view.new_fields)
        if self.view.action == "partial_update" and noun.fields:
            return change_schema(noun)
        return super().get_request_serializer()

    def get_response_serializers(self) -> Any:
        if self.view.action == "create":
            return {201: self.view.new_shape or self.view.serializer_class}
        if self.view.action == "destroy":
            return {204: None, 200: DryRunShape}
        return super().get_response_serializers()


class RowsView(ViewSetMixin, ListModelMixin, FleetView):
    """``can``: which of add, change and remove exist. ``id_part``: the route after the noun's path.
    ``new_fields``: fields of a POST that no flag of the noun's commands sets."""

    schema = RowsSchema()
    noun: ClassVar[Noun]
    can: ClassVar[tuple[str, ...]] = ("add", "change", "remove")
    id_part = "<str:name>"
    new_shape: ClassVar[Any] = None
    new_fields: ClassVar[dict[str, Any]] = {}
    find: Callable[..., Any]
    """The row of the URL's ids. Raises an error for one that does not exist."""
    add: Callable[[dict[str, Any]], Any]
    change: Callable[[Any, dict[str, Any]], Any]
    """Returns the changed row; ``None``: the given one."""
    remove: Callable[[Any], object]

    @property
    def filters(self) -> Mapping[str, str]:  # type: ignore[override]
        return self.noun.filters if self.action in ("list", "create") else {}

    @property
    def filter_help(self) -> Mapping[str, str]:  # type: ignore[override]
        return self.noun.filter_help

    @classmethod
    def urls(cls) -> Iterable[URLPattern]:
        of_all: dict[str, Any] = {"get": "list"} | ({"post": "create"} if "add" in cls.can else {})
        of_one: dict[str, Any] = {"get": "retrieve"}
        of_one |= dict(OF_ONE[verb] for verb in cls.can if verb in OF_ONE)
        one = f"{cls.noun.path}/{cls.id_part}"
        yield path(cls.noun.path, cls.as_view(of_all))
        yield path(one, cls.as_view(of_one))
        for extra in cast(list[Any], cls.get_extra_actions()):
            yield path(f"{one}/{extra.url_path}", cls.as_view(dict(extra.mapping), **extra.kwargs))

    def new_values(self, request: Request) -> dict[str, Any]:
        return new_row(request, self.noun)

    def changed_values(self, request: Request) -> dict[str, Any]:
        return changed_row(request, self.noun)

    def retrieve(self, request: Request, **ids: Any) -> Response:
        return Response(self.shown(self.find(**ids)))

    def create(self, request: Request) -> Response:
        return Response(self.shown(self.add(self.new_values(request))), status=201)

    def partial_update(self, request: Request, **ids: Any) -> Response:
        row = self.find(**ids)
        changed = self.change(row, self.changed_values(request))
        return Response(self.shown(row if changed is None else changed))

    def destroy(self, request: Request, **ids: Any) -> Response:
        return removed(request, self.actor, partial(self.remove, self.find(**ids)))

    def shown(self, row: Any) -> Any:
        return self.get_serializer(row).data


def change_schema(noun: Noun) -> Any:
    fields = {field.name: _serialized(field, False) for field in noun.changeable}
    return inline_serializer(f"{noun.word.capitalize()}Change", dict(fields))


class WouldShape(serializers.ModelSerializer[AuditEntry]):
    class Meta:
        model = AuditEntry
        fields = ("action", "object_id", "detail")


class DryRunShape(serializers.Serializer[Any]):
    would = WouldShape(many=True, help_text="The audit entries that the removal would leave.")


DRY_RUN_PARAMETER = OpenApiParameter(DRY_RUN, bool, description="Only reports what would be done.")


def removed(request: Request, actor: Actor, remove: Callable[[], object]) -> Response:
    """Answers 204, or 200 with the effects of a dry run. Raises ``ProblemError``."""
    if not is_dry(request):
        remove()
        return Response(status=204)
    return would_response(actor, remove)


def would_response(actor: Actor, remove: Callable[[], object]) -> Response:
    """Answers 200 with the effects of ``remove``: runs it, reads its audit entries, rolls back."""
    with transaction.atomic():
        newest = AuditEntry.objects.order_by("-id").values_list("id", flat=True).first() or 0
        remove()
        entries = AuditEntry.objects.filter(id__gt=newest, actor=actor[:200]).order_by("id")
        found = WouldShape(entries, many=True).data
        transaction.set_rollback(True)
    selectors.catalogue_cache_clear()
    return Response({"would": found})


def is_dry(request: Request) -> bool:
    word = request.query_params.get(DRY_RUN, "false")
    if word not in BOOLEANS:
        raise invalid(DRY_RUN, f"{word!r} is neither true nor false.")
    return BOOLEANS[word]


def assigned(row: Model, values: dict[str, Any]) -> list[str]:
    for field, value in values.items():
        setattr(row, field, value)
    return list(values)


def new_row(request: Request, noun: Noun, *others: str) -> dict[str, Any]:
    """``others``: fields that the view reads itself. Raises ``ProblemError``."""
    body = body_of(request, *(field.name for field in noun.fields), *others)
    return values_of_body(body, noun.fields)


def changed_row(request: Request, noun: Noun) -> dict[str, Any]:
    """Raises ``ProblemError``, also for an empty body."""
    names = [field.name for field in noun.changeable]
    body = body_of(request, *names)
    if not body:
        detail = f"Give at least one of {', '.join(names)}."
        raise ProblemError(400, "missing_required_parameter", detail)
    return _checked(body, noun.changeable)


def values_of_body(body: dict[str, Any], fields: Iterable[Field]) -> dict[str, Any]:
    """Raises ``ProblemError``."""
    for field in fields:
        if field.is_required and body.get(field.name) in (None, ""):
            raise invalid(field.name, f"{field.name} is needed.")
    return _checked(body, fields)


def _checked(body: dict[str, Any], fields: Iterable[Field]) -> dict[str, Any]:
    kinds = {field.name: field.kind for field in fields}
    values: dict[str, Any] = {}
    for name, value in body.items():
        kind = kinds.get(name)
        if kind is not None and (problem := kind.problem(value)):
            raise invalid(name, problem)
        values[name] = moment_of(value) if isinstance(kind, Moment) else value
    return values


def _serialized(field: Field, is_required: bool) -> serializers.Field[Any, Any, Any, Any]:
    return _of_kind(field.kind, {"required": is_required, "help_text": field.help})


def _of_kind(kind: Kind, about: dict[str, Any]) -> serializers.Field[Any, Any, Any, Any]:
    match kind:
        case Flag():
            return serializers.BooleanField(**about)
        case Count(is_optional=is_optional):
            return serializers.IntegerField(allow_null=is_optional, **about)
        case Number():
            return serializers.FloatField(allow_null=True, **about)
        case Money():
            return serializers.IntegerField(allow_null=True, **about)
        case Names() | NeuronNames():
            return serializers.ListField(child=serializers.CharField(), **about)
        case Moment():
            return serializers.DateTimeField(allow_null=True, **about)
        case Word(words):
            return serializers.ChoiceField(choices=list(words), **about)
        case Text(max_length=max_length):
            return serializers.CharField(max_length=max_length, allow_blank=True, **about)
