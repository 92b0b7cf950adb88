"""Who pays: accounts, the people in them, their API keys and the hard caps on both.

``metering.services`` writes them, but for what is spent and reserved: ``metering.ledger.store``
changes that in raw SQL.
"""

from __future__ import annotations

from django.conf import settings
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models

from metering.money import amount_words
from metering.principal import LIMIT_FIELDS, RateLimits

ACCOUNT_NAME = RegexValidator(
    r"^[a-z0-9]+([._-][a-z0-9]+)*$", "A lower-case slug, as in research-team."
)


class LimitedModel(models.Model):
    """Limits per minute and at once; empty means none. Until when bodies are captured."""

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
    """Shown once when it is made; kept as a keyed hash behind its public prefix."""

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
    """One row that counts changes of accounts, keys and budgets: gateways read it to know when
    what they remember is out of date."""

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
    """A gateway renews it while it lives; what a gateway without one has reserved is swept."""

    gateway_id = models.CharField(max_length=64, primary_key=True)
    lease_until_unix_s = models.BigIntegerField()
