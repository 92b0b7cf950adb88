"""The bench's tables: targets, the plan, and every sample as a row.

``BenchRun`` has the columns of the original system's table ``runs``, without those of a Rust build;
JSON is text there and values here. Targets and models are names: results outlive both.
"""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models

from inference.settings.storage import OTHERS_KEY
from metering.bench.measures import DEFAULT_SCENARIOS, parse_scenarios
from metering.errors import BenchValueError


def default_scenarios() -> list[str]:
    return list(DEFAULT_SCENARIOS)


def ensure_texts(value: object) -> None:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValidationError("It is to be a list of texts.")


def ensure_scenarios(value: list[str]) -> None:
    ensure_texts(value)
    try:
        parse_scenarios(value)
    except BenchValueError as error:
        raise ValidationError(str(error)) from error


def ensure_variable(value: str) -> None:
    if not OTHERS_KEY.fullmatch(value):
        raise ValidationError(
            f"{value!r} is no name of a variable, or a secret of this server, which no target is "
            "sent"
        )


def setting_names(model: type[models.Model]) -> tuple[str, ...]:
    names = [column.name for column in model._meta.concrete_fields]
    return tuple(name for name in names if name not in ("id", "name", "probes"))


class BenchTarget(models.Model):
    class Kind(models.TextChoices):
        NEURON = "neuron", "a neuron of helexa"
        OPENAI = "openai", "an endpoint of OpenAI's API"
        ANTHROPIC = "anthropic", "an endpoint of Anthropic's API"

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=16, choices=Kind.choices)
    endpoint = models.CharField(
        max_length=500,
        validators=[RegexValidator("^https?://", "'%(value)s' is not like http://gpu-box:8080")],
        help_text="For a neuron of this fleet http://gateway:31313/api/neurons/NAME, else what "
        "clients are given, with or without /v1.",
    )
    label = models.CharField(max_length=200, blank=True)
    enabled = models.BooleanField(default=True)
    only_models = models.JSONField(
        default=list,
        blank=True,
        validators=[ensure_texts],
        help_text="A list of names; empty: all that are loaded.",
    )
    scenarios = models.JSONField(
        default=list,
        blank=True,
        validators=[ensure_scenarios],
        help_text='As ["chat:128"]; empty: the sweep\'s.',
    )
    api_key_env = models.CharField(
        "variable of the API key",
        max_length=100,
        blank=True,
        validators=[ensure_variable],
        help_text="The environment variable that holds the key: keys are not kept here.",
    )
    build = models.CharField(
        max_length=100, blank=True, help_text="Where the endpoint does not tell its own."
    )
    hostname = models.CharField(max_length=200, blank=True)
    gpus = models.JSONField(
        "GPUs",
        default=list,
        blank=True,
        validators=[ensure_texts],
        help_text="Where the endpoint tells none.",
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.label or self.name


class SweepPlan(models.Model):
    samples_per_version = models.PositiveSmallIntegerField(
        default=5, validators=[MinValueValidator(1), MaxValueValidator(1000)]
    )
    iteration_pause_s = models.FloatField(
        "pause between iterations (seconds)", default=2.0, validators=[MinValueValidator(0.0)]
    )
    request_timeout_s = models.FloatField(
        "timeout of a request (seconds)", default=600.0, validators=[MinValueValidator(1.0)]
    )
    sweep_interval_s = models.FloatField(
        "time between sweeps (seconds)", default=1800.0, validators=[MinValueValidator(1.0)]
    )
    max_tokens = models.PositiveIntegerField(default=256, validators=[MinValueValidator(1)])
    concurrency_prompt_tokens = models.PositiveIntegerField(
        default=512, validators=[MinValueValidator(1)]
    )
    scenarios = models.JSONField(
        default=default_scenarios, blank=True, validators=[ensure_scenarios]
    )
    probes = models.JSONField(default=list, blank=True)
    """Unused; release 0.2, which may run beside this one during an upgrade, reads it."""

    def __str__(self) -> str:
        return "how targets are measured"


class BenchJob(models.Model):
    class Status(models.TextChoices):
        PENDING = "pending"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"
        CANCELLED = "cancelled"

    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    open_slot = models.PositiveSmallIntegerField(null=True, unique=True, default=1)
    """1 until it has ended, then ``None``: the database refuses a second open job."""
    requested_by = models.CharField(max_length=200)
    requested_at = models.DateTimeField(auto_now_add=True)
    target = models.CharField(max_length=100, blank=True)
    """Empty: all online neurons, and all enabled targets."""
    model = models.CharField(max_length=200, blank=True)
    scenarios = models.JSONField(default=list)
    """Empty: those of each target, or of the plan."""
    samples = models.PositiveSmallIntegerField(null=True)
    is_beside_load = models.BooleanField(default=False)
    is_cancel_requested = models.BooleanField(default=False)
    started_at = models.DateTimeField(null=True)
    beat_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    num_planned = models.PositiveIntegerField(default=0)
    num_ok = models.PositiveIntegerField(default=0)
    num_failed = models.PositiveIntegerField(default=0)
    num_cells_done = models.PositiveIntegerField(default=0)
    lines = models.JSONField(default=list)
    error = models.TextField(blank=True)

    class Meta:
        db_table = "bench_jobs"
        ordering = ["-id"]
        verbose_name = "job"

    def __str__(self) -> str:
        return f"job {self.pk}"

    @property
    def is_open(self) -> bool:
        return self.open_slot is not None


class BenchRun(models.Model):
    class Timing(models.TextChoices):
        SERVER = "server"
        CLIENT = "client"

    ts = models.DateTimeField("when", db_index=True)
    origin = models.CharField(max_length=20, default="measured")
    """``measured``, or the kind of the imported file."""
    target_name = models.CharField(max_length=100)
    target_kind = models.CharField(max_length=16)
    endpoint = models.CharField(max_length=500, blank=True)
    hostname = models.CharField(max_length=200, blank=True)
    driver_version = models.CharField(max_length=100, blank=True)
    cuda_version = models.CharField(max_length=100, blank=True)
    gpus = models.JSONField("GPUs", default=list, blank=True)
    build = models.CharField(max_length=100)
    """Groups cells: the commit where it is known, else the version that the server reports."""
    git_sha = models.CharField("git commit", max_length=40, blank=True)
    git_sha_long = models.CharField("git commit long", max_length=64, blank=True)
    git_dirty = models.BooleanField(default=False)
    package_version = models.CharField(max_length=100, blank=True)
    build_timestamp = models.DateTimeField(null=True, blank=True)
    features = models.JSONField(default=list, blank=True)
    bench_version = models.CharField(max_length=100, blank=True)
    bench_sha = models.CharField("bench commit", max_length=64, blank=True)
    model_id = models.CharField("model", max_length=200)
    harness = models.CharField(max_length=40, blank=True)
    capabilities = models.JSONField(default=list, blank=True)
    devices = models.JSONField(default=list, blank=True)
    settings = models.JSONField(default=dict, blank=True)
    """The requested settings, and those that the endpoint reports for the model."""
    scenario_id = models.CharField("scenario", max_length=100)
    prompt_size_approx = models.PositiveIntegerField(null=True, blank=True)
    prompt_tokens_actual = models.PositiveIntegerField(null=True, blank=True)
    cached_tokens = models.PositiveIntegerField(null=True, blank=True)
    max_tokens = models.PositiveIntegerField(null=True, blank=True)
    completion_tokens = models.PositiveIntegerField(null=True, blank=True)
    timing = models.CharField(max_length=8, choices=Timing.choices, default=Timing.CLIENT)
    ttft_s = models.FloatField("TTFT s", null=True, blank=True)
    decode_tps = models.FloatField("decode tok/s", null=True, blank=True)
    prefill_tps = models.FloatField("prefill tok/s", null=True, blank=True)
    total_s = models.FloatField(null=True, blank=True)
    prefill_ms = models.FloatField(null=True, blank=True)
    decode_ms = models.FloatField(null=True, blank=True)
    prefill_tokens = models.PositiveIntegerField(null=True, blank=True)
    vram_used_mb = models.PositiveIntegerField(null=True, blank=True)
    gpu_util_pct = models.PositiveSmallIntegerField("GPU util %", null=True, blank=True)
    gpu_temp_c = models.SmallIntegerField("GPU temp c", null=True, blank=True)
    concurrency = models.PositiveIntegerField(null=True, blank=True)
    ttft_p95_s = models.FloatField("TTFT p95 s", null=True, blank=True)
    queue_wait_ms = models.FloatField(null=True, blank=True)
    rejected = models.PositiveIntegerField(null=True, blank=True)
    swap_unload_ms = models.FloatField(null=True, blank=True)
    swap_load_ms = models.FloatField(null=True, blank=True)
    artifact = models.TextField(blank=True)
    quality_score = models.FloatField(null=True, blank=True)
    scorer = models.CharField(max_length=40, blank=True)
    detail = models.JSONField(default=dict, blank=True)
    ok = models.BooleanField()
    error = models.TextField(blank=True)

    class Meta:
        db_table = "bench_runs"
        ordering = ["-id"]
        verbose_name = "run"
        indexes = [
            models.Index(
                fields=["target_name", "build", "model_id", "scenario_id", "ok"],
                name="idx_runs_cell",
            ),
            models.Index(fields=["model_id", "scenario_id", "ok"], name="idx_runs_series"),
        ]

    def __str__(self) -> str:
        return f"{self.target_name} {self.build} {self.model_id} {self.scenario_id}"
