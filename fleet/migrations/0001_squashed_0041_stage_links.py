"""The tables of helexa 0.2.0."""

import uuid

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    replaces = [
        ("fleet", "0001_initial"),
        ("fleet", "0002_max_output_tokens"),
        ("fleet", "0003_quantization"),
        ("fleet", "0004_load_measurements"),
        ("fleet", "0005_kv_dtype"),
        ("fleet", "0006_prices"),
        ("fleet", "0007_neuron_standing"),
        ("fleet", "0008_load_stages"),
        ("fleet", "0009_placement_settings"),
        ("fleet", "0010_load_job_kinds"),
        ("fleet", "0011_control_and_invitations"),
        ("fleet", "0012_downloads"),
        ("fleet", "0013_adapters"),
        ("fleet", "0014_speculation"),
        ("fleet", "0015_prefixes_on_disk"),
        ("fleet", "0016_replica_drafts"),
        ("fleet", "0017_draft_model"),
        ("fleet", "0018_tensor_parallel"),
        ("fleet", "0019_multi_token_prediction"),
        ("fleet", "0020_sleep"),
        ("fleet", "0021_adapters_loaded"),
        ("fleet", "0022_database_defaults"),
        ("fleet", "0023_cut_off_neurons"),
        ("fleet", "0024_models_before_drain"),
        ("fleet", "0025_sampling_and_queue"),
        ("fleet", "0026_load_seconds"),
        ("fleet", "0027_last_known_limits"),
        ("fleet", "0028_chat_template"),
        ("fleet", "0029_quantization_q5_q6"),
        ("fleet", "0030_unloaded_from"),
        ("fleet", "0031_installed_memory"),
        ("fleet", "0032_upstreams"),
        ("fleet", "0033_may_leave_network"),
        ("fleet", "0034_spread"),
        ("fleet", "0035_stages"),
        ("fleet", "0036_targets"),
        ("fleet", "0037_may_divide"),
        ("fleet", "0038_passed_through"),
        ("fleet", "0039_automatic_speculation"),
        ("fleet", "0040_prices_of_targets"),
        ("fleet", "0041_stage_links"),
    ]
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="ControlTerm",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("number", models.PositiveBigIntegerField(default=0)),
                ("control_id", models.CharField(blank=True, max_length=255)),
            ],
        ),
        migrations.CreateModel(
            name="Invitation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("neuron_name", models.CharField(max_length=63, unique=True)),
                ("secret_sha256", models.CharField(max_length=64)),
                ("invited_by", models.CharField(max_length=200)),
                ("invited_at", models.DateTimeField(auto_now_add=True)),
                ("cut_off_at", models.DateTimeField(blank=True, null=True)),
                (
                    "cut_off_reason",
                    models.CharField(blank=True, db_default="", default="", max_length=300),
                ),
            ],
            options={"ordering": ["neuron_name"]},
        ),
        migrations.CreateModel(
            name="CatalogueModel",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100, unique=True)),
                ("source", models.CharField(max_length=500)),
                ("file", models.CharField(blank=True, db_default="", default="", max_length=255)),
                (
                    "revision",
                    models.CharField(blank=True, db_default="", default="", max_length=100),
                ),
                ("sha256", models.CharField(blank=True, db_default="", default="", max_length=64)),
                ("dtype", models.CharField(db_default="auto", default="auto", max_length=16)),
                ("max_context_tokens", models.PositiveIntegerField(blank=True, null=True)),
                ("kv_memory_bytes", models.PositiveBigIntegerField(blank=True, null=True)),
                ("pinned", models.BooleanField(db_default=False, default=False)),
                ("enabled", models.BooleanField(db_default=True, default=True)),
                ("description", models.TextField(blank=True, db_default="", default="")),
                ("weight_bytes", models.PositiveBigIntegerField(blank=True, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("max_output_tokens", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "quantization",
                    models.CharField(db_default="auto", default="auto", max_length=16),
                ),
                (
                    "max_prefill_s",
                    models.PositiveIntegerField(blank=True, db_default=300, default=300, null=True),
                ),
                ("kv_dtype", models.CharField(db_default="auto", default="auto", max_length=16)),
                (
                    "cached_input_price_micro_usd",
                    models.PositiveBigIntegerField(blank=True, null=True),
                ),
                ("input_price_micro_usd", models.PositiveBigIntegerField(blank=True, null=True)),
                ("output_price_micro_usd", models.PositiveBigIntegerField(blank=True, null=True)),
                ("device", models.CharField(db_default="auto", default="auto", max_length=16)),
                ("idle_ttl_s", models.PositiveIntegerField(blank=True, null=True)),
                ("max_concurrent_sequences", models.PositiveIntegerField(blank=True, null=True)),
                ("max_replicas", models.PositiveIntegerField(db_default=1, default=1)),
                ("min_device_vram_mb", models.PositiveIntegerField(blank=True, null=True)),
                ("min_devices", models.PositiveIntegerField(db_default=1, default=1)),
                ("min_replicas", models.PositiveIntegerField(db_default=0, default=0)),
                (
                    "pinned_on",
                    models.JSONField(
                        blank=True, db_default=models.Value([], models.JSONField()), default=list
                    ),
                ),
                ("residency_priority", models.PositiveIntegerField(blank=True, null=True)),
                ("vram_mb", models.PositiveIntegerField(blank=True, null=True)),
                ("adapter_slots", models.PositiveIntegerField(db_default=8, default=8)),
                ("base", models.CharField(blank=True, db_default="", default="", max_length=100)),
                ("max_draft_tokens", models.PositiveIntegerField(blank=True, null=True)),
                ("speculation", models.CharField(db_default="off", default="off", max_length=16)),
                ("prefix_disk_bytes", models.PositiveBigIntegerField(blank=True, null=True)),
                (
                    "draft_model",
                    models.CharField(blank=True, db_default="", default="", max_length=500),
                ),
                ("tensor_parallel", models.PositiveIntegerField(db_default=1, default=1)),
                (
                    "idle_action",
                    models.CharField(db_default="unload", default="unload", max_length=16),
                ),
                ("frequency_penalty", models.FloatField(blank=True, null=True)),
                ("max_queue_depth", models.PositiveIntegerField(blank=True, null=True)),
                ("max_queue_share_percent", models.PositiveIntegerField(blank=True, null=True)),
                ("max_queue_wait_s", models.PositiveIntegerField(blank=True, null=True)),
                ("min_p", models.FloatField(blank=True, null=True)),
                ("presence_penalty", models.FloatField(blank=True, null=True)),
                ("repetition_penalty", models.FloatField(blank=True, null=True)),
                ("repetition_window", models.PositiveIntegerField(blank=True, null=True)),
                ("temperature", models.FloatField(blank=True, null=True)),
                ("top_k", models.PositiveIntegerField(blank=True, null=True)),
                ("top_p", models.FloatField(blank=True, null=True)),
                (
                    "chat_template",
                    models.CharField(blank=True, db_default="", default="", max_length=500),
                ),
                (
                    "unloaded_from",
                    models.JSONField(
                        blank=True, db_default=models.Value([], models.JSONField()), default=list
                    ),
                ),
                ("may_leave_network", models.BooleanField(db_default=False, default=False)),
                ("spread", models.CharField(db_default="host", default="host", max_length=16)),
                ("layer_costs", models.JSONField(blank=True, null=True)),
                (
                    "targets",
                    models.JSONField(
                        blank=True, db_default=models.Value([], models.JSONField()), default=list
                    ),
                ),
                ("request_price_micro_usd", models.PositiveBigIntegerField(blank=True, null=True)),
                ("task", models.CharField(db_default="text", default="text", max_length=16)),
                ("unit_price_micro_usd", models.PositiveBigIntegerField(blank=True, null=True)),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name", ""), _negated=True),
                        name="catalogue_name_not_empty",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("source__contains", ":")),
                        name="catalogue_source_has_scheme",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("dtype__in", ("auto", "float32", "bfloat16", "float16"))
                        ),
                        name="catalogue_dtype_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_context_tokens__isnull", True),
                            ("max_context_tokens__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_context_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("kv_memory_bytes__isnull", True),
                            ("kv_memory_bytes__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_kv_memory_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_output_tokens__isnull", True),
                            ("max_output_tokens__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_output_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_prefill_s__isnull", True),
                            ("max_prefill_s__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_max_prefill_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("kv_dtype__in", ("auto", "fp32", "bf16", "fp16", "int8", "fp8"))
                        ),
                        name="catalogue_kv_dtype_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("input_price_micro_usd__isnull", True),
                            ("output_price_micro_usd__isnull", True),
                            _connector="XOR",
                            _negated=True,
                        ),
                        name="catalogue_priced_or_not",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_concurrent_sequences__isnull", True),
                            ("max_concurrent_sequences__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_max_concurrent_sequences_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("device__in", ("auto", "cuda", "cpu"))),
                        name="catalogue_device_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("min_devices__gt", 0)),
                        name="catalogue_min_devices_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("min_device_vram_mb__isnull", True),
                            ("min_device_vram_mb__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_min_device_vram_mb_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("vram_mb__isnull", True), ("vram_mb__gt", 0), _connector="OR"
                        ),
                        name="catalogue_vram_mb_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("max_replicas__gt", 0)),
                        name="catalogue_max_replicas_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("idle_ttl_s__isnull", True), ("idle_ttl_s__gt", 0), _connector="OR"
                        ),
                        name="catalogue_idle_ttl_s_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("min_replicas__lte", models.F("max_replicas"))),
                        name="catalogue_replicas_in_order",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_draft_tokens__isnull", True),
                            ("max_draft_tokens__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_max_draft_tokens_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("prefix_disk_bytes__isnull", True),
                            ("prefix_disk_bytes__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_prefix_disk_bytes_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("tensor_parallel__gt", 0)),
                        name="catalogue_tensor_parallel_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("idle_action__in", ("unload", "sleep"))),
                        name="catalogue_idle_action_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("repetition_window__isnull", True),
                            ("repetition_window__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_repetition_window_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_queue_depth__isnull", True),
                            ("max_queue_depth__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_max_queue_depth_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_queue_wait_s__isnull", True),
                            ("max_queue_wait_s__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_max_queue_wait_s_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_queue_share_percent__isnull", True),
                            ("max_queue_share_percent__gt", 0),
                            _connector="OR",
                        ),
                        name="catalogue_max_queue_share_percent_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("quantization__in", ("auto", "none", "q4", "q5", "q6", "q8", "fp8"))
                        ),
                        name="catalogue_quantization_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "task__in",
                                ("text", "transcription", "speech", "images", "moderation"),
                            )
                        ),
                        name="catalogue_task_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "speculation__in",
                                ("off", "auto", "prompt_lookup", "draft_model", "mtp"),
                            )
                        ),
                        name="catalogue_speculation_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("spread__in", ("device", "host", "fleet"))),
                        name="catalogue_spread_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="FleetPolicy",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("admission", models.CharField(default="automatic", max_length=16)),
                ("share_address", models.CharField(blank=True, max_length=255)),
                ("share_certificate", models.TextField(blank=True)),
                ("share_is_tls", models.BooleanField(default=False)),
            ],
            options={
                "verbose_name_plural": "fleet policy",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("admission__in", ["automatic", "click"])),
                        name="fleet_policy_admission_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Neuron",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100, unique=True)),
                ("status", models.CharField(default="online", max_length=16)),
                ("status_since", models.DateTimeField()),
                ("epoch", models.CharField(max_length=64)),
                ("version", models.CharField(blank=True, max_length=64)),
                ("started_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField()),
                ("hostname", models.CharField(blank=True, max_length=255)),
                ("operating_system", models.CharField(blank=True, max_length=255)),
                ("num_cores", models.PositiveIntegerField(default=0)),
                ("total_memory_bytes", models.PositiveBigIntegerField(default=0)),
                ("free_memory_bytes", models.PositiveBigIntegerField(default=0)),
                ("problems", models.JSONField(blank=True, default=list)),
                ("drained_at", models.DateTimeField(blank=True, null=True)),
                ("is_leaving", models.BooleanField(default=False)),
                (
                    "held_stages",
                    models.JSONField(
                        blank=True, db_default=models.Value([], models.JSONField()), default=list
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name", ""), _negated=True),
                        name="neuron_name_not_empty",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("status__in", ["online", "away", "draining", "refused"])
                        ),
                        name="neuron_status_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="NeuronWish",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("neuron_name", models.CharField(max_length=100, unique=True)),
                ("admission", models.CharField(default="admitted", max_length=16)),
                ("drain_wanted_at", models.DateTimeField(blank=True, null=True)),
                (
                    "models_before_drain",
                    models.JSONField(
                        blank=True, db_default=models.Value([], models.JSONField()), default=list
                    ),
                ),
            ],
            options={
                "ordering": ["neuron_name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("admission__in", ["admitted", "waiting", "refused"])),
                        name="neuron_wish_admission_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Upstream",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=63, unique=True)),
                ("url", models.CharField(max_length=500)),
                ("dialect", models.CharField(default="openai", max_length=10)),
                ("sealed_secret", models.TextField(blank=True, db_default="", default="")),
                ("leaves_network", models.BooleanField(db_default=False, default=False)),
                ("concurrency", models.PositiveIntegerField(db_default=64, default=64)),
                ("connect_timeout_s", models.PositiveIntegerField(db_default=10, default=10)),
                ("first_token_timeout_s", models.PositiveIntegerField(db_default=300, default=300)),
                ("token_timeout_s", models.PositiveIntegerField(db_default=60, default=60)),
                ("proxy", models.CharField(blank=True, db_default="", default="", max_length=500)),
                (
                    "ca_file",
                    models.CharField(blank=True, db_default="", default="", max_length=500),
                ),
                (
                    "known_models",
                    models.JSONField(
                        blank=True, db_default=models.Value([], models.JSONField()), default=list
                    ),
                ),
                ("discovered_at", models.DateTimeField(blank=True, null=True)),
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
        migrations.CreateModel(
            name="Alias",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="aliases",
                        to="fleet.cataloguemodel",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "aliases",
                "ordering": ["name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name", ""), _negated=True), name="alias_name_not_empty"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="LoadMeasurement",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("device_kind", models.CharField(max_length=8)),
                ("load_bytes", models.PositiveBigIntegerField()),
                ("process_bytes", models.PositiveBigIntegerField()),
                ("kv_token_bytes", models.PositiveBigIntegerField()),
                ("memory_correction_bytes", models.BigIntegerField()),
                ("prefill_token_s", models.FloatField(null=True)),
                ("prefill_growth_s", models.FloatField(null=True)),
                ("prefill_window_tokens", models.PositiveIntegerField(null=True)),
                ("measured_at", models.DateTimeField(auto_now=True)),
                ("load_s", models.FloatField(null=True)),
                ("context_tokens", models.PositiveIntegerField(null=True)),
                ("capabilities", models.JSONField(null=True)),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="load_measurements",
                        to="fleet.cataloguemodel",
                    ),
                ),
                (
                    "neuron",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="load_measurements",
                        to="fleet.neuron",
                    ),
                ),
            ],
            options={
                "ordering": ["model__name", "neuron__name"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("model", "neuron"), name="load_measurement_unique_on_neuron"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("device_kind__in", ["cpu", "cuda"])),
                        name="load_measurement_device_kind_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LoadJob",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("requested_by", models.CharField(blank=True, max_length=150)),
                ("status", models.CharField(default="pending", max_length=16)),
                ("stage", models.CharField(blank=True, max_length=16)),
                ("stage_started_at", models.DateTimeField(blank=True, null=True)),
                ("progress_done", models.PositiveBigIntegerField(default=0)),
                ("progress_total", models.PositiveBigIntegerField(default=0)),
                ("progress_unit", models.CharField(blank=True, max_length=16)),
                ("progress_detail", models.TextField(blank=True)),
                ("failure_code", models.CharField(blank=True, max_length=64)),
                ("failure_message", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("reported_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("devices", models.JSONField(blank=True, default=list)),
                ("evict", models.JSONField(blank=True, default=list)),
                ("kind", models.CharField(default="load", max_length=8)),
                ("model_name", models.CharField(max_length=100)),
                ("note", models.TextField(blank=True)),
                ("spec_digest", models.CharField(blank=True, max_length=64)),
                ("engine_started_at", models.DateTimeField(blank=True, null=True)),
                ("expected_load_s", models.FloatField(blank=True, null=True)),
                (
                    "stages",
                    models.JSONField(
                        blank=True, db_default=models.Value([], models.JSONField()), default=list
                    ),
                ),
                ("predicted_tokens_per_s", models.FloatField(blank=True, null=True)),
                ("may_divide", models.BooleanField(db_default=False, default=False)),
                ("stage_links", models.TextField(blank=True, db_default="", default="")),
                (
                    "model",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="load_jobs",
                        to="fleet.cataloguemodel",
                    ),
                ),
                (
                    "replacement",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="reloads",
                        to="fleet.loadjob",
                    ),
                ),
                (
                    "neuron",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="load_jobs",
                        to="fleet.neuron",
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at"],
                "indexes": [
                    models.Index(fields=["model", "-created_at"], name="load_job_model_newest")
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                ["pending", "running", "succeeded", "failed", "cancelled"],
                            )
                        ),
                        name="load_job_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("status__in", ("pending", "running")),
                                ("finished_at__isnull", True),
                            ),
                            models.Q(
                                models.Q(("status__in", ("pending", "running")), _negated=True),
                                ("finished_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="load_job_finished_when_ended",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("status", "failed"), ("failure_code", ""), _connector="XOR"
                        ),
                        name="load_job_failure_has_code",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(
                            ("status__in", ("pending", "running")),
                            models.Q(("kind__in", ("unload", "sleep")), _negated=True),
                        ),
                        fields=("model_name", "neuron"),
                        name="load_job_one_active",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(
                            ("status__in", ("pending", "running")),
                            ("kind__in", ("unload", "sleep")),
                        ),
                        fields=("model_name", "neuron"),
                        name="load_job_one_active_unload",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["load", "unload", "reload", "sleep"])),
                        name="load_job_kind_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Download",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("kind", models.CharField(default="pull", max_length=8)),
                ("source", models.CharField(max_length=500)),
                ("file", models.CharField(blank=True, max_length=255)),
                ("revision", models.CharField(blank=True, max_length=100)),
                ("sha256", models.CharField(blank=True, max_length=64)),
                ("files", models.JSONField(blank=True, default=list)),
                ("requested_by", models.CharField(blank=True, max_length=150)),
                ("status", models.CharField(default="pending", max_length=16)),
                ("bytes_done", models.PositiveBigIntegerField(default=0)),
                ("bytes_total", models.PositiveBigIntegerField(default=0)),
                ("detail", models.TextField(blank=True)),
                ("failure_code", models.CharField(blank=True, max_length=64)),
                ("failure_message", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("reported_at", models.DateTimeField(blank=True, null=True)),
                ("cancel_wanted_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "neuron",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="downloads",
                        to="fleet.neuron",
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at"],
                "indexes": [
                    models.Index(fields=["status", "-created_at"], name="download_status_newest")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(
                            ("status__in", ("pending", "running")), ("kind", "pull")
                        ),
                        fields=("neuron", "source", "file", "revision"),
                        name="download_one_active_pull",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["pull", "delete"])),
                        name="download_kind_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                ["pending", "running", "succeeded", "failed", "cancelled"],
                            )
                        ),
                        name="download_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("status__in", ("pending", "running")),
                                ("finished_at__isnull", True),
                            ),
                            models.Q(
                                models.Q(("status__in", ("pending", "running")), _negated=True),
                                ("finished_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="download_finished_when_ended",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("status", "failed"), ("failure_code", ""), _connector="XOR"
                        ),
                        name="download_failure_has_code",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Device",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=8)),
                ("index", models.PositiveSmallIntegerField()),
                ("name", models.CharField(max_length=255)),
                ("total_memory_bytes", models.PositiveBigIntegerField()),
                ("free_memory_bytes", models.PositiveBigIntegerField()),
                ("compute_capability", models.CharField(blank=True, max_length=16)),
                ("driver", models.CharField(blank=True, max_length=64)),
                ("installed_memory_bytes", models.PositiveBigIntegerField(blank=True, null=True)),
                (
                    "neuron",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="devices",
                        to="fleet.neuron",
                    ),
                ),
            ],
            options={
                "ordering": ["neuron__name", "kind", "index"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("neuron", "kind", "index"), name="device_unique_on_neuron"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["cpu", "cuda"])), name="device_kind_known"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Replica",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("model_name", models.CharField(max_length=100)),
                ("job_id", models.CharField(max_length=64)),
                ("status", models.CharField(max_length=16)),
                ("status_since", models.DateTimeField()),
                ("num_restarts", models.PositiveIntegerField(default=0)),
                ("in_flight", models.PositiveIntegerField(default=0)),
                ("queue_depth", models.PositiveIntegerField(default=0)),
                ("kv_blocks_used", models.PositiveIntegerField(default=0)),
                ("kv_blocks_total", models.PositiveIntegerField(default=0)),
                ("decode_tokens_per_s", models.FloatField(default=0.0)),
                ("report", models.JSONField(blank=True, null=True)),
                ("failure_code", models.CharField(blank=True, max_length=64)),
                ("failure_message", models.TextField(blank=True)),
                ("devices", models.JSONField(blank=True, default=list)),
                ("last_used_at", models.DateTimeField(blank=True, null=True)),
                ("memory_bytes", models.PositiveBigIntegerField(blank=True, null=True)),
                ("spec_digest", models.CharField(blank=True, max_length=64)),
                ("num_accepted_drafts", models.PositiveBigIntegerField(db_default=0, default=0)),
                ("num_drafted_tokens", models.PositiveBigIntegerField(db_default=0, default=0)),
                ("host_memory_bytes", models.PositiveBigIntegerField(db_default=0, default=0)),
                (
                    "adapters",
                    models.JSONField(
                        blank=True, db_default=models.Value([], models.JSONField()), default=list
                    ),
                ),
                (
                    "model",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="replicas",
                        to="fleet.cataloguemodel",
                    ),
                ),
                (
                    "neuron",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="replicas",
                        to="fleet.neuron",
                    ),
                ),
            ],
            options={
                "ordering": ["neuron__name", "model_name"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("neuron", "model_name"), name="replica_unique_on_neuron"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                [
                                    "loading",
                                    "ready",
                                    "recovering",
                                    "draining",
                                    "asleep",
                                    "failed",
                                    "away",
                                ],
                            )
                        ),
                        name="replica_status_known",
                    ),
                ],
            },
        ),
    ]
