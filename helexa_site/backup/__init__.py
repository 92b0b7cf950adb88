"""``manage.py backup`` and ``restore``.

    database     SQLite: one file by SQLite's backup API. PostgreSQL: a COPY of each table,
                 all in one snapshot. Either while everything runs
    files        what clients uploaded, and results of batches
    secrets      the key that signs sessions and API keys, and what this host joined with
    settings     the variables that were set, as an environment file
      └─▶ one archive, mode 0600, with a manifest: version, migrations, rows, checksums

Models and Redis' contents are not in it: models are downloaded again, and Redis has only live
state.
"""
