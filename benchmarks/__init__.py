"""Speed measurements: the figures, the subjects and the report. Run by scripts/bench."""
