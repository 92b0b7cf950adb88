"""Django's own formats of times, for the admin: those of ``helexa_site.templatetags.filters``.

Pages of the admin print every time in ``TIME_ZONE``, which is UTC.
"""

DATE_FORMAT = SHORT_DATE_FORMAT = "Y-m-d"
TIME_FORMAT = r"H:i:s \U\T\C"
DATETIME_FORMAT = SHORT_DATETIME_FORMAT = rf"{DATE_FORMAT} {TIME_FORMAT}"
