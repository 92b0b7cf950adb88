"""Daphne's ``runserver``, without Daphne as an installed app, which would import all of Twisted
into every command."""

from daphne.management.commands.runserver import Command as Command
