"""Who changed what, newest first."""

from __future__ import annotations

from fleet.api.access import FleetListView
from fleet.api.shapes import AuditShape
from metering.models import AuditEntry


class AuditView(FleetListView):
    serializer_class = AuditShape
    queryset = AuditEntry.objects.all()
    filters = {"actor": "actor", "action": "action", "object": "object_id"}
