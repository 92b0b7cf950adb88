"""The catalogue's models and aliases, and upstreams."""
