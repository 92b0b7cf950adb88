"""The fleet as Redis shows it: neurons' reports, the operator's wishes, a snapshot of both."""
