"""How long the dashboard of a large fleet takes to answer."""
