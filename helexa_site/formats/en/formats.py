"""The admin's times, in UTC, as ``helexa_site.templatetags.filters`` prints them."""

DATE_FORMAT = SHORT_DATE_FORMAT = "Y-m-d"
TIME_FORMAT = r"H:i:s \U\T\C"
DATETIME_FORMAT = SHORT_DATETIME_FORMAT = rf"{DATE_FORMAT} {TIME_FORMAT}"
