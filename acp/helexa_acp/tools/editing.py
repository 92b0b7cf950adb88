"""What an edit makes of a text, and what a person's "always" means for it. Pure but for links."""

from __future__ import annotations

from pathlib import Path

from helexa_acp.errors import ToolError
from helexa_acp.paths import is_within, resolved


def edited(text: str, old: str, new: str) -> str:
    """``text`` with its one ``old`` replaced. Raises ToolError where there is none, or several."""
    if not old:
        raise ToolError("old_text is empty; write_file writes whole files")
    if old == new:
        raise ToolError("old_text and new_text are the same")
    num_found = text.count(old)
    if num_found == 0:
        raise ToolError("old_text is not in the file; read it again and quote it exactly")
    if num_found > 1:
        raise ToolError(
            f"old_text is in the file {num_found} times; quote more of what is around it"
        )
    return text.replace(old, new)


def remembered(path: Path, cwd: Path) -> tuple[str, str]:
    """Inside of the working directory all files are one; others are themselves."""
    if is_within(path, cwd):
        return "edit", "Always allow edits in the project, this session"
    return f"edit {resolved(path)}", "Always allow edits of this file, this session"
