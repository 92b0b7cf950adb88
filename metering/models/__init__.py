"""What the database holds of metering."""

from metering.models.accounts import (
    Account,
    ApiKey,
    Budget,
    GatewayLease,
    Membership,
    Reservation,
    Revision,
)
from metering.models.records import (
    AuditEntry,
    CapturedRequest,
    LedgerEntry,
    RequestRecord,
    SeriesRow,
    UsageHour,
)

__all__ = [
    "Account",
    "ApiKey",
    "AuditEntry",
    "Budget",
    "CapturedRequest",
    "GatewayLease",
    "LedgerEntry",
    "Membership",
    "RequestRecord",
    "Reservation",
    "Revision",
    "SeriesRow",
    "UsageHour",
]
