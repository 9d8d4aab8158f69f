# SPDX-License-Identifier: Apache-2.0
"""Hosts that are asked for while a command waits: real programs, in an internet that the test makes.

With `network.ask` a connection to what no rule covers waits for a person; the same command without it is refused.
"""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.internet import Internet, internet
from unspill import RunResult
from unspill.model.policy import Rules

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(300)]

CURL = "curl -sSf https://example.org/hello"


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, trusted_bwrap: bytes) -> Iterator[Internet]:
    with internet(tmp_path_factory.mktemp("internet"), trusted_bwrap) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_met(net: Internet) -> None:
    """Forget what earlier tests did, also how often somebody was asked."""
    net.met()
    net.asked()
    store = net.directory / "state" / "store.db"
    if store.exists():
        with closing(sqlite3.connect(store, isolation_level=None)) as opened:
            opened.execute("DELETE FROM requests")


def ask(
    net: Internet, command: str, answers: dict[str, Any], name: str, *hosts: str, **options: Any
) -> tuple[RunResult, list[dict[str, Any]]]:
    """Run a command whose questions about hosts are answered: by a scope, True or False, after some seconds."""
    job = net.job(command, *hosts, bounds={"ask": True}, **options)
    result, questions = net.ask("run_asking", *job, answers, name)
    assert isinstance(result, RunResult)
    return result, questions


def test_a_command_waits_for_the_answer_and_reaches_the_host(net: Internet) -> None:
    result, questions = ask(net, CURL, {"example.org": True}, "one")
    assert result.stdout.kept() == b"hello\n"
    assert result.denials == ()
    (question,) = questions
    assert question["text"].startswith("Allow connections to example.org for: ")
    assert question["scopes"] == ["once", "sandbox", "project", "always"]
    assert question["run"] == result.run
    assert net.asked() == ["example.org"]


def test_without_the_setting_nobody_is_asked(net: Internet) -> None:
    job = net.job(CURL)
    result, questions = net.ask("run_asking", *job, {"example.org": True}, "two")
    assert questions == []
    assert not result.ok
    assert net.met() == []


def test_a_denied_host_is_refused_with_the_reason_and_the_command_goes_on(net: Internet) -> None:
    result, questions = ask(net, f"{CURL} || echo refused; {CURL} || echo again", {"example.org": False}, "three")
    assert len(questions) == 1
    assert result.stdout.kept() == b"refused\nagain\n"
    assert [(denial.host, denial.rule) for denial in result.denials] == [("example.org", "host")]
    assert (net.met(), net.asked()) == ([], [])


def test_an_answer_for_once_holds_for_this_run_only(net: Internet) -> None:
    for _ in range(2):
        result, questions = ask(net, f"{CURL} && {CURL}", {"example.org": "once"}, "four")
        assert result.stdout.kept() == b"hello\nhello\n"
        assert len(questions) == 1


def test_an_answer_for_always_is_remembered_for_this_very_command(net: Internet) -> None:
    assert len(ask(net, CURL, {"example.org": "always"}, "five")[1]) == 1
    result, questions = ask(net, CURL, {}, "five")
    assert (result.stdout.kept(), questions) == (b"hello\n", [])
    result, questions = ask(net, f"{CURL} # another", {"example.org": False}, "five")
    assert len(questions) == 1
    assert not result.ok


def test_the_time_that_a_person_thinks_is_not_the_commands(net: Internet) -> None:
    result, _ = ask(net, CURL, {"example.org": (True, 4.5)}, "six", timeout=4.0)
    assert result.stdout.kept() == b"hello\n", result.text()
    result, _ = ask(net, "sleep 3", {}, "six", timeout=2.0)
    assert result.exit_code == 124


def test_a_command_that_goes_on_by_itself_after_the_answer_still_times_out(net: Internet) -> None:
    begun = time.monotonic()
    result, _ = ask(net, f"{CURL}; sleep 30", {"example.org": (True, 1.0)}, "seven", timeout=2.0)
    assert result.exit_code == 124
    assert time.monotonic() - begun < 25


SPIN = "for n in 1 2 3 4 5; do curl -s -m 0.3 https://h$n.example.org/; done; while :; do :; done"


@pytest.mark.parametrize("command", [SPIN, "curl -s https://h1.example.org/ & while :; do :; done"])
def test_a_command_can_not_run_for_ever_by_asking(net: Internet, command: str) -> None:
    slow = dict.fromkeys((f"h{n}.example.org" for n in range(6)), (False, 20.0))
    settings = {"permissions": Rules(wait_s=3.0)}
    begun = time.monotonic()
    result, _ = ask(net, command, slow, "spin", timeout=2.0, settings=settings)
    assert result.exit_code == 124
    assert time.monotonic() - begun < 18, "nobody has waited for the person"


def test_a_command_that_does_not_wait_for_its_own_question_ends_at_once(net: Internet) -> None:
    begun = time.monotonic()
    result, questions = ask(net, f"{CURL} & sleep 1; echo done", {"example.org": (True, 20.0)}, "eight")
    assert result.stdout.kept() == b"done\n"
    assert time.monotonic() - begun < 18
    assert len(questions) == 1
    assert net.met() == []


def test_a_question_in_the_queue_goes_with_its_run(net: Internet) -> None:
    job = net.job(f"{CURL} & sleep 1.5; echo done", bounds={"ask": True})
    result, during, after = net.ask("run_with_queue", *job)
    assert result.stdout.kept() == b"done\n"
    assert during == ["waiting"]
    assert after == ["expired"]


def test_a_hostile_command_can_put_ten_questions_and_no_more(net: Internet) -> None:
    many = "for n in $(seq 40); do curl -s -o /dev/null https://h$n.example.org/; done; echo done"
    result, questions = ask(net, many, dict.fromkeys((f"h{n}.example.org" for n in range(41)), False), "nine")
    assert result.stdout.kept() == b"done\n"
    assert len(questions) == 10
    assert net.asked() == []


def test_allowed_hosts_are_reached_without_a_question_beside_it(net: Internet) -> None:
    result, questions = ask(net, CURL, {}, "ten", "example.org")
    assert (result.stdout.kept(), questions) == (b"hello\n", [])


def test_the_configuration_can_ask_and_a_project_can_only_stop_it(net: Internet) -> None:
    net.configure("[network]\nask = true\n")
    shown = json.loads(net.cli("run", "--json", "--ask", "deny", "--", "sh", "-c", f"{CURL} -k").stdout)
    assert shown["denials"][0]["host"] == "example.org"
    project = Path(net.project, ".unspill.toml")
    project.write_text("[network]\nask = false\n")
    shown = json.loads(net.cli("run", "--json", "--ask", "deny", "--", "sh", "-c", f"{CURL} -k").stdout)
    assert shown["denials"] == []
    net.configure("")
    project.write_text("[network]\nask = true\n")
    assert "network.ask" in net.cli("run", "--", "true").stderr
    project.unlink()
