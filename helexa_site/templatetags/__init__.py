"""The filter ``moment``, which every template has."""
