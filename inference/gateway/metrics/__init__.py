"""What Prometheus scrapes of one gateway."""
