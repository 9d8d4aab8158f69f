# SPDX-License-Identifier: Apache-2.0
"""A configuration file is understood whole or not at all, and so is a spec for a rootfs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import PolicyError
from unspill.model.policy import GIB, MIB
from unspill.model.rootfs import RootfsSpec
from unspill.policy.config import (
    DROPPED,
    PROJECT_KEYS,
    Settings,
    find_wrong_field,
    is_rootfs_label,
    is_rootfs_name,
    is_web_address,
    parse_policy,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HOME = b"/home/ann"
SHOP = b"/home/ann/shop"


def own(text: str) -> Settings:
    return parse_policy(text, where="config.toml", trusted=True, home=HOME)


def of_project(text: str) -> Settings:
    return parse_policy(text, where=".unspill.toml", trusted=False, home=HOME, base=SHOP)


def test_an_empty_file_says_nothing() -> None:
    assert own("") == Settings(where="config.toml")


EVERY_SETTING = """
view = "host"
roots = ["~/other", "/srv//x/../y"]
readable = ["~"]
hidden = ["/etc/secret", "/etc/secret"]
toolchains = false
caches = true
environment = ["MY_VAR", "NPM_*", "MY_VAR"]
profile = "strict"
after = "discard"
after_timeout = "apply"
after_cancel = "discard"
engine = "native"
bwrap = "/usr/local/bin/bwrap"
allow_root = true
shown_lines = 80
shown_bytes = "64 KiB"
keep_days = 30
keep_bytes = "1 GiB"
rootfs = "~/roots//mine"
rootfs_writable = true
rootfs_dir = "/srv/roots/"
tmp = "persistent"
container = true
[mounts]
"/skills" = "~/skills"
"/opt//data/" = "/srv/data"
[provision]
source = "alpine"
version = "3.23.3"
arch = "aarch64"
tier = 2
packages = ["py3-numpy", "gcc", "gcc"]
mirror = "https://mirror.example.org/alpine"
sha256 = "0123456789012345678901234567890123456789012345678901234567890123"
[limits]
wall_s = 1.5
processes = 10
memory_bytes = "2 GiB"
layer_bytes = "unlimited"
file_bytes = 100
[network]
hosts = ["Example.org", "example.org.", "*.example.com:8443", "[2A00::1]"]
mode = "host"
up_bytes = "1 MiB"
down_bytes = "unlimited"
[permissions]
network = "deny"
egress = "ask"
unsandboxed = "ask"
longest = "run"
grant_days = 3650
approver = "queue"
wait_s = 60
max_denials = 20
max_same_denials = 5
denial_window_s = 60
"""


def test_every_setting_is_read() -> None:
    assert own(EVERY_SETTING) == Settings(
        where="config.toml",
        view="host",
        roots=(b"/home/ann/other", b"/srv/y"),
        readable=(b"/home/ann",),
        hidden=(b"/etc/secret",),
        toolchains=False,
        caches=True,
        environment=("MY_VAR", "NPM_*"),
        profile="strict",
        after="discard",
        after_timeout="apply",
        after_cancel="discard",
        engine="native",
        bwrap=b"/usr/local/bin/bwrap",
        allow_root=True,
        shown_lines=80,
        shown_bytes=64 * 1024,
        keep_days=30,
        keep_bytes=GIB,
        rootfs="/home/ann/roots/mine",
        rootfs_writable=True,
        rootfs_dir=b"/srv/roots",
        tmp="persistent",
        container=True,
        mounts=((b"/skills", b"/home/ann/skills"), (b"/opt/data", b"/srv/data")),
        provision=RootfsSpec(
            source="alpine",
            version="3.23.3",
            arch="aarch64",
            tier=2,
            packages=("py3-numpy", "gcc"),
            mirror="https://mirror.example.org/alpine",
            sha256="0123456789" * 6 + "0123",
        ),
        limits=(
            ("wall_s", 1.5),
            ("processes", 10),
            ("memory_bytes", 2 * GIB),
            ("layer_bytes", None),
            ("file_bytes", 100),
        ),
        network=(
            ("hosts", ("example.org", "*.example.com:8443", "[2a00::1]")),
            ("mode", "host"),
            ("up_bytes", MIB),
            ("down_bytes", None),
        ),
        permissions=(
            ("network", "deny"),
            ("egress", "ask"),
            ("unsandboxed", "ask"),
            ("longest", "run"),
            ("grant_days", 3650),
            ("approver", "queue"),
            ("wait_s", 60.0),
            *(("max_denials", 20), ("max_same_denials", 5), ("denial_window_s", 60.0)),
        ),
    )


WRONG = [
    ("veiw = 'host'", "veiw"),
    ("view = 'open'", "view"),
    ("view = 1", "view"),
    ("view = []", "view"),
    ("profile = 'none'", "profile"),
    ("profile = false", "profile"),
    ("roots = '/srv/x'", "roots"),
    ("roots = ['relative']", "roots"),
    ("roots = ['']", "roots"),
    ("roots = [1]", "roots"),
    ("roots = ['~bob/x']", "roots"),
    ("hidden = ['~/.config/*']", "hidden"),
    ("hidden = ['/a/?']", "hidden"),
    ('hidden = ["/a\\u0000b"]', "hidden"),
    ("toolchains = 'no'", "toolchains"),
    ("caches = 0", "caches"),
    ("environment = 'A'", "environment"),
    ("environment = ['A=B']", "environment"),
    ("environment = ['']", "environment"),
    ("environment = ['A*B']", "environment"),
    ("environment = ['LD_PRELOAD']", "environment"),
    ("environment = ['BASH_ENV']", "environment"),
    ("after = 'never'", "after"),
    ("after_timeout = true", "after_timeout"),
    ('after_cancel = "keep"', "after_cancel"),
    ("engine = 'fuse'", "engine"),
    ("bwrap = 'bwrap'", "bwrap"),
    ("allow_root = 1", "allow_root"),
    ("shown_lines = 0", "shown_lines"),
    ("shown_lines = 1.5", "shown_lines"),
    ("shown_bytes = '64'", "shown_bytes"),
    ("shown_bytes = '64 KB'", "shown_bytes"),
    ("limits = 1", "limits"),
    ("limits = []", "limits"),
    ("[limits]\ntime = 1", "limits.time"),
    ("[limits]\nwall_s = 0", "limits.wall_s"),
    ("[limits]\nwall_s = -1", "limits.wall_s"),
    ("[limits]\nwall_s = inf", "limits.wall_s"),
    ("[limits]\nwall_s = nan", "limits.wall_s"),
    ("[limits]\nwall_s = true", "limits.wall_s"),
    ("[limits]\nprocesses = true", "limits.processes"),
    ("[limits]\nprocesses = 'many'", "limits.processes"),
    ("[limits]\nmemory_bytes = 99999999999999999999", "limits.memory_bytes"),
    ("[limits]\nmemory_bytes = '99999999999999999999999 GiB'", "limits.memory_bytes"),
    ("[limits]\nkept_bytes = 'unlimited'", "limits.kept_bytes"),
    ("[limits]\ntmp_bytes = 'unlimited'", "limits.tmp_bytes"),
    ("network = true", "network"),
    ("[network]\nhost = []", "network.host"),
    ("[network]\nhosts = 'example.org'", "network.hosts"),
    ("[network]\nhosts = [1]", "network.hosts"),
    ("[network]\nhosts = ['*']", "network.hosts"),
    ("[network]\nhosts = ['*.com']", "network.hosts"),
    ("[network]\nhosts = ['localhost']", "network.hosts"),
    ("[network]\nhosts = ['https://example.org']", "network.hosts"),
    (
        "[network]\nhosts = ['10.0.0.1']",
        "network.hosts: the address 10.0.0.1 can't be allowed",
    ),
    ("[network]\nhosts = ['[::1]:80']", "network.hosts: the address [::1]:80 can never be allowed"),
    ("[network]\nhosts = ['bücher.example']", "network.hosts"),
    ("[network]\nprivate_hosts = ['localhost']", "network.private_hosts"),
    ("[network]\nprivate_hosts = ['127.0.0.1']", "network.private_hosts: the address 127.0.0.1 can never be allowed"),
    ("[network]\nprivate_hosts = ['169.254.169.254']", "network.private_hosts: the address 169.254.169.254 can never"),
    ("[network]\nprivate_hosts = ['2130706433']", "network.private_hosts"),
    ("[network]\nprivate_hosts = ['*.lan']", "network.private_hosts"),
    ("[network]\nregistries = ['yum']", "network.registries"),
    ("[network]\nmode = 'open'", "network.mode"),
    ("[network]\nup_bytes = -1", "network.up_bytes"),
    ("permissions = 'ask'", "permissions"),
    ("[permissions]\nnetwork = 'allow'", "permissions.network"),
    ("[permissions]\nnetwork = true", "permissions.network"),
    ("[permissions]\nlongest = 'ever'", "permissions.longest"),
    ("[permissions]\ngrant_days = 3651", "permissions.grant_days"),
    ("[permissions]\napprover = 'model'", "permissions.approver"),
    ("[permissions]\nwait_s = 0", "permissions.wait_s"),
    ("[permissions]\nmax_denials = 0", "permissions.max_denials"),
    ("[permissions]\nmax_same_denials = 'three'", "permissions.max_same_denials"),
    ("[permissions]\ndenial_window_s = -1", "permissions.denial_window_s"),
    ("[permissions.network]\nx = 1", "permissions.network"),
    ("[permissions]\nall = 'ask'", "permissions.all"),
    ("rootfs = 1", "rootfs"),
    ("rootfs = '../x'", "rootfs"),
    ("rootfs = 'a b'", "rootfs"),
    ("rootfs = '~bob/x'", "rootfs"),
    ("rootfs_writable = 1", "rootfs_writable"),
    ("rootfs_dir = 'roots'", "rootfs_dir"),
    ("tmp = 'kept'", "tmp"),
    ("container = 'yes'", "container"),
    ("mounts = ['/x']", "mounts"),
    ("[mounts]\nskills = '/srv/x'", "mounts.skills: is not an absolute"),
    ("[mounts]\n'/' = '/srv/x'", "mounts./: is the rootfs itself"),
    ("[mounts]\n'/x/../proc/y' = '/srv/x'", "mounts./x/../proc/y: is taken"),
    ("[mounts]\n'/tmp' = '/srv/x'", "mounts./tmp"),
    ("[mounts]\n'/workspace/x' = '/srv/x'", "mounts./workspace/x"),
    ("[mounts]\n'/x' = 'skills'", "mounts./x"),
    ("[mounts]\n'/x' = ['/srv/x']", "mounts./x"),
    ("[mounts]\n'/x' = '/a'\n'/x/' = '/b'", "mounts./x/: appears twice"),
    ("[mounts]\n'/x' = '/a'\n'/x/y' = '/b'", "mounts: /x/y is inside /x"),
    ("[provision]", "provision.source"),
    ("provision = 'alpine'", "provision"),
    ("[provision]\nsource = 'arch'", "provision.source"),
    ("[provision]\nsource = 'alpine'\nname = 'x'", "provision.name"),
    ("[provision]\nsource = 'alpine'\ntier = 3", "provision.tier"),
    ("[provision]\nsource = 'alpine'\ntier = true", "provision.tier"),
    ("[provision]\nsource = 'alpine'\npackages = 'gcc'", "provision.packages"),
    ("[provision]\nsource = 'alpine'\npackages = ['--root=/']", "provision.packages"),
    ("[provision]\nsource = 'alpine'\nmirror = 'ftp://example.org'", "provision.mirror"),
    ("[provision]\nsource = 'archive'\nlabel = 'x'\nlocation = 'x.tar'", "provision.location"),
    ("view = ", "not valid TOML"),
    ("view = 'host'\nview = 'host'", "not valid TOML"),
    ("shown_lines = " + "9" * 5000, "not valid TOML"),
    ("hidden = " + "[" * 5000, "not valid TOML"),
]


@pytest.mark.parametrize(("text", "named"), WRONG, ids=[text[:40] for text, _named in WRONG])
def test_what_is_not_understood_stops_the_run_and_is_named(text: str, named: str) -> None:
    with pytest.raises(PolicyError) as wrong:
        own(text)
    assert str(wrong.value).startswith(f"config.toml: {named}")
    assert wrong.value.remedy


@pytest.mark.parametrize("read", [own, of_project])
@pytest.mark.parametrize("value", ["true", "false", "'x'"])
def test_a_setting_of_an_earlier_version_is_refused_with_what_to_do_instead(
    read: Callable[[str], Settings], value: str
) -> None:
    with pytest.raises(PolicyError, match="explain: this setting was removed") as wrong:
        read(f"explain = {value}")
    assert wrong.value.remedy.startswith("Delete the line.")


@pytest.mark.parametrize(("key", "value"), [dropped for dropped in DROPPED if dropped[1] is not None])
def test_a_value_of_an_earlier_version_is_refused_with_what_to_write_instead(key: str, value: str) -> None:
    table, _, name = key.rpartition(".")
    with pytest.raises(PolicyError, match=f'{key}: "{value}" is no longer supported') as refused:
        own(f"[{table}]\n{name} = '{value}'" if table else f"{name} = '{value}'")
    assert refused.value.remedy == DROPPED[key, value]


@pytest.mark.parametrize(
    "text",
    [
        "roots = []",
        "readable = ['/etc']",
        "engine = 'native'",
        "bwrap = '/tmp/bwrap'",
        "allow_root = true",
        "rootfs = 'alpine'",
        "rootfs_dir = '/srv/roots'",
        "container = false",
        "[mounts]",
        "[provision]\nsource = 'alpine'",
    ],
)
def test_a_project_can_not_set_what_is_the_persons(text: str) -> None:
    own(text)
    with pytest.raises(PolicyError, match="only your own configuration"):
        of_project(text)


def test_a_projects_paths_are_relative_to_the_project() -> None:
    assert of_project("hidden = ['secrets/x', '/etc/y', '~/z']").hidden == (
        SHOP + b"/secrets/x",
        b"/etc/y",
        HOME + b"/z",
    )


def test_a_key_with_control_characters_is_shown_escaped() -> None:
    with pytest.raises(PolicyError) as wrong:
        of_project('"\\u001b[2J" = 1')
    assert str(wrong.value).isprintable()


@given(st.text(max_size=60))
def test_any_text_gives_settings_or_a_policy_error(text: str) -> None:
    for read in (own, of_project):
        with contextlib.suppress(PolicyError):
            read(text)


@given(
    st.sampled_from([*PROJECT_KEYS, "roots", "bwrap"]),
    st.recursive(
        st.one_of(st.booleans(), st.integers(), st.floats(), st.text(alphabet="ab~/ *", max_size=5).map(repr)),
        lambda values: st.lists(values, max_size=3),
        max_leaves=4,
    ),
)
def test_a_value_of_any_type_gives_settings_or_a_policy_error(key: str, value: object) -> None:
    text = f"{key} = {value}".replace("True", "true").replace("False", "false")
    with contextlib.suppress(PolicyError):
        of_project(text)


def test_megabytes_are_not_mebibytes() -> None:
    assert own("shown_bytes = '1 MiB'").shown_bytes == MIB
    with pytest.raises(PolicyError):
        own("shown_bytes = '1 MB'")


def test_tomllib_is_not_loaded_before_there_is_a_file_to_read() -> None:
    code = "import sys, unspill.policy.config, unspill.policy.merge; print('tomllib' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


@pytest.mark.parametrize("separator", ["", '."\u2028"', '."\x85"', ".'\x0b'"])
def test_a_key_of_very_many_parts_is_refused_before_it_takes_all_memory(separator: str) -> None:
    text = "a" + (".a" * 90 + separator) * 200 + " = 1\n"
    with pytest.raises(PolicyError, match="dots"):
        parse_policy(text, where="x", trusted=False, home=b"/home/ann")


DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "spec",
    [
        {"source": "alpine"},
        {"source": "alpine", "version": "3.23.0_rc1", "arch": "x86_64", "tier": 2, "sha256": DIGEST},
        {"source": "alpine", "mirror": "http://127.0.0.1:8000/alpine", "packages": ("g++", "py3-numpy", "a.b_c")},
        {"source": "alpine", "mirror": "https://[2001:db8::1]:8443/a%20b"},
        {"source": "debian", "version": "bookworm"},
        {"source": "archive", "location": "/srv/root.tar.zst", "label": "mine", "sha256": DIGEST},
        {"source": "archive", "location": "https://example.org/root.tar.gz", "label": "mine"},
        {"source": "oci", "location": "/srv/layout", "label": "py3.12", "version": "3.12-slim"},
    ],
    ids=str,
)
def test_a_plain_wish_passes(spec: dict[str, Any]) -> None:
    assert find_wrong_field(RootfsSpec(**spec)) is None


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("source", {"source": "image"}),
        ("source", {"source": ""}),
        ("version", {"source": "alpine", "version": "../3"}),
        ("version", {"source": "alpine", "version": ".."}),
        ("version", {"source": "alpine", "version": "3-x86"}),
        ("version", {"source": "alpine", "version": "-3"}),
        ("arch", {"source": "alpine", "arch": "x86/64"}),
        ("tier", {"source": "alpine", "tier": 0}),
        ("tier", {"source": "alpine", "tier": True}),
        ("packages", {"source": "debian", "packages": ("-o=APT::x",)}),
        ("packages", {"source": "debian", "packages": ("git;id",)}),
        ("packages", {"source": "debian", "packages": ("",)}),
        ("packages", {"source": "debian", "packages": tuple(f"p{n}" for n in range(257))}),
        ("mirror", {"source": "alpine", "mirror": "file:///etc"}),
        ("mirror", {"source": "alpine", "mirror": "https://"}),
        ("mirror", {"source": "alpine", "mirror": "https:///alpine"}),
        ("mirror", {"source": "alpine", "mirror": "https://ann:secret@example.org/"}),
        ("mirror", {"source": "alpine", "mirror": "https://example.org/?a"}),
        ("mirror", {"source": "alpine", "mirror": "https://example.org/\n"}),
        ("mirror", {"source": "alpine", "mirror": "https://example.org/" + "a" * 1024}),
        ("location", {"source": "archive", "label": "x", "location": "root.tar"}),
        ("location", {"source": "archive", "label": "x"}),
        ("location", {"source": "oci", "label": "x", "location": "https://example.org/x"}),
        ("sha256", {"source": "alpine", "sha256": DIGEST.upper()}),
        ("sha256", {"source": "alpine", "sha256": DIGEST[1:]}),
        ("label", {"source": "archive", "location": "/x", "label": "a-b"}),
        ("label", {"source": "archive", "location": "/x", "label": "1"}),
        ("label", {"source": "archive", "location": "/x", "label": "alpine"}),
        ("label", {"source": "archive", "location": "/x", "label": "alpine.z"}),
        ("label", {"source": "oci", "location": "/x", "label": "debian_12"}),
        ("label", {"source": "archive", "location": "/x"}),
        ("label", {"source": "alpine", "label": "mine"}),
        ("location", {"source": "alpine", "location": "/x.tar"}),
        ("mirror", {"source": "archive", "location": "/x", "label": "x", "mirror": "https://example.org"}),
        ("packages", {"source": "oci", "location": "/x", "label": "x", "packages": ("git",)}),
    ],
    ids=str,
)
def test_the_first_field_that_can_not_be_met_is_named(field: str, spec: dict[str, Any]) -> None:
    found = find_wrong_field(RootfsSpec(**spec))
    assert found is not None
    assert found[0] == field
    assert found[1]


@given(st.text(max_size=12))
def test_no_text_that_passes_leaves_its_directory_or_becomes_an_option(text: str) -> None:
    for is_right in (is_rootfs_name, is_rootfs_label):
        if is_right(text):
            assert text.isascii()
            assert text.isprintable()
            assert not set(text) & set("/ \\'\"$&;|<>")
            assert text[0] not in "-."
    if is_web_address(text):
        assert text.isascii()
        assert " " not in text


@pytest.mark.parametrize("label", ["alpine", "alpine.z", "alpine_z", "debian", "debian.12.3", "oci._", "archive_old"])
def test_nothing_is_called_as_if_it_were_of_a_source(label: str) -> None:
    assert not is_rootfs_label(label)
    # The control: it is the beginning alone that is wrong
    assert is_rootfs_label(f"my{label}")
    assert is_rootfs_label(
        label.replace("alpine", "alpines").replace("debian", "deb").replace("oci", "oc").replace("ve", "v")
    )
