"""The tables of helexa 0.2.0."""

import django.core.validators
from django.db import migrations, models

import metering.bench.models


class Migration(migrations.Migration):
    replaces = [
        ("bench", "0001_initial"),
        ("bench", "0002_jobs"),
    ]
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="BenchJob",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("running", "Running"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("open_slot", models.PositiveSmallIntegerField(default=1, null=True, unique=True)),
                ("requested_by", models.CharField(max_length=200)),
                ("requested_at", models.DateTimeField(auto_now_add=True)),
                ("target", models.CharField(blank=True, max_length=100)),
                ("model", models.CharField(blank=True, max_length=200)),
                ("scenarios", models.JSONField(default=list)),
                ("samples", models.PositiveSmallIntegerField(null=True)),
                ("is_beside_load", models.BooleanField(default=False)),
                ("is_cancel_requested", models.BooleanField(default=False)),
                ("started_at", models.DateTimeField(null=True)),
                ("beat_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("num_planned", models.PositiveIntegerField(default=0)),
                ("num_ok", models.PositiveIntegerField(default=0)),
                ("num_failed", models.PositiveIntegerField(default=0)),
                ("num_cells_done", models.PositiveIntegerField(default=0)),
                ("lines", models.JSONField(default=list)),
                ("error", models.TextField(blank=True)),
            ],
            options={
                "verbose_name": "job",
                "db_table": "bench_jobs",
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="BenchTarget",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("neuron", "a neuron of helexa"),
                            ("openai", "an endpoint of OpenAI's API"),
                            ("anthropic", "an endpoint of Anthropic's API"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "endpoint",
                    models.CharField(
                        help_text="For a neuron of this fleet http://gateway:31313/api/neurons/NAME, else what clients are given, with or without /v1.",
                        max_length=500,
                    ),
                ),
                ("label", models.CharField(blank=True, max_length=200)),
                ("enabled", models.BooleanField(default=True)),
                (
                    "only_models",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="A list of names; empty: all that are loaded.",
                    ),
                ),
                (
                    "scenarios",
                    models.JSONField(
                        blank=True, default=list, help_text='As ["chat:128"]; empty: the sweep\'s.'
                    ),
                ),
                (
                    "api_key_env",
                    models.CharField(
                        blank=True,
                        help_text="The environment variable that holds the key: keys are not kept here.",
                        max_length=100,
                        verbose_name="variable of the API key",
                    ),
                ),
                (
                    "build",
                    models.CharField(
                        blank=True,
                        help_text="Where the endpoint does not tell its own.",
                        max_length=100,
                    ),
                ),
                ("hostname", models.CharField(blank=True, max_length=200)),
                (
                    "gpus",
                    models.JSONField(
                        blank=True, default=list, help_text="Where the endpoint tells none."
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="SweepPlan",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "samples_per_version",
                    models.PositiveSmallIntegerField(
                        default=5,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(1000),
                        ],
                    ),
                ),
                (
                    "iteration_pause_s",
                    models.FloatField(
                        default=2.0, validators=[django.core.validators.MinValueValidator(0.0)]
                    ),
                ),
                (
                    "request_timeout_s",
                    models.FloatField(
                        default=600.0, validators=[django.core.validators.MinValueValidator(1.0)]
                    ),
                ),
                (
                    "sweep_interval_s",
                    models.FloatField(
                        default=1800.0, validators=[django.core.validators.MinValueValidator(1.0)]
                    ),
                ),
                (
                    "max_tokens",
                    models.PositiveIntegerField(
                        default=256, validators=[django.core.validators.MinValueValidator(1)]
                    ),
                ),
                (
                    "concurrency_prompt_tokens",
                    models.PositiveIntegerField(
                        default=512, validators=[django.core.validators.MinValueValidator(1)]
                    ),
                ),
                (
                    "scenarios",
                    models.JSONField(blank=True, default=metering.bench.models.default_scenarios),
                ),
                (
                    "probes",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text='As [{"name": "poem", "prompt": "…", "max_tokens": 2048}].',
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="BenchRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("ts", models.DateTimeField(db_index=True)),
                ("origin", models.CharField(default="measured", max_length=20)),
                ("target_name", models.CharField(max_length=100)),
                ("target_kind", models.CharField(max_length=16)),
                ("endpoint", models.CharField(blank=True, max_length=500)),
                ("hostname", models.CharField(blank=True, max_length=200)),
                ("driver_version", models.CharField(blank=True, max_length=100)),
                ("cuda_version", models.CharField(blank=True, max_length=100)),
                ("gpus", models.JSONField(blank=True, default=list)),
                ("build", models.CharField(max_length=100)),
                ("git_sha", models.CharField(blank=True, max_length=40)),
                ("git_sha_long", models.CharField(blank=True, max_length=64)),
                ("git_dirty", models.BooleanField(default=False)),
                ("package_version", models.CharField(blank=True, max_length=100)),
                ("build_timestamp", models.DateTimeField(blank=True, null=True)),
                ("features", models.JSONField(blank=True, default=list)),
                ("bench_version", models.CharField(blank=True, max_length=100)),
                ("bench_sha", models.CharField(blank=True, max_length=64)),
                ("model_id", models.CharField(max_length=200)),
                ("harness", models.CharField(blank=True, max_length=40)),
                ("capabilities", models.JSONField(blank=True, default=list)),
                ("devices", models.JSONField(blank=True, default=list)),
                ("settings", models.JSONField(blank=True, default=dict)),
                ("scenario_id", models.CharField(max_length=100)),
                ("prompt_size_approx", models.PositiveIntegerField(blank=True, null=True)),
                ("prompt_tokens_actual", models.PositiveIntegerField(blank=True, null=True)),
                ("cached_tokens", models.PositiveIntegerField(blank=True, null=True)),
                ("max_tokens", models.PositiveIntegerField(blank=True, null=True)),
                ("completion_tokens", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "timing",
                    models.CharField(
                        choices=[("server", "Server"), ("client", "Client")],
                        default="client",
                        max_length=8,
                    ),
                ),
                ("ttft_s", models.FloatField(blank=True, null=True)),
                ("decode_tps", models.FloatField(blank=True, null=True)),
                ("prefill_tps", models.FloatField(blank=True, null=True)),
                ("total_s", models.FloatField(blank=True, null=True)),
                ("prefill_ms", models.FloatField(blank=True, null=True)),
                ("decode_ms", models.FloatField(blank=True, null=True)),
                ("prefill_tokens", models.PositiveIntegerField(blank=True, null=True)),
                ("vram_used_mb", models.PositiveIntegerField(blank=True, null=True)),
                ("gpu_util_pct", models.PositiveSmallIntegerField(blank=True, null=True)),
                ("gpu_temp_c", models.SmallIntegerField(blank=True, null=True)),
                ("concurrency", models.PositiveIntegerField(blank=True, null=True)),
                ("ttft_p95_s", models.FloatField(blank=True, null=True)),
                ("queue_wait_ms", models.FloatField(blank=True, null=True)),
                ("rejected", models.PositiveIntegerField(blank=True, null=True)),
                ("swap_unload_ms", models.FloatField(blank=True, null=True)),
                ("swap_load_ms", models.FloatField(blank=True, null=True)),
                ("artifact", models.TextField(blank=True)),
                ("quality_score", models.FloatField(blank=True, null=True)),
                ("scorer", models.CharField(blank=True, max_length=40)),
                ("detail", models.JSONField(blank=True, default=dict)),
                ("ok", models.BooleanField()),
                ("error", models.TextField(blank=True)),
            ],
            options={
                "verbose_name": "run",
                "db_table": "bench_runs",
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        fields=["target_name", "build", "model_id", "scenario_id", "ok"],
                        name="idx_runs_cell",
                    ),
                    models.Index(fields=["model_id", "scenario_id", "ok"], name="idx_runs_series"),
                ],
            },
        ),
    ]
