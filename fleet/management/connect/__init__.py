"""Points clients at this server: ``manage.py connect``."""
