"""What the database holds of metering."""

from metering.models.account import Account, ApiKey, Membership, Revision
from metering.models.audit import AuditEntry
from metering.models.budget import Budget, GatewayLease, Reservation
from metering.models.captured_request import CapturedRequest
from metering.models.ledger import LedgerEntry, UsageHour
from metering.models.request_record import RequestRecord
from metering.models.series_row import SeriesRow

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
