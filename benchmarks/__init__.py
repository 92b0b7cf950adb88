"""Speed measurements: what is measured, on whom, and how it is told. Run by scripts/bench."""
