"""Endpoints of others that answer requests."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0031_installed_memory"),
    ]

    operations = [
        migrations.CreateModel(
            name="Upstream",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        help_text="A lower-case slug, as gpu-box.", max_length=63, unique=True
                    ),
                ),
                (
                    "url",
                    models.CharField(
                        help_text="Where its API begins: http://gpu-box:8000/v1 for OpenAI's, https://api.anthropic.com for Anthropic's, http://mac:11434 for Ollama's.",
                        max_length=500,
                    ),
                ),
                (
                    "dialect",
                    models.CharField(
                        choices=[
                            ("openai", "openai"),
                            ("anthropic", "anthropic"),
                            ("ollama", "ollama"),
                        ],
                        default="openai",
                        max_length=10,
                    ),
                ),
                (
                    "sealed_secret",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="Its key, encrypted.",
                    ),
                ),
                (
                    "leaves_network",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Requests to it leave your network.",
                    ),
                ),
                (
                    "concurrency",
                    models.PositiveIntegerField(
                        db_default=64,
                        default=64,
                        help_text="How many requests each gateway sends it at once; the others wait.",
                    ),
                ),
                (
                    "connect_timeout_s",
                    models.PositiveIntegerField(
                        db_default=10, default=10, verbose_name="connect timeout (seconds)"
                    ),
                ),
                (
                    "first_token_timeout_s",
                    models.PositiveIntegerField(
                        db_default=300,
                        default=300,
                        help_text="From sending a request to the first part of its answer.",
                        verbose_name="first token timeout (seconds)",
                    ),
                ),
                (
                    "token_timeout_s",
                    models.PositiveIntegerField(
                        db_default=60,
                        default=60,
                        help_text="Between two parts of an answer.",
                        verbose_name="token timeout (seconds)",
                    ),
                ),
                (
                    "proxy",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="An HTTP proxy on the way to it, as http://proxy:3128. Empty: none.",
                        max_length=500,
                    ),
                ),
                (
                    "ca_file",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Certificates of a private CA, a PEM file on every gateway's host, trusted beside the system's. Empty: the system's alone.",
                        max_length=500,
                        verbose_name="CA file",
                    ),
                ),
                (
                    "known_models",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        editable=False,
                        help_text="What it last answered about its models.",
                        verbose_name="models",
                    ),
                ),
                ("discovered_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        auto_now_add=True, db_default=django.db.models.functions.datetime.Now()
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        auto_now=True, db_default=django.db.models.functions.datetime.Now()
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name", ""), _negated=True),
                        name="upstream_name_not_empty",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("dialect__in", ["openai", "anthropic", "ollama"])),
                        name="upstream_dialect_known",
                    ),
                ],
            },
        ),
    ]
