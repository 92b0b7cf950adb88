"""The fleet in Redis: neurons' reports, their desired state, and a snapshot of both."""
