"""Daphne's ``runserver``, found here so that Daphne need not be an installed app: as one it brings
all of Twisted into every command that listens nowhere."""

from daphne.management.commands.runserver import Command as Command
