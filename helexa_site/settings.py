"""Django settings. The operator's are in ``helexa_site.config``."""

from __future__ import annotations

from typing import cast

from django.templatetags.static import static
from django.utils.functional import SimpleLazyObject

from helexa_site.config import database_settings, read_config
from helexa_site.data_directory import secret_key
from helexa_site.middleware import allowed_hosts
from helexa_site.navigation import navigation_of, searched_models, searched_pages
from helexa_site.program import REPOSITORY_DIR
from inference.version import VERSION

CONFIG = read_config()

BASE_DIR = REPOSITORY_DIR
# Made, or refused, when something is to be signed: most commands sign nothing.
SECRET_KEY = cast(str, SimpleLazyObject(lambda: secret_key(CONFIG)))
DEBUG = CONFIG.debug
ALLOWED_HOSTS = sorted(allowed_hosts(CONFIG))
CSRF_TRUSTED_ORIGINS = list(CONFIG.csrf_trusted_origins)

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = CONFIG.has_secure_cookies
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
"""``helexa_site.middleware`` removes it from requests that are not a trusted proxy's."""
SECURE_HSTS_SECONDS = CONFIG.hsts_s
SILENCED_SYSTEM_CHECKS = [
    # Other names under this one, and browsers' lists, are not ours to decide on.
    "security.W005",
    "security.W021",
    # HttpsMiddleware redirects requests through a proxy; Django's own redirect would affect the
    # commands of this machine too.
    *(["security.W008"] if CONFIG.redirects_to_https else []),
]

INSTALLED_APPS = [
    "helexa_site",
    "unfold",
    "django.contrib.admin.apps.SimpleAdminConfig",  # its pages are imported with the URLs
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "fleet",
    "metering",
    "metering.bench",
    "metering.playground",
    "inference.conversations",
    "inference.batches",
]

MIDDLEWARE = [
    "helexa_site.middleware.ContentSecurityMiddleware",
    "helexa_site.middleware.CompressionMiddleware",
    "helexa_site.middleware.HostMiddleware",
    "helexa_site.middleware.HttpsMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "helexa_site.logins.LockoutMiddleware",
]

ROOT_URLCONF = "helexa_site.urls"
ASGI_APPLICATION = "helexa_site.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["helexa_site.templatetags.filters"],
            "libraries": {"dashboard": "fleet.dashboard.rows"},
        },
    },
]

DATABASES = {"default": database_settings(CONFIG.database_url)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "front"

AUTHENTICATION_BACKENDS = [
    "helexa_site.logins.ThrottleBackend",
    "django.contrib.auth.backends.ModelBackend",
]

LOGGING_CONFIG = None
"""Each process configures its logs itself: ``inference.logs``."""

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
FORMAT_MODULE_PATH = ["helexa_site.formats"]

STATIC_URL = "static/"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True
"""Served from their packages: nothing is collected into a directory."""

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "metering.api.authentication.KeyAuthentication",
        "metering.api.authentication.PersonAuthentication",
        "metering.api.authentication.AnonymousAuthentication",
    ],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["metering.api.problems.PlainJsonParser"],
    "EXCEPTION_HANDLER": "metering.api.problems.problem_response",
    # OPTIONS is 405 as under /v1: CORS preflights are answered before.
    "DEFAULT_METADATA_CLASS": None,
    "DEFAULT_SCHEMA_CLASS": "metering.api.schema.ApiSchema",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "helexa",
    "DESCRIPTION": "The fleet and its metering. Inference is under /v1, as OpenAI and Anthropic "
    "have it.",
    "VERSION": VERSION,
    "SCHEMA_PATH_PREFIX": "/api",
    "SERVE_INCLUDE_SCHEMA": False,
    "ENUM_NAME_OVERRIDES": {
        "DownloadKind": "fleet.lifecycles.DownloadKind",
        "LoadJobKind": "fleet.lifecycles.LoadJobKind",
        "LoadJobStatus": "fleet.lifecycles.LoadJobStatus",
        "NeuronStatus": "fleet.lifecycles.NeuronStatus",
        "ReplicaStatus": "fleet.lifecycles.RecordedReplicaStatus",
    },
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "filter": True},
}
"""The page's script and style come from a package: browsers load nothing from another host."""

UNFOLD = {
    "SITE_TITLE": "helexa",
    "SITE_HEADER": "helexa",
    "SITE_SYMBOL": "hub",
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "type": "image/svg+xml",
            "href": lambda _request: static("helexa/favicon.svg"),
        }
    ],
    "STYLES": [lambda _request: static("helexa/pages.css")],
    "SCRIPTS": [
        lambda _request: static("helexa/pages.js"),
        lambda _request: static("helexa/charts.js"),
    ],
    "ENVIRONMENT": "helexa_site.pages.open_access_label",
    "LOGIN": {"form": "helexa_site.logins.OperatorLoginForm"},
    "DASHBOARD_CALLBACK": "fleet.dashboard.views.dashboard_context",
    "SIDEBAR": {"navigation": navigation_of},
    "COMMAND": {"search_models": searched_models, "search_callback": searched_pages},
}
