"""The subcommands of ``manage.py models``."""

from fleet.management.model_commands.add import Add
from fleet.management.model_commands.change import Change
from fleet.management.model_commands.hub import Search
from fleet.management.model_commands.jobs import Load, Reload, Sleep, Unload, Wake
from fleet.management.model_commands.list import List
from fleet.management.model_commands.plan import Plan
from fleet.management.model_commands.pull import Cached, Pull
from fleet.management.model_commands.remove import Remove
from fleet.management.model_commands.show import Show
from fleet.management.model_commands.toml import Export, Import

SUBCOMMANDS = (
    List(),
    Show(),
    Search(),
    Plan(),
    Add(),
    Change(),
    Remove(),
    Load(),
    Unload(),
    Reload(),
    Sleep(),
    Wake(),
    Pull(),
    Cached(),
    Import(),
    Export(),
)
