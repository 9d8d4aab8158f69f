# SPDX-License-Identifier: Apache-2.0
"""What an attacker would like to reach on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Ground


def host_directory(ground: Ground) -> Path:
    """Make a directory of the host that no sandbox is given, with a secret in it."""
    host = ground.top / "host-directory"
    host.mkdir()
    (host / "key").write_text("CANARY")
    return host
