"""The processes beside an engine that compute parts of its model, ranks or stages, from its end."""
