# SPDX-License-Identifier: Apache-2.0
"""What is guessed from the words of a command that failed: which path was refused, or which profile refused it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from tests.support import Ground

pytestmark = pytest.mark.kernel


def test_the_shell_that_speaks_is_not_what_was_refused(ground: Ground) -> None:
    result = ground.run("echo x > /etc/x")
    assert [hint.text.partition(":")[0] for hint in result.hints] == ["/etc/x"]
    assert "/usr" not in result.text()


SERVER: Final = "import socket; socket.socket().bind(('127.0.0.1', 0))"


def test_the_strict_profile_is_named_where_it_refuses_a_server_on_loopback(ground: Ground) -> None:
    refused = ground.sandbox("strict", profile="strict").run(["python3", "-c", SERVER])
    assert [hint.code for hint in refused.hints] == ["strict-profile"]
    assert 'Note: `profile = "strict"` lets no program' in refused.text()
    assert ground.run(["python3", "-c", SERVER]).ok
