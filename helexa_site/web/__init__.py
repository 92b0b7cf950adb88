"""Django's own answers over HTTP: addresses, hosts, HTTPS, headers, and the pages of the site."""
