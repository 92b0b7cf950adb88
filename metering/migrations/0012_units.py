"""What requests without tokens are metered by."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("metering", "0011_targets_tried"),
    ]

    operations = [
        migrations.AddField(
            model_name="ledgerentry",
            name="num_units",
            field=models.PositiveBigIntegerField(db_default=0, default=0, verbose_name="units"),
        ),
        migrations.AddField(
            model_name="ledgerentry",
            name="unit",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="What a request without tokens is metered by: request, second, character, image.",
                max_length=9,
            ),
        ),
        migrations.AddField(
            model_name="requestrecord",
            name="num_units",
            field=models.PositiveBigIntegerField(db_default=0, default=0, verbose_name="units"),
        ),
        migrations.AddField(
            model_name="requestrecord",
            name="unit",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="What a request without tokens is metered by: request, second, character, image.",
                max_length=9,
            ),
        ),
    ]
