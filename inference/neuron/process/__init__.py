"""The neuron's process: Celery app, lease, heartbeat, shutdown, and what a restart reads back."""
