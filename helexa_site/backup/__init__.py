"""``manage.py backup`` and ``restore``: what a helexa cannot be put together again without.

    database     SQLite: one file by SQLite's backup API. PostgreSQL: a COPY of each table,
                 all in one snapshot. Either while everything runs
    files        what clients uploaded, and results of batches
    secrets      the key that signs sessions and API keys, and what this host joined with
    settings     the variables that were set, as an environment file
      └─▶ one archive, mode 0600, with a manifest: version, migrations, rows, checksums

Models are not in it: they are downloaded again. What Redis holds is not, either: it is of the
moment.
"""
