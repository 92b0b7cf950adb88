"""Over how much of the fleet one replica may be divided."""

from django.db import migrations, models

WORDS = ("device", "host")


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0033_may_leave_network"),
    ]

    operations = [
        migrations.AddField(
            model_name="cataloguemodel",
            name="spread",
            field=models.CharField(
                choices=[(word, word) for word in WORDS],
                db_default="host",
                default="host",
                help_text="host: a model that no device holds whole is divided by layers over devices of one host, cards and processors. device: it is refused instead.",
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="cataloguemodel",
            constraint=models.CheckConstraint(
                condition=models.Q(("spread__in", WORDS)),
                name="catalogue_spread_known",
            ),
        ),
    ]
