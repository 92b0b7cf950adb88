"""The Celery worker of one GPU host. No tensors, no ORM."""
