"""Images of requests: fetched from allowed hosts, read within bounds, sent beside the inbox."""
