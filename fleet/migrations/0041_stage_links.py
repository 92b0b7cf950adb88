"""Models over several hosts: held stages, and the secrets of their links until they listen."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0040_prices_of_targets"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="cataloguemodel",
            name="catalogue_spread_known",
        ),
        migrations.AddField(
            model_name="loadjob",
            name="stage_links",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="Of its stages' links, encrypted, until the stages on other neurons listen.",
            ),
        ),
        migrations.AddField(
            model_name="neuron",
            name="held_stages",
            field=models.JSONField(
                blank=True,
                db_default=models.Value([], models.JSONField()),
                default=list,
                help_text="The stages that it holds of models whose engines are on other neurons.",
            ),
        ),
        migrations.AlterField(
            model_name="cataloguemodel",
            name="spread",
            field=models.CharField(
                choices=[("device", "device"), ("host", "host"), ("fleet", "fleet")],
                db_default="host",
                default="host",
                help_text="host: a model that no device holds whole is divided by layers over devices of one host, cards and processors. fleet: one that no host holds either is divided over several hosts that lend stages (HELEXA_STAGE_LISTEN). device: it is refused instead.",
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="cataloguemodel",
            constraint=models.CheckConstraint(
                condition=models.Q(("spread__in", ("device", "host", "fleet"))),
                name="catalogue_spread_known",
            ),
        ),
    ]
