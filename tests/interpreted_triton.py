"""Triton's interpreter, without the half of its time that it spends on the same thing again.

It gives ``triton.language`` other functions at a kernel's launch, and again at every call of one of
the kernel's functions, which finds them given already.
"""

from __future__ import annotations

from typing import Any

LANGUAGE = ("triton.language", "triton.language.core")


def patch_once_a_launch() -> None:
    """Changes nothing where there is no interpreter of that kind."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    patch = getattr(interpreter, "_patch_lang", None)
    if patch is not None and not isinstance(patch, PatchedOnce):
        interpreter._patch_lang = PatchedOnce(patch)


class PatchedOnce:
    """Stands in the place of the interpreter's ``_patch_lang``."""

    def __init__(self, patch: Any) -> None:
        self._patch = patch
        self._patched: set[str] = set()
        """The modules that the launch under way has patched."""

    def __call__(self, function: Any) -> Any:
        named = {getattr(value, "__name__", None) for value in function.__globals__.values()}
        wanted = named.intersection(LANGUAGE)
        if wanted <= self._patched:
            return None  # only a launch restores what it was given, and a launch is the first
        scope = self._patch(function)
        if not self._patched:
            scope.restore = self._forget_after(scope.restore)
        self._patched |= wanted
        return scope

    def _forget_after(self, restore: Any) -> Any:
        def restore_and_forget() -> None:
            restore()
            self._patched.clear()

        return restore_and_forget
