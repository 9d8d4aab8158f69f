# SPDX-License-Identifier: Apache-2.0
"""What a run reached and was refused, as lines for a person and as values for a program."""

from typing import TYPE_CHECKING

from unspill.cli.telling import LIMIT
from unspill.cli.traffic import connection_lines, refused_lines, traffic_form
from unspill.model.traffic import Connection, Denial

if TYPE_CHECKING:
    from unspill.model.traffic import Verdict


def made(host: str = "example.org", port: int = 443, verdict: "Verdict" = "allowed") -> Connection:
    return Connection(
        host=host, port=port, address="93.184.215.14", up=10, down=200, started_ns=1, ended_ns=2, verdict=verdict
    )


def denied(host: str, port: int = 443, times: int = 1) -> Denial:
    return Denial(host=host, port=port, rule="host", remedy="Ask.", times=times)


def test_connections_are_summed_by_host_and_port() -> None:
    lines = connection_lines([made(), made(port=80), made(), made("2a00::1"), made("2a00::1", verdict="cut")])
    assert lines == [
        "  example.org:443: 2 connections, 20 bytes up, 400 bytes down",
        "  example.org:80: 1 connection, 10 bytes up, 200 bytes down",
        "  [2a00::1]:443: 2 connections, 20 bytes up, 400 bytes down (cut)",
    ]


def test_refusals_have_the_rule_and_the_remedy() -> None:
    assert refused_lines([denied("evil.org"), denied("fe80::1", times=3), denied("http://x_y/", 0)]) == [
        "the network refused 3 destinations to the command:",
        "  ! evil.org:443: host",
        "      Ask.",
        "  ! [fe80::1]:443: host, 3 times",
        "      Ask.",
        "  ! http://x_y/: host",
        "      Ask.",
    ]


def test_many_are_cut() -> None:
    many = range(LIMIT + 5)
    assert refused_lines([denied(f"{number}.org") for number in many])[-1] == "  ! and 5 more: see --json"
    assert connection_lines([made(f"{number}.org") for number in many])[-1] == "  and 5 more: see --json"


def test_what_a_command_chose_is_shown_safely() -> None:
    (_, line, _) = refused_lines([denied("evil\x1b[2J\u202e.org")])
    assert line.isprintable()


def test_values_are_those_of_the_records() -> None:
    form = traffic_form([made()], [denied("evil.org")])
    assert form == {"connections": [made().as_dict()], "denials": [denied("evil.org").as_dict()]}
