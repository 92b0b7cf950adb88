"""The filter ``moment``, for every template."""
