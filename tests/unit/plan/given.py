# SPDX-License-Identifier: Apache-2.0
"""Inputs of a plan for the tests: a person with a home, a project and a host that can do everything."""

from __future__ import annotations

import platform
from typing import Any

from unspill.host.bwrap import build_filter
from unspill.model.plan import Bwrap, CacheLayer, Facts, Home, Places, PlanInput
from unspill.model.policy import Policy
from unspill.model.run import LayerId, OpenLayer, RunId, SealedLayer, Stack, TimeMark

HOME = b"/home/ann"
STATE = HOME + b"/.local/state/unspill"
PROJECT = HOME + b"/work/shop"
MARK = TimeMark(ctime_ns=1)
FILTER = build_filter(platform.machine(), "default")


def facts(**values: Any) -> Facts:
    bwrap = Bwrap(path=b"/usr/bin/bwrap", version="0.8.0", device=1, inode=2, has_overlay=False, symlink_flaw=True)
    able = Facts(
        uid=1000,
        gid=1000,
        kernel="6.1",
        boot_id="boot",
        bwrap=bwrap,
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
    )
    return able.replace(**values)


def stack(live: bytes, *, sealed: int = 0, layers: bytes = STATE + b"/layers") -> Stack:
    run = RunId("run")
    lower = tuple(
        SealedLayer(id=LayerId(f"s{i}"), upper=b"%s/s%d/upper" % (layers, i), mark=MARK, run=run) for i in range(sealed)
    )
    name = live.strip(b"/").replace(b"/", b"_")[:60]
    opened = OpenLayer(
        id=LayerId("open"),
        upper=layers + b"/" + name + b"/upper",
        work=layers + b"/" + name + b"/work",
        mark=MARK,
        run=run,
    )
    return Stack(live=live, device=1, inode=1, sealed=lower, open=opened)


def cache(path: bytes) -> CacheLayer:
    return CacheLayer(path=path, stack=stack(path))


def places(**values: Any) -> Places:
    usual = Places(
        project=PROJECT,
        state=STATE,
        playground=HOME + b"/.local/share/unspill/playground/shop",
        home=Home(path=HOME, user="ann", identity=(("user.name", "Ann"), ("user.email", "ann@example.org"))),
        system=(b"/usr", b"/etc", b"/opt"),
        links=((b"/bin", b"usr/bin"), (b"/lib", b"usr/lib"), (b"/lib64", b"usr/lib64"), (b"/sbin", b"usr/sbin")),
    )
    return usual.replace(**values)


def home(*toolchains: bytes) -> Home:
    return places().home.replace(toolchains=tuple(HOME + b"/" + name for name in toolchains))


def given(**values: Any) -> PlanInput:
    usual = PlanInput(
        policy=Policy(),
        facts=facts(),
        places=places(),
        engine="mount",
        stacks=(stack(PROJECT),),
        argv=(b"/bin/sh", b"-c", b"true"),
        cwd=PROJECT,
        filter=FILTER,
        environ=((b"PATH", b"/usr/bin:/bin"), (b"LANG", b"en_GB.UTF-8")),
    )
    return usual.replace(**values)
