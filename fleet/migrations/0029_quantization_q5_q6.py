"""q5 and q6 beside q4 and q8."""

from django.db import migrations, models

WORDS = ("auto", "none", "q4", "q5", "q6", "q8", "fp8")


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0028_chat_template"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="cataloguemodel",
            name="catalogue_quantization_known",
        ),
        migrations.AlterField(
            model_name="cataloguemodel",
            name="quantization",
            field=models.CharField(
                choices=[(word, word) for word in WORDS],
                db_default="auto",
                default="auto",
                help_text="auto: weights stay as their file holds them. none: the same, and quantised files are refused. q4, q5, q6, q8, fp8: dense weights are quantised while they load (fp8 on CUDA devices that multiply it).",
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="cataloguemodel",
            constraint=models.CheckConstraint(
                condition=models.Q(("quantization__in", WORDS)),
                name="catalogue_quantization_known",
            ),
        ),
    ]
