# SPDX-License-Identifier: Apache-2.0
"""`unspill learn` prints settings with which the same command works; without them it does not."""

import json
import tomllib
from collections.abc import Iterator

import pytest

from tests.kernel.internet import Internet, internet

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(300)]

COMMAND = (
    "cat ~/data/numbers; curl -sS http://example.org/hello; curl -sS http://example.org:8443/ -o /dev/null;"
    " curl -sS http://private.example.org/hello; curl -sS http://mirror.lan/hello; touch new; false"
)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, trusted_bwrap: bytes) -> Iterator[Internet]:
    with internet(tmp_path_factory.mktemp("internet"), trusted_bwrap) as made:
        (made.directory / "home" / "data").mkdir()
        (made.directory / "home" / "data" / "numbers").write_text("1 2 3\n")
        yield made


def settings_of(stdout: str) -> str:
    return stdout[stdout.index("# For your own configuration") :]


def test_what_is_learned_is_enough_for_the_same_command(net: Internet) -> None:
    net.configure("")
    before = net.cli("run", "--discard", "-c", COMMAND)
    assert "hello" not in before.stdout
    done = net.cli("learn", "--yes", "-c", COMMAND)
    assert done.returncode == 1
    found = tomllib.loads(settings_of(done.stdout))
    assert found == {
        "readable": [str(net.directory / "home" / "data" / "numbers")],
        "network": {
            "hosts": ["example.org", "example.org:8443"],
            "private_hosts": ["private.example.org", "mirror.lan"],
        },
    }, done.stderr
    # Held, not applied
    assert not (net.project / "new").exists()
    assert "new" in net.cli("changes").stdout
    net.configure(settings_of(done.stdout))
    after = net.cli("run", "--discard", "-c", COMMAND)
    assert after.stdout == "1 2 3\n" + "hello\n" * 3, after.stderr
    again = net.cli("learn", "--json", "-c", "curl -sS http://example.org/hello")
    assert json.loads(again.stdout)["settings"] == ""
    net.cli("discard")
    net.configure("")


def test_a_host_that_nobody_allowed_is_not_learned(net: Internet) -> None:
    net.met()
    done = net.cli("learn", "--ask", "deny", "-c", "curl -sS http://example.org/hello")
    assert "hosts" not in done.stdout
    assert "example.org:80 was refused, so it is not listed" in done.stderr
    assert net.met() == []


def test_words_of_the_command_do_not_become_settings(net: Internet) -> None:
    """The output names paths in every odd form; only what a hint would show by an option is there, as plain text."""
    odd = ["/root/'x", "~/.ssh/id_rsa", 'a"]\\nroots = ["/', "/home/`x`", "/etc/$(id)"]
    text = "\n".join(f"cat: {path}: No such file or directory" for path in odd)
    (net.project / "words").write_text(text)
    done = net.cli("learn", "--json", "-c", "cat words >&2; exit 1")
    said = json.loads(done.stdout)
    assert said["roots"] == []
    assert not any("ssh" in path for path in said["readable"])
    assert set(tomllib.loads(said["settings"])) <= {"readable"}
