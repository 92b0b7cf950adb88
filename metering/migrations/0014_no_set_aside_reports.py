"""Neurons report nothing for money any more. The table stays for controls of the release before,
which write to it while an upgrade goes round."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("metering", "0013_request_index_with_names")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.DeleteModel(name="SetAsideReport")]
        )
    ]
