"""The fleet as Redis shows it: neurons' reports, their desired state, and a snapshot of both."""
