# SPDX-License-Identifier: Apache-2.0
"""What somebody who attacked rootfs got through once: marks that outlive `keep`, names, a tree that fills the disk."""

from __future__ import annotations

import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.rootfs_tree import make_small_tree
from tests.support import printed, run_cli
from unspill import RootfsRegistry, RootfsSpec
from unspill.errors import RootfsUnsafe, UsageError
from unspill.model.policy import Limits
from unspill.rootfs import build
from unspill.sandbox import rootfs
from unspill.sandbox.rootfs import keep_rootfs
from unspill.store.db import Store

if TYPE_CHECKING:
    from tests.support import Ground
    from unspill import Sandbox

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]


def attributes(tree: bytes) -> set[str]:
    places = [tree, *(os.path.join(at, name) for at, below, _files in os.walk(tree) for name in below)]
    return {name for place in places for name in os.listxattr(place, follow_symlinks=False)} - {"security.selinux"}


def marked(ground: Ground) -> Sandbox:
    """Return a sandbox in whose layer a command has set marks of an overlay, as the kernel keeps them there."""
    tree = make_small_tree(ground.top / "trees" / "small")
    sandbox = ground.sandbox(view="rootfs", rootfs=os.fspath(tree), rootfs_writable=True)
    assert sandbox.run("mkdir /opt/rd && echo tool > /usr/bin/tool").ok
    layers = [path for path in ground.state.rglob("rd") if path.is_dir()]
    assert layers
    for layer in layers:
        # One `overlay.` more: so the kernel keeps `user.overlay.opaque` of somebody inside
        os.setxattr(layer, "user.overlay.overlay.opaque", b"y")
        os.setxattr(layer, "user.overlay.overlay.redirect", b"/etc")
    return sandbox


def test_marks_of_an_overlay_that_a_command_set_are_not_kept(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set overlayfs's own attributes in a writable rootfs, and have that kept: as a lower layer the new tree would
    show something else than the digest was taken of.

    Control: without the stripping the digest refuses; without that look too, the marks are in the tree.
    """
    sandbox = marked(ground)
    kept = keep_rootfs(sandbox._project, "mine", lambda _progress: None)
    assert attributes(kept.tree) == set()
    assert kept.manifest is not None
    assert dict(kept.manifest.left_out)["xattr"] >= 1
    assert printed(ground.sandbox("other", view="rootfs", rootfs="mine").run("cat /usr/bin/tool")) == "tool\n"
    monkeypatch.setattr(build, "_strip", lambda _path, _mode, _taken: None)
    with pytest.raises(RootfsUnsafe, match="extended attributes"):
        keep_rootfs(sandbox._project, "marked", lambda _progress: None)
    monkeypatch.setattr(build, "is_unsafe", lambda _name: False)
    control = keep_rootfs(sandbox._project, "marked", lambda _progress: None)
    assert "user.overlay.redirect" in attributes(control.tree)


def test_what_is_kept_is_not_called_as_if_it_were_of_a_source(ground: Ground) -> None:
    sandbox = marked(ground)
    for label in ("alpine", "alpine.z", "debian_12"):
        with pytest.raises(UsageError, match="not a label"):
            keep_rootfs(sandbox._project, label, lambda _progress: None)
    archive = pack(ground, make_small_tree(ground.top / "trees" / "plain"))
    for label in ("alpine.z", "debian"):
        done = run_cli("rootfs", "pull", "--archive", os.fspath(archive), "--as", label, cwd=ground.project)
        assert (done.returncode, b"name of a source" in done.stderr) == (2, True), done.stderr.decode()


def pack(ground: Ground, tree: Path) -> Path:
    path = ground.top / f"{tree.name}.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(tree, ".")
    return path


FILL = """#!/bin/busybox ash
busybox dd if=/dev/zero of=/playground/fill bs=1M count=40 2>/dev/null
busybox mkdir /playground/d; busybox ln -s /etc /playground/l; busybox chmod 000 /playground/d
busybox chmod 500 /playground
"""


def test_a_rootfs_that_is_asked_for_its_tools_leaves_nothing_on_the_disk(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have /bin/sh write 40 MiB to the playground when it is asked what there is.

    Control: without the bound of a file and the tidying afterwards all of it stays.
    """
    tree = make_small_tree(ground.top / "trees" / "hostile")
    (tree / "bin/sh").unlink()
    (tree / "bin/sh").write_text(FILL)
    (tree / "bin/sh").chmod(0o755)
    registry = RootfsRegistry()
    made = registry.pull(RootfsSpec(source="archive", label="hostile", location=os.fspath(pack(ground, tree))))
    sizes: list[int] = []
    forget = rootfs._forget_playground

    def measure(data: bytes, project: bytes) -> None:
        sizes.append(sum(path.lstat().st_size for path in playgrounds(ground) if path.is_file()))
        forget(data, project)

    monkeypatch.setattr(rootfs, "_forget_playground", measure)
    assert registry.tools(made.name).tools == ()
    assert sizes == [1 << 20]
    assert playgrounds(ground) == []
    monkeypatch.setattr(rootfs, "_forget_playground", lambda _data, _project: None)
    monkeypatch.setattr(rootfs, "_TOOLS_LIMITS", Limits(wall_s=30.0))
    registry.tools(made.name)
    assert sum(path.lstat().st_size for path in playgrounds(ground) if path.is_file()) == 40 << 20


def test_several_who_ask_for_tools_at_once_do_not_disturb_each_other_and_leave_nothing(ground: Ground) -> None:
    tree = make_small_tree(ground.top / "trees" / "small")
    registry = RootfsRegistry()
    made = registry.pull(RootfsSpec(source="archive", label="small", location=os.fspath(pack(ground, tree))))
    before = kept(ground)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: RootfsRegistry().tools(made.name), range(8)))
    assert found == found[:1] * 8
    assert "sh" in [tool.name for tool in found[0].tools]
    assert kept(ground) == before
    assert list((ground.home / ".local/share/unspill/playground").iterdir()) == []
    with Store.open(os.fsencode(ground.state)) as store:
        assert store.sandboxes.all() == ()


def kept(ground: Ground) -> list[str]:
    """Return what is kept of runs and sandboxes, and where projects for asking are made."""
    names = ("locks", "runs", "layers", "work")
    places = [path for name in names for path in ground.state.glob(f"{name}/*")]
    places += (ground.home / ".cache/unspill").glob("*")
    return sorted(os.fspath(path) for path in places)


def playgrounds(ground: Ground) -> list[Path]:
    """Return what lies in all playgrounds of the person."""
    top = ground.home / ".local/share/unspill/playground"
    return [path for playground in top.iterdir() for path in playground.iterdir()]
