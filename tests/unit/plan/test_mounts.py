# SPDX-License-Identifier: Apache-2.0
"""What is shown has holes: hidden paths, secrets, our own files and the host's sockets."""

from __future__ import annotations

import pytest

from tests.unit.plan.given import HOME, PROJECT, STATE, cache, given, home, places, stack
from unspill.errors import UsageError
from unspill.model.plan import Bind, File, Overlay, ReadOnly, Tmpfs
from unspill.model.policy import Policy
from unspill.plan.build import build_plan
from unspill.plan.view import find_cover, is_shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.plan import MountOp

TOP = (b"/var", b"/home", b"/root", b"/run", b"/tmp", b"/srv", b"/mnt", b"/sys", b"/proc", b"/dev", b"/data")


def mounts(**values: Any) -> tuple[MountOp, ...]:
    return build_plan(given(**values)).mounts


def hosts(**values: Any) -> tuple[MountOp, ...]:
    found = places(top=TOP, own=(HOME + b"/.config/unspill",)).replace(**values)
    return mounts(policy=Policy(view="host"), places=found)


def is_masked(operations: tuple[MountOp, ...], path: bytes) -> bool:
    cover = find_cover(operations, path)
    if isinstance(cover, File):
        return cover.over and cover.content == b""
    return isinstance(cover, Tmpfs) and ReadOnly(dest=cover.dest, why="an empty mask stays empty") in operations


def test_view_host_shows_the_host_read_only_but_not_what_is_private_or_live() -> None:
    ordered = hosts()
    for path in (b"/usr/x", b"/etc/x", b"/opt/x", b"/var/cache/x", b"/data/x", HOME + b"/notes"):
        assert is_shown(ordered, path), path
    for path in (b"/run/x", b"/tmp/x", b"/var/tmp/x", b"/root/x", b"/home/bob", b"/srv", b"/mnt/c", b"/sys", b"/boot"):
        assert not is_shown(ordered, path), path
    writable = [op.dest for op in ordered if isinstance(op, Bind | Overlay) and getattr(op, "writable", False)]
    assert writable == [HOME + b"/playground"]
    assert is_masked(ordered, STATE + b"/layers")
    assert is_masked(ordered, HOME + b"/.config/unspill/config.toml")


def test_view_host_masks_the_secrets_that_exist() -> None:
    ordered = hosts(
        secrets=(HOME + b"/.ssh", HOME + b"/.config/gcloud", b"/var/lib"),
        secret_files=(HOME + b"/.netrc", HOME + b"/.ssh/config"),
    )
    for path in (HOME + b"/.ssh/id", HOME + b"/.config/gcloud/x", b"/var/lib/x", HOME + b"/.netrc"):
        assert is_masked(ordered, path), path
    assert not is_masked(ordered, HOME + b"/.config/nvim")
    # The directory is masked already: bwrap could not make a mount point in it
    assert HOME + b"/.ssh/config" not in [op.dest for op in ordered]


def test_view_host_has_its_own_git_configuration() -> None:
    plan = build_plan(given(policy=Policy(view="host"), places=places(top=TOP)))
    path = dict(plan.environ)[b"GIT_CONFIG_GLOBAL"]
    assert [op.content for op in plan.mounts if isinstance(op, File) and op.dest == path] == [
        b'[user]\n\temail = "ann@example.org"\n\tname = "Ann"\n'
    ]


@pytest.mark.parametrize("engine", ["mount", "native"])
@pytest.mark.parametrize("is_taken", [False, True])
def test_view_host_has_a_playground_unless_bwrap_would_follow_what_is_there(engine: Any, is_taken: bool) -> None:
    policy, found = Policy(view="host"), places(top=TOP, no_playground=is_taken)
    plan = build_plan(given(policy=policy, places=found, engine=engine))
    has_one = HOME + b"/playground" in [op.dest for op in plan.mounts]
    assert has_one == (not is_taken or engine != "native")
    assert any("There is no playground" in warning for warning in plan.warnings) != has_one
    assert [point.path for point in plan.skeleton] == [STATE + b"/skeletons/home/playground"]


def test_a_socket_is_masked_with_its_directory() -> None:
    ordered = hosts(sockets=(b"/usr/x/daemon/s", b"/etc/agent/s", b"/run/x/s"))
    assert is_masked(ordered, b"/usr/x/daemon/s")
    assert is_masked(ordered, b"/usr/x/daemon/another")
    assert is_masked(ordered, b"/etc/agent/s")
    assert [op.dest for op in ordered].count(b"/run/x") == 0


@pytest.mark.parametrize("path", [b"/etc/s", b"/usr/s"])
def test_a_socket_in_a_directory_that_is_needed_is_masked_alone(path: bytes) -> None:
    ordered = hosts(sockets=(path,))
    assert is_masked(ordered, path)
    assert not is_masked(ordered, path + b"-beside")


@pytest.mark.parametrize("view", ["sealed", "host"])
def test_a_socket_in_an_overlay_needs_no_mask(view: Any) -> None:
    found = places(top=TOP, sockets=(PROJECT + b"/s", b"/opt/x/s", HOME + b"/s", b"/var/x/s"))
    assert mounts(policy=Policy(view=view), places=found) == mounts(
        policy=Policy(view=view), places=found.replace(sockets=())
    )


def test_a_socket_in_the_system_directories_is_masked_in_every_view() -> None:
    found = places(system=(b"/usr", b"/etc", b"/nix"), sockets=(b"/nix/var/nix/daemon-socket/socket",))
    assert is_masked(mounts(places=found), b"/nix/var/nix/daemon-socket/socket")


def test_hidden_paths_that_nothing_shows_need_no_mask() -> None:
    hidden = (HOME + b"/private", b"/srv/x", b"/tmp/x", b"/proc/x")
    assert mounts(policy=Policy(hidden=hidden)) == mounts()


def test_hidden_paths_are_masked_where_they_would_be_seen() -> None:
    policy = Policy(hidden=(b"/etc/secret", b"/usr/x/key", b"/etc/gone"), readable=(b"/srv/doc",))
    ordered = mounts(policy=policy, places=places(files=(b"/usr/x/key",), absent=(b"/etc/gone",)))
    assert is_masked(ordered, b"/etc/secret/x")
    assert is_masked(ordered, b"/usr/x/key")
    assert not is_masked(ordered, b"/etc/gone")


def test_hiding_wins_over_showing() -> None:
    hidden = (HOME + b"/.cargo", b"/srv", b"/opt", HOME + b"/.cache/pip")
    policy = Policy(hidden=hidden, readable=(b"/srv/doc",))
    ordered = mounts(policy=policy, places=places(home=home(b".cargo/bin")), caches=(cache(HOME + b"/.cache/pip"),))
    for path in (*hidden, b"/srv/doc", HOME + b"/.cargo/bin"):
        assert not is_shown(ordered, path), path


def test_a_cache_with_a_hidden_path_in_it_is_not_shown() -> None:
    plan = build_plan(given(policy=Policy(hidden=(HOME + b"/.cache/pip/x",)), caches=(cache(HOME + b"/.cache/pip"),)))
    assert not is_shown(plan.mounts, HOME + b"/.cache/pip")
    assert len(plan.warnings) == 1


@pytest.mark.parametrize("hidden", [PROJECT, PROJECT + b"/x", HOME, b"/"])
def test_a_hidden_path_that_has_to_do_with_a_root_is_refused(hidden: bytes) -> None:
    with pytest.raises(UsageError, match="hidden"):
        mounts(policy=Policy(hidden=(hidden,)))


def test_kernel_settings_stay_read_only_whatever_is_hidden() -> None:
    assert [op for op in mounts(policy=Policy(hidden=(b"/proc",))) if op.dest == b"/proc/sys"]


def test_a_secret_that_the_policy_names_is_shown() -> None:
    policy = Policy(view="host", readable=(HOME + b"/.kube",))
    found = places(top=TOP, secrets=(HOME + b"/.kube", HOME + b"/.ssh"))
    ordered = mounts(policy=policy, places=found)
    assert is_shown(ordered, HOME + b"/.kube/config")
    assert is_masked(ordered, HOME + b"/.ssh")


def test_a_secret_below_a_readable_path_is_masked_in_view_sealed_too() -> None:
    found = places(secrets=(HOME + b"/.config/gcloud",))
    policy = Policy(readable=(HOME + b"/.config",))
    assert is_masked(mounts(policy=policy, places=found), HOME + b"/.config/gcloud/x")


def test_a_root_that_holds_a_secret_is_refused_in_view_host() -> None:
    found = places(top=TOP, secrets=(PROJECT + b"/keys",))
    with pytest.raises(UsageError, match="can't be masked"):
        mounts(policy=Policy(view="host"), places=found, stacks=(stack(PROJECT),))


def test_view_host_without_its_home_where_no_overlay_can_cover_it() -> None:
    plan = build_plan(given(policy=Policy(view="host"), places=places(top=TOP, mounted=(HOME + b"/remote",))))
    assert isinstance(find_cover(plan.mounts, HOME + b"/notes"), Tmpfs)
    assert any("home directory is not shown" in warning for warning in plan.warnings)
