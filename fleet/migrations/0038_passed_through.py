"""Models whose requests are passed through to upstreams, and their prices."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0037_may_divide"),
    ]

    operations = [
        migrations.AddField(
            model_name="cataloguemodel",
            name="request_price_micro_usd",
            field=models.PositiveBigIntegerField(
                blank=True,
                help_text="Of a model whose task is not text: USD per million requests, beside the unit price. Empty: free.",
                null=True,
                verbose_name="request price",
            ),
        ),
        migrations.AddField(
            model_name="cataloguemodel",
            name="task",
            field=models.CharField(
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
        migrations.AddField(
            model_name="cataloguemodel",
            name="unit_price_micro_usd",
            field=models.PositiveBigIntegerField(
                blank=True,
                help_text="Of a model whose task is not text: USD per million seconds of audio (transcription), characters (speech) or images. 40,000 is 0.04 an image. Empty: free.",
                null=True,
                verbose_name="unit price",
            ),
        ),
        migrations.AddConstraint(
            model_name="cataloguemodel",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("task__in", ("text", "transcription", "speech", "images", "moderation"))
                ),
                name="catalogue_task_known",
            ),
        ),
    ]
