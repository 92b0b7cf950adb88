"""The embedded start: environment, private Redis, supervised processes, the ``ready`` line. Modules
that run before the requirements are installed (``commands``, ``arguments``, ``console``,
``environment``) import the standard library only."""
