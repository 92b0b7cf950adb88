"""Events and usage on their way up to the gateways."""
