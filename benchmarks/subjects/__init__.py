"""Who is measured: one file per subject, each run in a process of its own."""
