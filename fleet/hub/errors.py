"""Why the hub gave no answer.

FleetError
└── HubError
    ├── HubUnavailableError       503 hub_unavailable       retryable
    ├── RepositoryUnknownError    404 repository_not_found
    └── UnknownSourceError        400 unknown_source
"""

from __future__ import annotations

from fleet.errors import FleetError


class HubError(FleetError):
    code = "hub_error"


class HubUnavailableError(HubError):
    http_status = 503
    code = "hub_unavailable"
    retryable = True


class RepositoryUnknownError(HubError):
    http_status = 404
    code = "repository_not_found"


class UnknownSourceError(HubError):
    http_status = 400
    code = "unknown_source"
