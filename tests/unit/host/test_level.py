# SPDX-License-Identifier: Apache-2.0
"""From facts to a level: each thing taken away, one at a time and all together."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import BwrapUnsafe
from unspill.host.distribution import Distribution
from unspill.host.level import DoctorReport, Row, find_refusal, level_of, report
from unspill.model.plan import Bwrap, Facts

if TYPE_CHECKING:
    from unspill.model.policy import EngineName, Profile

UBUNTU = Distribution(id="ubuntu", like=("debian",), name="Ubuntu 24.04")
BWRAP = Bwrap(path=b"/usr/bin/bwrap", version="0.12.0", device=1, inode=2, has_overlay=True, symlink_flaw=False)
BEST = Facts(
    uid=1000,
    gid=1000,
    kernel="6.8.0",
    boot_id="1",
    bwrap=BWRAP,
    namespaces=True,
    disable_userns=True,
    proc_mount=True,
    own_namespace=True,
    engines=("mount", "native"),
    lowerdir_plus=True,
    seccomp=True,
    landlock_abi=4,
    openat2=True,
    cgroup="v2",
    flatpak=False,
    container="",
    merged_usr=True,
    state_filesystem="ext4",
)
OLD = BWRAP.replace(version="0.9.0", has_overlay=False, symlink_flaw=True)
NOT_OURS = {"own_namespace": False, "engines": ("native",), "problems": (("mount", "could not be tried"),)}

# Name: what is otherwise, the level, the row it shows in, words of its remedy.
CASES: dict[str, tuple[dict[str, object], str, str, str]] = {
    "everything": ({}, "A", "engines", ""),
    "no cgroup": ({"cgroup": "none"}, "B", "cgroup", "Delegate=yes"),
    "no landlock": ({"landlock_abi": 0}, "B", "landlock", "Linux"),
    "no seccomp": ({"seccomp": False}, "D", "seccomp", "Linux"),
    "no openat2": ({"openat2": False}, "B", "openat2", "Linux"),
    "only native": (NOT_OURS, "A", "engines", ""),
    "old kernel": ({"lowerdir_plus": False}, "A", "lowerdir+", ""),
    "flaw": ({"bwrap": OLD}, "A", "symlink-flaw", "0.12 or later"),
    "state on overlayfs": (
        {"engines": (), "state_filesystem": "overlay", "problems": (("mount", "Invalid argument"),)},
        "D",
        "engines",
        "UNSPILL_STATE_DIR",
    ),
    "apparmor with an old bwrap": (
        {"bwrap": OLD, "own_namespace": False, "engines": (), "problems": (("apparmor", "is 1"),)},
        "D",
        "engines",
        "0.11 or later",
    ),
    "apparmor": (
        {"namespaces": False, "own_namespace": False, "problems": (("apparmor", "is 1"),)},
        "D",
        "namespaces",
        "profile unspill-bwrap /usr/bin/bwrap",
    ),
    "max_user_namespaces": (
        {"namespaces": False, "problems": (("max-user-namespaces", "is 0"),)},
        "D",
        "namespaces",
        "user.max_user_namespaces=15000",
    ),
    "userns_clone": (
        {"namespaces": False, "problems": (("userns-clone", "is 0"),)},
        "D",
        "namespaces",
        "kernel.unprivileged_userns_clone=1",
    ),
    "container": (
        {"namespaces": False, "container": "docker", "problems": (("surroundings", "something"),)},
        "D",
        "namespaces",
        "seccomp=unconfined",
    ),
    "flatpak": ({"namespaces": False, "flatpak": True}, "D", "namespaces", "Flatpak"),
    "covered proc": ({"proc_mount": False}, "D", "proc", "systempaths=unconfined"),
    "ancient bwrap": (
        {"disable_userns": False, "problems": (("disable_userns", "bwrap: Unknown option --disable-userns"),)},
        "D",
        "disable-userns",
        "0.8 or later",
    ),
    "sysctl not writable": ({"disable_userns": False}, "D", "disable-userns", "/proc/sys/user"),
    "no bwrap": ({"bwrap": None, "namespaces": False}, "D", "bwrap", "apt install bubblewrap"),
    "no state": ({"engines": (), "problems": (("state", "Permission denied"),)}, "D", "state", "UNSPILL_STATE_DIR"),
    "root": ({"uid": 0}, "D", "caller", "allow_root"),
}


def judged(**otherwise: object) -> DoctorReport:
    return report(BEST.replace(**otherwise), distribution=UBUNTU)


def row_of(found: DoctorReport, fact: str) -> Row:
    (row,) = [row for row in found.rows if row.fact == fact]
    return row


@pytest.mark.parametrize("case", CASES)
def test_one_thing_otherwise_gives_its_level_and_its_remedy(case: str) -> None:
    otherwise, level, fact, remedy = CASES[case]
    found = judged(**otherwise)
    row = row_of(found, fact)
    assert found.level == level
    assert remedy in row.remedy
    assert row.consequence


def test_every_row_that_refuses_has_a_remedy() -> None:
    for otherwise, *_rest in CASES.values():
        for row in judged(**otherwise).rows:
            assert row.remedy or row.standing not in {"missing", "less", "weak"}, row


def test_a_reason_that_was_found_is_told() -> None:
    found = judged(namespaces=False, problems=(("namespaces", "No space left on device"),))
    assert "No space left on device" in row_of(found, "namespaces").consequence


def test_root_is_the_weaker_level_only_if_it_was_configured() -> None:
    root = BEST.replace(uid=0)
    assert report(root, distribution=UBUNTU).level == "D"
    assert report(root, distribution=UBUNTU, allow_root=True).level == "C"


def test_allowing_root_repairs_nothing_else() -> None:
    broken = BEST.replace(uid=0, namespaces=False)
    assert report(broken, distribution=UBUNTU, allow_root=True).level == "D"


@pytest.mark.parametrize(
    ("engines", "wanted", "level"),
    [
        (("mount", "native"), "mount", "A"),
        (("mount", "native"), "native", "A"),
        (("mount",), "native", "D"),
        ((), None, "D"),
        ((), "mount", "D"),
    ],
)
def test_a_configured_engine_must_work(engines: tuple[str, ...], wanted: EngineName | None, level: str) -> None:
    found = report(BEST.replace(engines=engines), distribution=UBUNTU, engine=wanted)
    assert found.level == level
    assert (find_refusal(found) is not None) is (level == "D")


def test_the_first_refusal_is_what_an_error_tells() -> None:
    refusal = find_refusal(judged(proc_mount=False, engines=()))
    assert refusal is not None
    assert refusal.fact == "proc"


def test_a_bwrap_that_was_refused_is_explained_by_its_refusal() -> None:
    error = BwrapUnsafe("it is setuid", remedy="use another")
    row = row_of(report(BEST.replace(bwrap=None), distribution=UBUNTU, bwrap_error=error), "bwrap")
    assert (row.standing, row.consequence, row.remedy) == ("missing", "it is setuid", "use another")


@pytest.mark.parametrize("name", ["docker", "podman", "bwrap", "anything"])
def test_being_surrounded_never_decides(name: str) -> None:
    assert judged(container=name, flatpak=True).level == judged().level == "A"


@given(
    st.fixed_dictionaries(
        {
            "namespaces": st.booleans(),
            "disable_userns": st.booleans(),
            "proc_mount": st.booleans(),
            "bwrap": st.sampled_from([None, BWRAP, OLD]),
            "engines": st.sampled_from([(), ("native",), ("mount",)]),
            "uid": st.sampled_from([0, 1000]),
            "cgroup": st.sampled_from(["none", "v1", "v2"]),
            "seccomp": st.booleans(),
        }
    ),
    st.booleans(),
)
def test_nothing_is_run_unless_all_that_seals_works(otherwise: dict[str, object], allow_root: bool) -> None:
    found = report(BEST.replace(**otherwise), distribution=UBUNTU, allow_root=allow_root)
    needed = ("namespaces", "disable_userns", "proc_mount", "bwrap", "engines", "seccomp")
    is_sealed = all(otherwise[name] for name in needed)
    may = otherwise["uid"] != 0 or allow_root
    assert (found.level != "D") is (is_sealed and may)


def test_the_worst_row_decides() -> None:
    order = {"ok": "A", "note": "A", "less": "B", "weak": "C", "missing": "D"}
    for standings in itertools.product(order, repeat=2):
        rows = tuple(Row(fact="", value="", standing=standing, consequence="") for standing in standings)  # type: ignore[arg-type]
        assert level_of(rows) == max(order[standing] for standing in standings)


@pytest.mark.parametrize(
    ("profile", "abi", "level", "words"),
    [
        ("default", 7, "A", "No run uses it."),
        ("default", 0, "B", "does not offer it"),
        ("strict", 7, "A", "has no Landlock fence"),
        ("strict", 0, "B", "does not offer it"),
    ],
)
def test_landlock_is_used_by_no_profile(profile: Profile, abi: int, level: str, words: str) -> None:
    found = report(BEST.replace(landlock_abi=abi), distribution=UBUNTU, profile=profile)
    [row] = [row for row in found.rows if row.fact == "landlock"]
    assert found.level == level
    assert words in row.consequence
