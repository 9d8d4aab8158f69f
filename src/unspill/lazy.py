# SPDX-License-Identifier: Apache-2.0
"""Modules of a feature that most runs don't use: imported when something of them is first used.

A file names each of them once, and type checkers see an ordinary import:

    TYPE_CHECKING = False
    if TYPE_CHECKING:
        from unspill.sandbox import history
    else:
        history = lazy_module("unspill.sandbox.history")  # lazy: history

`importlib.util.LazyLoader` does the same, but importing it costs more than what is saved.
"""

from __future__ import annotations


class LazyModule:
    """Stands for a module; whatever is asked of it, the module is imported and asked."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        # With something to take from it, the module itself is returned, not the package that it is in
        return getattr(__import__(self._name, fromlist=("*",)), name)


def lazy_module(name: str) -> LazyModule:
    """Return what stands for a module of this name, which is not imported yet."""
    return LazyModule(name)
