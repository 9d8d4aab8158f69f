# SPDX-License-Identifier: Apache-2.0
"""Which rootfs a policy means, what an installation may reach, and what a program does with every rootfs."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from tests.rootfs_tree import make_small_tree
from tests.unit.plan.given import facts
from tests.unit.rootfs.making import make
from unspill import RootfsRegistry
from unspill.errors import PolicyError, RootfsError, RootfsUnsafe, RootfsUnverified, UsageError
from unspill.model.policy import Policy
from unspill.model.rootfs import Progress, RootfsSpec
from unspill.network.resolve import AddressRules, Endpoint
from unspill.policy.hosts import Refused
from unspill.rootfs.registry import Registry
from unspill.sandbox.project import Locations, find_own_locations, rootfs_directory
from unspill.sandbox.rootfs_use import InstallGround, find_endpoints, find_rootfs, install


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    for name in ("home/tree/bin", "home/.ssh", "home/project/tree", "state", "config", "data/rootfs"):
        (tmp_path / name).mkdir(parents=True, mode=0o755)
    tmp_path.chmod(0o755)
    names = {name: os.fsencode(tmp_path / name) for name in ("home", "state", "config", "data")}
    return Locations(**names, rootfs=names["data"] + b"/rootfs")


def find(locations: Locations, path: bytes, *roots: bytes) -> bytes:
    return find_rootfs(Policy(view="rootfs", rootfs=os.fsdecode(path)), locations, roots).tree


def test_a_directory_of_the_persons_own_is_taken_as_it_is(locations: Locations) -> None:
    tree = locations.home + b"/tree"
    found = find_rootfs(Policy(view="rootfs", rootfs=os.fsdecode(tree)), locations)
    assert (found.tree, found.name, found.manifest) == (tree, os.fsdecode(tree), None)
    os.symlink(tree, locations.home + b"/link")
    assert find(locations, locations.home + b"/link") == tree


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (b"", "home directory"),
        (b"/..", "home directory"),
        (b"/.ssh", "never shown"),
        (b"/../state", "its own files"),
        (b"/../data/rootfs/staging/x/tree", "its own files"),
        (b"/nothing", "No such file"),
        (b"/file", "not a directory"),
    ],
)
def test_what_is_no_tree_of_its_own_is_refused(locations: Locations, name: bytes, why: str) -> None:
    Path(os.fsdecode(locations.home), "file").touch()
    with pytest.raises(RootfsUnsafe, match=why) as refused:
        find(locations, os.path.normpath(locations.home + name))
    assert refused.value.remedy


def test_the_host_itself_is_never_the_rootfs(locations: Locations) -> None:
    with pytest.raises(RootfsUnsafe, match="whole file system"):
        find(locations, b"/")


def test_a_tree_that_commands_may_write_is_refused(locations: Locations) -> None:
    project = locations.home + b"/project"
    assert find(locations, project + b"/tree") == project + b"/tree"
    with pytest.raises(RootfsUnsafe, match="what commands may write"):
        find(locations, project + b"/tree", project)
    with pytest.raises(RootfsUnsafe, match="what commands may write"):
        find(locations, project, project + b"/tree")


@pytest.mark.parametrize("at", ["tree", "."])
def test_a_tree_that_others_could_change_is_refused(locations: Locations, at: str) -> None:
    tree, place = locations.home + b"/tree", Path(os.fsdecode(locations.home), at)
    assert find(locations, tree) == tree
    place.chmod(0o777)
    with pytest.raises(RootfsUnsafe, match="can be changed by others"):
        find(locations, tree)
    place.chmod(0o1777)
    if at == ".":
        assert find(locations, tree) == tree


def test_without_any_the_remedy_says_how_to_get_one(locations: Locations) -> None:
    for name in ("", "alpine"):
        with pytest.raises(RootfsError, match="There is no rootfs") as missing:
            find_rootfs(Policy(view="rootfs", rootfs=name), locations)
        assert "unspill rootfs pull alpine" in missing.value.remedy
        assert missing.value.exit_code == 8


def test_where_there_are_some_but_none_in_use_the_remedy_says_how_to_choose(locations: Locations) -> None:
    made = make(Registry(locations.rootfs))
    os.unlink(locations.rootfs + b"/current")
    with pytest.raises(RootfsError, match="no rootfs in use") as missing:
        find_rootfs(Policy(view="rootfs"), locations)
    assert "unspill rootfs use NAME" in missing.value.remedy
    # A policy means what it names: a longer name that happens to begin so is another one
    with pytest.raises(RootfsError, match="no rootfs alp "):
        find_rootfs(Policy(view="rootfs", rootfs="alp"), locations)
    assert find_rootfs(Policy(view="rootfs", rootfs="alpine"), locations) == made


def test_what_would_be_made_must_be_what_is_named(locations: Locations) -> None:
    policy = Policy(view="rootfs", rootfs="debian", provision=RootfsSpec(source="alpine"))
    with pytest.raises(RootfsError, match="would make alpine"):
        find_rootfs(policy, locations)


def test_a_program_may_choose_another_directory(locations: Locations) -> None:
    assert rootfs_directory(Policy(), locations) == locations.rootfs
    assert rootfs_directory(Policy(rootfs_dir=b"/srv/roots"), locations) == b"/srv/roots"


def test_a_link_that_others_could_have_laid_does_not_choose_the_directory(locations: Locations, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "rootfs").symlink_to(os.fsdecode(locations.rootfs))
    (shared / "tree").symlink_to(os.fsdecode(locations.home + b"/tree"))
    way = os.fsencode(shared / "rootfs")
    named = locations.replace(rootfs_way=way)
    shared.chmod(0o755)
    assert rootfs_directory(Policy(), named) == rootfs_directory(Policy(rootfs_dir=way), locations) == locations.rootfs
    assert find(locations, os.fsencode(shared / "tree")) == locations.home + b"/tree"
    shared.chmod(0o777)
    for policy, places in ((Policy(), named), (Policy(rootfs_dir=way), locations)):
        with pytest.raises(RootfsUnsafe, match="shared can be changed by others"):
            rootfs_directory(policy, places)
    with pytest.raises(RootfsUnsafe, match="can be changed by others"):
        find(locations, os.fsencode(shared / "tree"))


LOOPBACK = bytes((127, 0, 0, 1))


def test_an_address_that_was_named_is_reached_on_its_port() -> None:
    assert find_endpoints(["127.0.0.1:8080"]) == {Endpoint(address=LOOPBACK, port=8080)}
    assert find_endpoints(["[::1]:8080"]) == {Endpoint(address=bytes(15) + b"\1", port=8080)}
    assert {endpoint.port for endpoint in find_endpoints(["10.0.0.7"])} == {80, 443}


@pytest.mark.parametrize("host", ["mirror.example.org:80", "*.example.org", "mirror.example.org"])
def test_a_name_never_opens_an_address_that_is_not_public(host: str) -> None:
    assert find_endpoints([host]) == frozenset()


def test_other_ports_and_addresses_stay_closed() -> None:
    rules = AddressRules(endpoints=find_endpoints(["127.0.0.1:8080"]))
    rules.check(LOOPBACK, 8080)
    for packed, port in ((LOOPBACK, 8081), (bytes((127, 0, 0, 2)), 8080), (bytes((10, 0, 0, 1)), 8080)):
        with pytest.raises(Refused):
            rules.check(packed, port)


def test_a_host_that_is_none_is_refused() -> None:
    with pytest.raises(PolicyError):
        find_endpoints(["http://example.org/"])


def ground(state: Path) -> InstallGround:
    return InstallGround(state=os.fsencode(state), facts=facts(), engine="mount")


def test_a_tree_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RootfsError, match="can't be read"):
        install(os.fsencode(tmp_path / "none"), [b"/bin/true"], [], ground=ground(tmp_path))


def test_a_tree_with_hundreds_of_entries_at_its_top_is_refused(tmp_path: Path) -> None:
    for number in range(257):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(RootfsError, match="more than 256"):
        install(os.fsencode(tmp_path), [b"/bin/true"], [], ground=ground(tmp_path))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of its own."""
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", os.fspath(made))
    for name in ("ROOTFS_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "UNSPILL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return made


def archived(top: Path, content: str = "one") -> RootfsSpec:
    tree = make_small_tree(top / content)
    (tree / "etc/motd").write_text(content)
    path = top / "root.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(tree, ".")
    return RootfsSpec(source="archive", location=os.fspath(path), label="small")


@pytest.mark.usefixtures("home")
def test_what_is_pulled_is_found_by_its_name_and_its_steps_are_told(tmp_path: Path, home: Path) -> None:
    registry = RootfsRegistry()
    assert (registry.list(), registry.current()) == ((), None)
    steps: list[Progress] = []
    made = registry.pull(archived(tmp_path), report=steps.append)
    assert made.tree.startswith(os.fsencode(home / ".local/share/unspill/rootfs/roots"))
    assert registry.list() == (made,)
    assert made == registry.current() == registry.find() == registry.find("small") == registry.find(made.name)
    assert registry.verify() == "none"
    assert steps[0].step == "resolving"
    assert registry.pull(archived(tmp_path / "again").replace(location=os.fspath(tmp_path / "root.tar"))) == made


@pytest.mark.usefixtures("home")
def test_an_upgrade_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    registry = RootfsRegistry()
    old = registry.pull(archived(tmp_path))
    assert not registry.upgrade().is_newer
    archived(tmp_path, "two")
    upgraded = registry.upgrade("small")
    assert (upgraded.is_newer, upgraded.old) == (True, old)
    assert registry.current() == upgraded.new
    assert (Path(os.fsdecode(old.tree)) / "etc/motd").read_text() == "one"
    assert registry.use(old.name) == registry.current() == old
    assert registry.remove_unused() == ()
    assert registry.remove(upgraded.new.name) == upgraded.new.name


@pytest.mark.usefixtures("home")
def test_a_directory_of_the_programs_own_choice_goes_before_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOTFS_DIR", os.fspath(tmp_path / "baked"))
    assert RootfsRegistry().directory == os.fsencode(tmp_path / "baked")
    assert RootfsRegistry(tmp_path / "mine").directory == os.fsencode(tmp_path / "mine")
    assert RootfsRegistry(policy=Policy(rootfs_dir=b"/srv/roots")).directory == b"/srv/roots"


@pytest.mark.usefixtures("home")
def test_the_persons_file_says_where_and_the_variable_goes_before_it(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".config/unspill").mkdir(parents=True)
    (home / ".config/unspill/config.toml").write_text(f'rootfs_dir = "{tmp_path}/configured"\n')
    assert RootfsRegistry().directory == os.fsencode(tmp_path / "configured")
    monkeypatch.setenv("ROOTFS_DIR", os.fspath(tmp_path / "baked"))
    assert RootfsRegistry().directory == os.fsencode(tmp_path / "baked")


@pytest.mark.usefixtures("home")
def test_what_a_policy_provides_is_found_in_a_directory_that_can_only_be_read(tmp_path: Path) -> None:
    spec = archived(tmp_path)
    registry = RootfsRegistry(tmp_path / "baked")
    made = registry.pull(spec)
    (tmp_path / "baked/current").unlink()
    # Where the archive is gone, nothing but what is ready can be meant
    (tmp_path / "root.tar").unlink()
    for path in (tmp_path / "baked", *(tmp_path / "baked").iterdir()):
        path.chmod(0o555)
    policy = Policy(view="rootfs", rootfs_dir=registry.directory, provision=spec)
    try:
        assert find_rootfs(policy, find_own_locations()) == made
    finally:
        for path in (tmp_path / "baked", *(tmp_path / "baked").iterdir()):
            path.chmod(0o755)


@pytest.mark.usefixtures("home")
def test_a_wish_that_nobody_could_meet_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="location"):
        RootfsRegistry().pull(RootfsSpec(source="archive", label="x"))
    with pytest.raises(UsageError, match="source"):
        RootfsRegistry().pull(RootfsSpec(source="image"))  # type: ignore[arg-type]


@pytest.mark.usefixtures("home")
def test_a_tree_that_was_made_by_hand_can_be_described_but_not_upgraded(tmp_path: Path) -> None:
    registry = RootfsRegistry(policy=Policy(rootfs=os.fspath(make_small_tree(tmp_path / "tree"))))
    assert registry.find().manifest is None
    with pytest.raises(RootfsError, match="no source"):
        registry.upgrade()
    with pytest.raises(RootfsUnverified, match="by hand"):
        registry.verify()
