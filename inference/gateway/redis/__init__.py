"""Redis as the gateway uses it: inboxes of neurons on the way down, their events on the way up."""
