# SPDX-License-Identifier: Apache-2.0
"""The async twins of an adapter's methods: the same in a thread, and cancelling them kills what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from unspill.sandbox.asynchronous import call_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Found = TypeVar("Found")


def cancellable(method: Callable[..., Found]) -> Callable[..., Coroutine[Any, Any, Found]]:
    """Return the async twin of a method that takes a `cancel_fd`."""

    async def twin(self: object, *words: Any, **options: Any) -> Found:
        return await call_in_thread(lambda cancel_fd: method(self, *words, cancel_fd=cancel_fd, **options))

    return twin
