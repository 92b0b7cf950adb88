"""Metering's tables. ``metering.services`` writes accounts, members, keys and budgets, except the
spent and reserved amounts, which the ledger writes. In records, accounts, keys and models are
names, not foreign keys: rows outlive them."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models

from metering.ledger.entries import Outcome
from metering.money import amount_words
from metering.principal import LIMIT_FIELDS, RateLimits
from metering.series import Kind

ACCOUNT_NAME = RegexValidator(
    r"^[a-z0-9]+([._-][a-z0-9]+)*$", "A lower-case slug, as in research-team."
)


class LimitedModel(models.Model):
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)]
    )
    tokens_per_minute = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)]
    )
    max_concurrent = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        verbose_name="requests at once",
    )

    capture_until = models.DateTimeField(
        null=True,
        blank=True,
        verbose_name="capture bodies until",
        help_text="Requests and answers are stored until then, at most seven days ahead.",
    )

    class Meta:
        abstract = True

    @property
    def limits(self) -> RateLimits:
        return RateLimits(**{name: getattr(self, name) for name in LIMIT_FIELDS})


class Account(LimitedModel):
    """``anonymous`` and ``shared`` are built in: they pay for callers without a key and for those
    with ``HELEXA_API_KEY``."""

    name = models.CharField(max_length=64, primary_key=True, validators=[ACCOUNT_NAME])
    description = models.CharField(max_length=200, blank=True)
    weight = models.PositiveSmallIntegerField(
        default=1,
        validators=[MinValueValidator(1)],
        help_text="Its share where accounts wait for the same engine.",
    )
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    class Role(models.TextChoices):
        OWNER = "owner"
        MEMBER = "member"
        VIEWER = "viewer"

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships"
    )
    role = models.CharField(max_length=8, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        ordering = ["account", "user"]
        constraints = [
            models.UniqueConstraint(fields=["account", "user"], name="membership_once"),
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.account_id}"


class ApiKey(LimitedModel):
    prefix = models.CharField(max_length=16, primary_key=True)
    digest = models.CharField(max_length=64, editable=False)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="keys")
    name = models.CharField(max_length=100, blank=True)
    scopes = models.JSONField(default=list)
    model_names = models.JSONField(
        default=list, blank=True, help_text="Catalogue names it may use; empty: all."
    )
    names_end_user = models.BooleanField(
        default=False,
        db_default=False,
        verbose_name="names its end users",
        help_text="Its clients are trusted to name the person whom they ask for.",
    )
    may_leave_network = models.BooleanField(
        default=True,
        db_default=True,
        verbose_name="may leave the network",
        help_text="Its requests may go to upstreams outside your network, where the model's may.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=150, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.prefix} ({self.name})" if self.name else self.prefix


class Revision(models.Model):
    """One row. Gateways read it to detect that their caches are out of date."""

    number = models.PositiveBigIntegerField(default=0)


class Budget(models.Model):
    """A cap on a key or on an account. Spent plus reserved never passes it."""

    class Unit(models.TextChoices):
        TOKENS = "tokens"
        MICRO_USD = "micro_usd", "micro-USD"

    class Window(models.TextChoices):
        BALANCE = "balance", "balance (never resets)"
        DAY = "day", "calendar day (UTC)"
        MONTH = "month", "calendar month (UTC)"
        SECONDS = "seconds", "so many seconds from the first request"

    account = models.ForeignKey(
        Account, on_delete=models.CASCADE, null=True, blank=True, related_name="budgets"
    )
    key = models.ForeignKey(
        ApiKey, on_delete=models.CASCADE, null=True, blank=True, related_name="budgets"
    )
    unit = models.CharField(max_length=10, choices=Unit.choices)
    cap = models.PositiveBigIntegerField()
    window = models.CharField(max_length=8, choices=Window.choices, default=Window.BALANCE)
    window_s = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], verbose_name="window (seconds)"
    )
    spent = models.PositiveBigIntegerField(default=0, editable=False)
    reserved = models.PositiveBigIntegerField(default=0, editable=False)
    window_ends_unix_s = models.BigIntegerField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(account__isnull=True) ^ models.Q(key__isnull=True),
                name="budget_on_key_or_account",
            ),
            models.CheckConstraint(
                condition=models.Q(window="seconds") ^ models.Q(window_s__isnull=True),
                name="budget_seconds_said",
            ),
        ]

    def __str__(self) -> str:
        owner = self.key_id or self.account_id
        return f"{amount_words(self.unit, self.cap)}, {self.get_window_display()}, on {owner}"


class Reservation(models.Model):
    request_id = models.CharField(max_length=64)
    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="reservations")
    amount = models.PositiveBigIntegerField()
    gateway_id = models.CharField(max_length=64, db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["request_id", "budget"], name="reservation_once"),
        ]


class GatewayLease(models.Model):
    """A gateway renews it while it lives; without one its reservations are swept."""

    gateway_id = models.CharField(max_length=64, primary_key=True)
    lease_until_unix_s = models.BigIntegerField()


class RequestColumns(models.Model):
    key = models.CharField(max_length=16, blank=True)
    neuron = models.CharField(max_length=100, blank=True)
    endpoint = models.CharField(max_length=40)
    client = models.CharField(max_length=32, blank=True)
    prompt_tokens = models.PositiveBigIntegerField()
    cached_tokens = models.PositiveBigIntegerField()
    completion_tokens = models.PositiveBigIntegerField()
    reasoning_tokens = models.PositiveBigIntegerField()
    cost_micro_usd = models.PositiveBigIntegerField()
    duration_ms = models.PositiveBigIntegerField()
    unit = models.CharField(
        max_length=9,
        blank=True,
        default="",
        db_default="",
        help_text="What a request without tokens is metered by: request, second, character, image.",
    )
    num_units = models.PositiveBigIntegerField("units", default=0, db_default=0)

    class Meta:
        abstract = True


class LedgerEntry(RequestColumns):
    request_id = models.CharField(max_length=64, unique=True)
    at = models.DateTimeField(db_index=True, help_text="When it ended.")
    account = models.CharField(max_length=64)
    model = models.CharField(max_length=100)
    outcome = models.CharField(max_length=64)
    time_to_first_token_ms = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name_plural = "ledger entries"
        indexes = [
            models.Index(fields=["account", "at"], name="ledger_account_at"),
            models.Index(fields=["key", "at"], name="ledger_key_at"),
        ]

    def __str__(self) -> str:
        return self.request_id


class UsageHour(models.Model):
    hour = models.DateTimeField()
    account = models.CharField(max_length=64)
    key = models.CharField(max_length=16, blank=True)
    model = models.CharField(max_length=100)
    requests = models.PositiveBigIntegerField(default=0)
    failed_requests = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    cost_micro_usd = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-hour"]
        constraints = [
            models.UniqueConstraint(
                fields=["hour", "account", "key", "model"], name="usage_hour_once"
            ),
        ]


class RequestRecord(RequestColumns):
    """``end_user`` and ``code`` are null where there is none: the partial indexes stay small."""

    request_id = models.UUIDField(unique=True)
    at = models.DateTimeField(help_text="When it ended.")
    account = models.CharField(max_length=64, blank=True)
    end_user = models.CharField(max_length=128, null=True, blank=True)
    model_asked = models.CharField(max_length=200, blank=True)
    model = models.CharField(max_length=100, blank=True)
    status = models.PositiveSmallIntegerField(help_text="Of the HTTP response; 0: none was sent.")
    outcome = models.CharField(
        max_length=9, choices=[(outcome.value, outcome.value) for outcome in Outcome]
    )
    code = models.CharField(max_length=64, null=True, blank=True)
    message = models.CharField(max_length=500, blank=True)
    queue_ms = models.PositiveBigIntegerField(null=True, blank=True)
    time_to_first_token_ms = models.PositiveBigIntegerField(null=True, blank=True)
    is_usage_estimated = models.BooleanField(
        default=False,
        db_default=False,
        help_text="An upstream did not report the tokens: they are estimated.",
    )
    targets_tried = models.CharField(
        max_length=500,
        blank=True,
        default="",
        db_default="",
        help_text="The model's targets that it left, each with its error's code.",
    )

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            # Columns after the time are compared within the index, so that two filters which match
            # many rows each, and none together, do not read those rows. PostgreSQL assumes that two
            # names which never meet often do, and walks back in time for the first of them: the
            # index by time has every name.
            models.Index(fields=["at", "account", "model", "neuron", "status"], name="request_at"),
            models.Index(
                fields=["account", "at", "key", "model", "neuron"], name="request_account"
            ),
            models.Index(fields=["model", "at", "neuron"], name="request_model"),
            models.Index(
                fields=["end_user", "at"],
                name="request_end_user_at",
                condition=models.Q(end_user__isnull=False),
            ),
            *(
                models.Index(
                    fields=[field, "at"],
                    name=f"request_{field}_at",
                    condition=models.Q(code__isnull=False),
                )
                for field in ("code", "status", "outcome")
            ),
        ]

    def __str__(self) -> str:
        return self.request_id.hex


class CapturedRequest(models.Model):
    """The bodies of the ``RequestRecord`` with the same ``request_id``, masked and cut."""

    request_id = models.UUIDField(unique=True)
    at = models.DateTimeField(db_index=True, help_text="When it ended.")
    headers = models.TextField(blank=True)
    request = models.TextField(blank=True)
    answer = models.TextField(blank=True)
    trace = models.TextField(blank=True)

    def __str__(self) -> str:
        return self.request_id.hex


class SeriesRow(models.Model):
    step_s = models.PositiveIntegerField()
    at = models.DateTimeField(help_text="When its step begins.")
    kind = models.CharField(max_length=8, choices=[(kind.value, kind.value) for kind in Kind])
    name = models.CharField(max_length=128, blank=True)
    requests = models.PositiveBigIntegerField(default=0)
    figures = models.JSONField(default=dict)

    class Meta:
        ordering = ["at"]
        constraints = [
            models.UniqueConstraint(fields=["kind", "name", "at", "step_s"], name="series_row_once")
        ]
        indexes = [models.Index(fields=["step_s", "at"], name="series_row_age")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.at:%Y-%m-%d %H:%M}".replace("  ", " ")


class AuditEntry(models.Model):
    """``actor`` reads ``user:alice``, ``key:hx-…``, ``command``, ``gateway`` or ``control``."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=64, help_text="As in key.create or model.update.")
    object_id = models.CharField(max_length=200)
    detail = models.JSONField(default=dict)

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name_plural = "audit entries"
        indexes = [models.Index(fields=["object_id", "at"], name="audit_object_at")]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object_id}"
