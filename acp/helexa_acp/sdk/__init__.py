"""The ACP SDK and the packages of other SDKs, imported in a fraction of their time."""
