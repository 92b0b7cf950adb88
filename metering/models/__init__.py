"""What the database holds of metering."""

from metering.models.account import Account, ApiKey, Membership, Revision
from metering.models.audit import AuditEntry
from metering.models.budget import Budget, GatewayLease, Reservation
from metering.models.ledger import LedgerEntry, UsageHour
from metering.models.request_record import RequestRecord
from metering.models.set_aside import SetAsideReport

__all__ = [
    "Account",
    "ApiKey",
    "AuditEntry",
    "Budget",
    "GatewayLease",
    "LedgerEntry",
    "Membership",
    "RequestRecord",
    "Reservation",
    "Revision",
    "SetAsideReport",
    "UsageHour",
]
