"""The tables of helexa 0.2.0."""

import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


def create_built_in_accounts(apps, _schema_editor):
    """The accounts that are always there, and the row that counts changes."""
    accounts = apps.get_model("metering", "Account").objects
    accounts.create(name="anonymous", description="Callers without a key.")
    accounts.create(name="shared", description="Callers with HELEXA_API_KEY.")
    apps.get_model("metering", "Revision").objects.create(id=1)


class Migration(migrations.Migration):
    replaces = [
        ("metering", "0001_initial"),
        ("metering", "0002_built_in_accounts"),
        ("metering", "0003_set_aside_reports"),
        ("metering", "0004_request_records"),
        ("metering", "0005_request_indexes"),
        ("metering", "0006_key_end_users"),
        ("metering", "0007_captured_requests"),
        ("metering", "0008_estimated_usage"),
        ("metering", "0009_series_rows"),
        ("metering", "0010_key_may_leave_network"),
        ("metering", "0011_targets_tried"),
        ("metering", "0012_units"),
        ("metering", "0013_request_index_with_names"),
    ]
    initial = True

    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        migrations.CreateModel(
            name="Account",
            fields=[
                ("requests_per_minute", models.PositiveIntegerField(blank=True, null=True)),
                ("tokens_per_minute", models.PositiveIntegerField(blank=True, null=True)),
                ("max_concurrent", models.PositiveIntegerField(blank=True, null=True)),
                ("name", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("description", models.CharField(blank=True, max_length=200)),
                ("weight", models.PositiveSmallIntegerField(default=1)),
                ("enabled", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("capture_until", models.DateTimeField(blank=True, null=True)),
            ],
            options={"ordering": ["name"]},
        ),
        migrations.CreateModel(
            name="CapturedRequest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("request_id", models.UUIDField(unique=True)),
                ("at", models.DateTimeField(db_index=True)),
                ("headers", models.TextField(blank=True)),
                ("request", models.TextField(blank=True)),
                ("answer", models.TextField(blank=True)),
                ("trace", models.TextField(blank=True)),
            ],
        ),
        migrations.CreateModel(
            name="GatewayLease",
            fields=[
                ("gateway_id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("lease_until_unix_s", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Revision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("number", models.PositiveBigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="SetAsideReport",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("at", models.DateTimeField(auto_now_add=True, db_index=True)),
                ("neuron", models.CharField(db_index=True, max_length=100)),
                ("reason", models.CharField(max_length=500)),
                ("request_id", models.CharField(blank=True, max_length=64)),
                ("account", models.CharField(blank=True, max_length=64)),
                ("num_more", models.PositiveBigIntegerField(default=0)),
            ],
            options={
                "verbose_name": "usage report set aside",
                "verbose_name_plural": "usage reports set aside",
                "ordering": ["-at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                ("requests_per_minute", models.PositiveIntegerField(blank=True, null=True)),
                ("tokens_per_minute", models.PositiveIntegerField(blank=True, null=True)),
                ("max_concurrent", models.PositiveIntegerField(blank=True, null=True)),
                ("prefix", models.CharField(max_length=16, primary_key=True, serialize=False)),
                ("digest", models.CharField(max_length=64)),
                ("name", models.CharField(blank=True, max_length=100)),
                ("scopes", models.JSONField(default=list)),
                ("model_names", models.JSONField(blank=True, default=list)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("created_by", models.CharField(blank=True, max_length=150)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                ("last_used_at", models.DateTimeField(blank=True, null=True)),
                ("names_end_user", models.BooleanField(db_default=False, default=False)),
                ("capture_until", models.DateTimeField(blank=True, null=True)),
                ("may_leave_network", models.BooleanField(db_default=True, default=True)),
                (
                    "account",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="keys",
                        to="metering.account",
                    ),
                ),
            ],
            options={"verbose_name": "API key", "ordering": ["-created_at"]},
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("at", models.DateTimeField(auto_now_add=True, db_index=True)),
                ("actor", models.CharField(max_length=200)),
                ("action", models.CharField(max_length=64)),
                ("object_id", models.CharField(max_length=200)),
                ("detail", models.JSONField(default=dict)),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "ordering": ["-at", "-id"],
                "indexes": [models.Index(fields=["object_id", "at"], name="audit_object_at")],
            },
        ),
        migrations.CreateModel(
            name="Budget",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("unit", models.CharField(max_length=10)),
                ("cap", models.PositiveBigIntegerField()),
                ("window", models.CharField(default="balance", max_length=8)),
                ("window_s", models.PositiveIntegerField(blank=True, null=True)),
                ("spent", models.PositiveBigIntegerField(default=0)),
                ("reserved", models.PositiveBigIntegerField(default=0)),
                ("window_ends_unix_s", models.BigIntegerField(blank=True, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "account",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="budgets",
                        to="metering.account",
                    ),
                ),
                (
                    "key",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="budgets",
                        to="metering.apikey",
                    ),
                ),
            ],
            options={"ordering": ["id"]},
        ),
        migrations.CreateModel(
            name="LedgerEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("request_id", models.CharField(max_length=64, unique=True)),
                ("at", models.DateTimeField(db_index=True)),
                ("account", models.CharField(max_length=64)),
                ("key", models.CharField(blank=True, max_length=16)),
                ("model", models.CharField(max_length=100)),
                ("neuron", models.CharField(blank=True, max_length=100)),
                ("endpoint", models.CharField(max_length=40)),
                ("client", models.CharField(blank=True, max_length=32)),
                ("outcome", models.CharField(max_length=64)),
                ("prompt_tokens", models.PositiveBigIntegerField()),
                ("cached_tokens", models.PositiveBigIntegerField()),
                ("completion_tokens", models.PositiveBigIntegerField()),
                ("reasoning_tokens", models.PositiveBigIntegerField()),
                ("cost_micro_usd", models.PositiveBigIntegerField()),
                ("time_to_first_token_ms", models.PositiveIntegerField(blank=True, null=True)),
                ("duration_ms", models.PositiveBigIntegerField()),
                ("num_units", models.PositiveBigIntegerField(db_default=0, default=0)),
                ("unit", models.CharField(blank=True, db_default="", default="", max_length=9)),
            ],
            options={
                "verbose_name_plural": "ledger entries",
                "ordering": ["-at", "-id"],
                "indexes": [
                    models.Index(fields=["account", "at"], name="ledger_account_at"),
                    models.Index(fields=["key", "at"], name="ledger_key_at"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("role", models.CharField(default="member", max_length=8)),
                (
                    "account",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="metering.account",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={"ordering": ["account", "user"]},
        ),
        migrations.CreateModel(
            name="RequestRecord",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("request_id", models.UUIDField(unique=True)),
                ("at", models.DateTimeField()),
                ("account", models.CharField(blank=True, max_length=64)),
                ("key", models.CharField(blank=True, max_length=16)),
                ("end_user", models.CharField(blank=True, max_length=128, null=True)),
                ("model_asked", models.CharField(blank=True, max_length=200)),
                ("model", models.CharField(blank=True, max_length=100)),
                ("neuron", models.CharField(blank=True, max_length=100)),
                ("endpoint", models.CharField(max_length=40)),
                ("client", models.CharField(blank=True, max_length=32)),
                ("status", models.PositiveSmallIntegerField()),
                ("outcome", models.CharField(max_length=9)),
                ("code", models.CharField(blank=True, max_length=64, null=True)),
                ("message", models.CharField(blank=True, max_length=500)),
                ("queue_ms", models.PositiveBigIntegerField(blank=True, null=True)),
                ("time_to_first_token_ms", models.PositiveBigIntegerField(blank=True, null=True)),
                ("duration_ms", models.PositiveBigIntegerField()),
                ("prompt_tokens", models.PositiveBigIntegerField()),
                ("cached_tokens", models.PositiveBigIntegerField()),
                ("completion_tokens", models.PositiveBigIntegerField()),
                ("reasoning_tokens", models.PositiveBigIntegerField()),
                ("cost_micro_usd", models.PositiveBigIntegerField()),
                ("is_usage_estimated", models.BooleanField(db_default=False, default=False)),
                (
                    "targets_tried",
                    models.CharField(blank=True, db_default="", default="", max_length=500),
                ),
                ("num_units", models.PositiveBigIntegerField(db_default=0, default=0)),
                ("unit", models.CharField(blank=True, db_default="", default="", max_length=9)),
            ],
            options={
                "ordering": ["-at", "-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("end_user__isnull", False)),
                        fields=["end_user", "at"],
                        name="request_end_user_at",
                    ),
                    models.Index(
                        condition=models.Q(("code__isnull", False)),
                        fields=["code", "at"],
                        name="request_code_at",
                    ),
                    models.Index(
                        condition=models.Q(("code__isnull", False)),
                        fields=["status", "at"],
                        name="request_status_at",
                    ),
                    models.Index(
                        condition=models.Q(("code__isnull", False)),
                        fields=["outcome", "at"],
                        name="request_outcome_at",
                    ),
                    models.Index(
                        fields=["account", "at", "key", "model", "neuron"], name="request_account"
                    ),
                    models.Index(fields=["model", "at", "neuron"], name="request_model"),
                    models.Index(
                        fields=["at", "account", "model", "neuron", "status"], name="request_at"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("request_id", models.CharField(max_length=64)),
                ("amount", models.PositiveBigIntegerField()),
                ("gateway_id", models.CharField(db_index=True, max_length=64)),
                (
                    "budget",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="reservations",
                        to="metering.budget",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="SeriesRow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("step_s", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("kind", models.CharField(max_length=8)),
                ("name", models.CharField(blank=True, max_length=128)),
                ("requests", models.PositiveBigIntegerField(default=0)),
                ("figures", models.JSONField(default=dict)),
            ],
            options={
                "ordering": ["at"],
                "indexes": [models.Index(fields=["step_s", "at"], name="series_row_age")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("kind", "name", "at", "step_s"), name="series_row_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("hour", models.DateTimeField()),
                ("account", models.CharField(max_length=64)),
                ("key", models.CharField(blank=True, max_length=16)),
                ("model", models.CharField(max_length=100)),
                ("requests", models.PositiveBigIntegerField(default=0)),
                ("failed_requests", models.PositiveBigIntegerField(default=0)),
                ("prompt_tokens", models.PositiveBigIntegerField(default=0)),
                ("cached_tokens", models.PositiveBigIntegerField(default=0)),
                ("completion_tokens", models.PositiveBigIntegerField(default=0)),
                ("reasoning_tokens", models.PositiveBigIntegerField(default=0)),
                ("cost_micro_usd", models.PositiveBigIntegerField(default=0)),
            ],
            options={
                "ordering": ["-hour"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("hour", "account", "key", "model"), name="usage_hour_once"
                    )
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("account__isnull", True), ("key__isnull", True), _connector="XOR"
                ),
                name="budget_on_key_or_account",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("window", "seconds"), ("window_s__isnull", True), _connector="XOR"
                ),
                name="budget_seconds_said",
            ),
        ),
        migrations.AddConstraint(
            model_name="membership",
            constraint=models.UniqueConstraint(fields=("account", "user"), name="membership_once"),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.UniqueConstraint(
                fields=("request_id", "budget"), name="reservation_once"
            ),
        ),
        migrations.RunPython(create_built_in_accounts, migrations.RunPython.noop),
    ]
