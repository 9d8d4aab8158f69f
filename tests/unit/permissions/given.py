# SPDX-License-Identifier: Apache-2.0
"""Requests for tests: one of each kind, and any that there could be."""

from typing import Any

from hypothesis import strategies as st

from unspill.model.permission import (
    AsRoot,
    Egress,
    HeldPath,
    MaskedSecret,
    NetworkForCommand,
    ReadablePath,
    Request,
    Unsandboxed,
    WritableRoot,
)

HOME = b"/home/ann"
PROJECT = b"/home/ann/project"
OWN = (b"/home/ann/.local/state/unspill",)
DIGEST = "ab" * 32

FOR_A_COMMAND: dict[str, Any] = {
    "project": PROJECT,
    "sandbox": "1" * 16,
    "run": "2" * 16,
    "argv": (b"git", b"fetch"),
    "cwd": PROJECT,
    "names": ("HOME", "PATH"),
}

ONE_OF_EACH: tuple[Request, ...] = (
    NetworkForCommand(**FOR_A_COMMAND),
    Egress(**FOR_A_COMMAND, hosts=("example.org",)),
    WritableRoot(**FOR_A_COMMAND, path=b"/home/ann/other"),
    ReadablePath(**FOR_A_COMMAND, path=b"/home/ann/notes"),
    MaskedSecret(**FOR_A_COMMAND, path=PROJECT + b"/.env"),
    HeldPath(**FOR_A_COMMAND, root=PROJECT, path=b".envrc", digest=DIGEST),
    Unsandboxed(**FOR_A_COMMAND),
    AsRoot(**FOR_A_COMMAND),
)
REMEMBERED = tuple(request for request in ONE_OF_EACH if not request.one_time_only)
ONCE_ONLY = tuple(request for request in ONE_OF_EACH if request.one_time_only)

IDS = st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}")
PARTS = st.sampled_from([b"a", b"b", b"a b", b"\xff", b"-", b"a\n", b";", b"", b"\xe2\x80\xae", b"\xc3\xa4"])
PATHS = st.lists(st.sampled_from([b"a", b"b", b"\xff", b"a b"]), min_size=1, max_size=2).map(b"/".join)
ABSOLUTE = PATHS.map(lambda path: b"/" + path)
_COMMON: dict[str, Any] = {
    "project": ABSOLUTE,
    "sandbox": st.sampled_from(["", "1" * 16, "2" * 16]),
    "run": st.sampled_from(["", "3" * 16, "4" * 16]),
    "argv": st.lists(PARTS, max_size=3).map(tuple),
    "cwd": ABSOLUTE | st.just(b""),
    "names": st.lists(st.sampled_from(["A", "B", "PATH"]), max_size=2).map(tuple),
    "script": st.sampled_from(["", DIGEST]),
    "variables": st.sampled_from(["", DIGEST]),
}
_VARIABLES = st.lists(st.sampled_from([b"A=1", b"A=2", b"B=\xff", b"B="]), max_size=2).map(tuple)
_HOSTS = st.lists(st.sampled_from(["a.example.org", "b.example.org"]), min_size=1, max_size=2).map(tuple)

REQUESTS: st.SearchStrategy[Request] = st.one_of(
    st.builds(NetworkForCommand, **_COMMON),
    st.builds(Egress, **_COMMON, hosts=_HOSTS),
    st.builds(WritableRoot, **_COMMON, path=ABSOLUTE),
    st.builds(ReadablePath, **_COMMON, path=ABSOLUTE),
    st.builds(MaskedSecret, **_COMMON, path=ABSOLUTE),
    st.builds(
        HeldPath,
        **_COMMON,
        root=ABSOLUTE,
        path=PATHS,
        digest=st.sampled_from([DIGEST, "0" * 64]),
        why=st.sampled_from(["", "an editor runs it"]),
        becomes=st.sampled_from(["", "a file of 3 bytes"]),
        head=st.binary(max_size=9),
        rest=st.sampled_from(["", "7"]),
    ),
    st.builds(Unsandboxed, **_COMMON, environ=_VARIABLES),
    st.builds(AsRoot, **_COMMON),
)


def name_of(request: Request) -> str:
    """Return the name of a case."""
    return request.kind
