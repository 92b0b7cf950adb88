"""The arguments that name a model's files, with the help texts of the catalogue's settings."""

from __future__ import annotations

from argparse import ArgumentParser

from fleet.catalogue import SETTINGS


def add_file_arguments(parser: ArgumentParser) -> None:
    """``--file`` and ``--revision``: which files of a source."""
    for name in ("file", "revision"):
        text = SETTINGS[name].help_text.removesuffix(".")
        parser.add_argument(f"--{name}", help=text[0].lower() + text[1:])
