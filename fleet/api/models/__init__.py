"""Models over HTTP: the catalogue, what hubs offer, downloads, plans."""
