"""The probes of each dialect: one small request each, of whose answer the least is asked."""
