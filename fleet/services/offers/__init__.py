"""What requests name: the catalogue's models and aliases, and upstreams."""
