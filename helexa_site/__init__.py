"""Project configuration: settings, ASGI, Celery and the embedded start."""
