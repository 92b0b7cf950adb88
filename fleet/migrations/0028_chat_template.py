"""What renders a model's chats: its own template, a file on the neuron, or none."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0027_last_known_limits"),
    ]

    operations = [
        migrations.AddField(
            model_name="cataloguemodel",
            name="chat_template",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="What renders a chat as a prompt. Empty: the model's own template. file:/absolute/path.jinja: a Jinja file on the neuron, used instead. none: no template; turns are written in ChatML, without tools or images.",
                max_length=500,
            ),
        ),
    ]
