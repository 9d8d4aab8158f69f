# SPDX-License-Identifier: Apache-2.0
"""Python's search for garbage cycles, paused where records are made by the thousand: none of them is in one."""

from __future__ import annotations

import gc


class CollectorPaused:
    """No search while this is entered: the searches would take as long as the work itself.

    It ends enabled if it was, whatever other threads do meanwhile.
    """

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_details: object) -> None:
        if self._was_enabled:
            gc.enable()
