# SPDX-License-Identifier: Apache-2.0
"""What nobody is asked about: malformed, hopeless or endless requests."""

from typing import Any

import pytest

from tests.unit.permissions.given import DIGEST, FOR_A_COMMAND, HOME, ONE_OF_EACH, OWN, PROJECT, name_of
from unspill.errors import DeniedError, RootRefused, UsageError
from unspill.model.permission import (
    Egress,
    HeldPath,
    MaskedSecret,
    NetworkForCommand,
    ReadablePath,
    Request,
    Unsandboxed,
    WritableRoot,
)
from unspill.permissions.question import COMMAND_BYTES, check_request


def check(request: Request) -> None:
    check_request(request, home=HOME, own=OWN)


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_a_good_request_of_every_kind_passes(request_: Request) -> None:
    check(request_)


@pytest.mark.parametrize(
    "change",
    [
        {"project": b"project"},
        {"project": b"/home/ann/../ann/project"},
        {"project": b"/home/ann/project/"},
        {"project": b"/home\0"},
        {"cwd": b"sub"},
        {"cwd": b"/a//b"},
        {"argv": (b"ls\0x",)},
        {"argv": (b"", b"x")},
        {"names": ("PATH", "HOME")},
        {"names": ("PATH", "PATH")},
        {"names": ("A=B",)},
        {"names": ("",)},
        {"script": "x"},
        {"variables": "x"},
    ],
    ids=repr,
)
@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_a_malformed_request_is_the_callers_mistake(request_: Request, change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check(request_.replace(**change))


@pytest.mark.parametrize(
    "request_",
    [
        NetworkForCommand(project=PROJECT),
        Unsandboxed(project=PROJECT),
        *(
            Unsandboxed(project=PROJECT, argv=(b"ls",), environ=environ)
            for environ in (
                (b"A",),
                (b"=x",),
                (b"A B=x",),
                (b"A=x\0",),
                (b"B=1", b"A=1"),
                (b"A=1", b"A=2"),
                (b"LD_PRELOAD=/x",),
                (b"BASH_ENV=/x",),
            )
        ),
        Egress(project=PROJECT, hosts=()),
        Egress(project=PROJECT, hosts=("a.example.org",) * 51),
        Egress(project=PROJECT, hosts=("example.org", "localhost")),
        ReadablePath(project=PROJECT, path=b"notes"),
        HeldPath(project=PROJECT, root=PROJECT, path=b"/etc/passwd", digest=DIGEST),
        HeldPath(project=PROJECT, root=PROJECT, path=b"../x", digest=DIGEST),
        HeldPath(project=PROJECT, root=PROJECT, path=b"", digest=DIGEST),
        HeldPath(project=PROJECT, root=b"project", path=b"x", digest=DIGEST),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=""),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=DIGEST, why="fine\nproject: other"),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=DIGEST, becomes="a\x1b[8m file"),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=DIGEST, why="y" * 501),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=DIGEST, head=b"y" * 4097),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=DIGEST, head=b"y", rest="no"),
    ],
    ids=repr,
)
def test_a_request_that_asks_for_nothing_clear_is_refused(request_: Request) -> None:
    with pytest.raises(UsageError):
        check(request_)


@pytest.mark.parametrize("path", [b"/", b"/etc", b"/home", HOME, HOME + b"/.ssh", OWN[0], OWN[0] + b"/layers", b"/usr"])
def test_a_person_is_not_asked_to_make_such_a_directory_writable(path: bytes) -> None:
    with pytest.raises(RootRefused):
        check(WritableRoot(project=PROJECT, path=path))


@pytest.mark.parametrize("path", [b"/", b"/home", HOME, HOME + b"/.ssh/id_rsa", OWN[0], OWN[0] + b"/store.db"])
@pytest.mark.parametrize("kind", [ReadablePath, MaskedSecret])
def test_a_person_is_not_asked_to_show_what_is_never_shown(kind: type[ReadablePath], path: bytes) -> None:
    with pytest.raises(RootRefused):
        check(kind(project=PROJECT, path=path))


def test_nobody_is_asked_about_a_command_that_nobody_can_read() -> None:
    check(NetworkForCommand(**FOR_A_COMMAND | {"argv": (b"x" * COMMAND_BYTES,)}))
    with pytest.raises(DeniedError) as caught:
        check(NetworkForCommand(**FOR_A_COMMAND | {"argv": (b"x" * COMMAND_BYTES, b"y")}))
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("example.org", True),
        ("a-b.example.org", True),
        ("xn--bcher-kva.example.org", True),
        ("*.example.org", True),
        ("*.org", False),
        ("*", False),
        ("a.*.org", False),
        ("example", False),
        ("localhost", False),
        ("example.org.", False),
        (".example.org", False),
        ("a..org", False),
        ("Example.org", False),
        ("127.0.0.1", False),
        ("192.168.0.1", False),
        ("[::1]", False),
        ("1.2.3.4", True),
        ("[2a00::1]:8443", True),
        ("[2A00::1]", False),
        ("a.org:443", True),
        ("a.org:0443", False),
        ("0x7f.1", False),
        ("a_b.org", False),
        ("-a.org", False),
        ("a-.org", False),
        ("u@a.org", False),
        ("a.org\0.b.org", False),
        ("a.org\n", False),
        ("ä.org", False),
        ("\u2460.org", False),
        ("a" * 64 + ".org", False),
        (".".join(["a" * 60] * 5), False),
        ("", False),
    ],
)
def test_a_host_is_asked_about_only_in_the_one_form_that_the_proxy_compares(host: str, expected: bool) -> None:
    request = Egress(project=PROJECT, hosts=(host,))
    if expected:
        check(request)
    else:
        with pytest.raises(UsageError, match=r"no host|it is not public \((private|loopback)\)"):
            check(request)
