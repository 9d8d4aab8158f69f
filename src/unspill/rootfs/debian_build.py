# SPDX-License-Identifier: Apache-2.0
"""Builds a Debian tree from packages that were fetched, where nothing of the person's can be reached.

`mmdebstrap` runs in two nested user namespaces. The outer one has the caller's id and the subordinate ones; in it
a root of its own is put together (the host's /usr, the fetched packages, an empty directory for the work; no home
directory, no sockets, no network) and then closed. The inner one has the subordinate ids only: what packages run at
their installation is root there, can't take those mounts apart, and is nobody to the files of the caller.

The kernel is the host's, and no filter of system calls stands before it: this is less than the sandbox of a run.
"""

from __future__ import annotations

import os

from unspill.model.rootfs import Progress
from unspill.rootfs.debian_child import SEARCH, run_child
from unspill.rootfs.debian_failures import explain_failure
from unspill.rootfs.debian_names import Archive
from unspill.rootfs.tar_bounds import Bounds, too_much

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PATIENCE_S = 30.0
# Installing takes a few minutes; a script of a package that waits for ever would let all others wait who want the same
_WALL_S = 30 * 60.0
_MOST_BYTES = Bounds().total_bytes
_OUTER = (
    *"unshare --user --map-root-user --map-auto --mount --net --ipc --uts --pid --fork --kill-child".split(),
    *"-- /bin/sh -euc".split(),
)
# The first process of the outer namespaces. Standard input ends when unspill wants an end or is gone: then everything
# here is killed, and what belongs to subordinate ids is removed, which the caller could not do.
_SCRIPT = """
scratch=$1
ulimit -f "$2"
shift 2
root=$scratch/root
mount -t tmpfs -o mode=755,size=16m none "$root"
cd "$root"
mkdir -p usr etc proc sys dev tmp var/tmp var/lib/dpkg run home root mirror old
for name in bin sbin lib lib32 lib64 libx32; do
    if [ -L /$name ]; then
        ln -s "$(readlink /$name)" $name
    elif [ -d /$name ]; then
        mkdir $name
        mount --bind /$name $name
    fi
done
mount --rbind /usr usr
for name in null zero full random urandom; do
    : > dev/$name
    mount --bind /dev/$name dev/$name
done
ln -s /proc/self/fd dev/fd
for name in passwd group alternatives ld.so.cache ld.so.conf ld.so.conf.d debian_version dpkg perl os-release; do
    [ -e /etc/$name ] || continue
    if [ -d /etc/$name ]; then mkdir etc/$name; else : > etc/$name; fi
    mount --bind /etc/$name etc/$name
done
echo root:1:65535 > etc/subuid
echo root:1:65535 > etc/subgid
mount --bind "$scratch/tmp" tmp
mount --bind "$scratch/mirror" mirror
mount -t proc proc proc
hostname debian 2>/dev/null || :
chown 1:1 tmp
pivot_root . old
cd /
umount -l old
rmdir old
mount -o remount,ro /
exec 3<&0 </dev/null
unshare --user --map-users 1,0,65535 --map-groups 1,0,65535 --setuid 0 --setgid 0 --mount -- "$@" 3<&- &
build=$!
(while read -r line; do :; done <&3; kill -KILL $build) >/dev/null 2>&1 &
code=0
wait $build || code=$?
kill -KILL -1 2>/dev/null || :
for wait in 0 1 2 3; do
    sleep $wait
    rm -rf /tmp/* /tmp/.[!.]* && break
done
chown 0:0 /tmp
exit $code
"""
# Documentation and translations; what a licence asks for stays
_LEFT_OUT = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/groff/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    "force-unsafe-io",
)
_STEPS = {
    "I: running apt-get update": "checking signatures",
    "I: extracting archives": "unpacking packages",
    "I: installing essential packages": "installing the system",
    "I: installing remaining packages": "installing packages",
    "I: creating tarball": "writing the tree",
}


def build(
    scratch: bytes,
    suite: str,
    arch: str,
    packages: Sequence[str],
    archives: Sequence[Archive],
    *,
    epoch: int,
    report: Callable[[Progress], None],
) -> bytes:
    """Build from `scratch`/mirror, which holds the archives by number, and return the path of a tar of the tree.

    Raises:
        RootfsError: it can't be built.
    """
    for name in (b"root", b"tmp"):
        os.mkdir(os.path.join(scratch, name), 0o700)
    os.chmod(os.path.join(scratch, b"tmp"), 0o755)
    argv = enclosed_argv(scratch, mmdebstrap_argv(suite, arch, packages, archives))
    environ = {
        "PATH": SEARCH,
        "HOME": "/root",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "SOURCE_DATE_EPOCH": str(epoch),
    }

    def tell(line: str) -> None:
        for mark, step in _STEPS.items():
            if line.startswith(mark):
                report(Progress(step=step))

    tar = os.path.join(scratch, b"tree.tar")
    fd = os.open(tar, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        ended = run_child(argv, environ, cwd=scratch, on_line=tell, stdout=fd, patience_s=_PATIENCE_S, wall_s=_WALL_S)
        size = os.fstat(fd).st_size
    finally:
        os.close(fd)
    if size >= _MOST_BYTES:
        raise too_much(f"the tree that packages made has {size} bytes or more")
    if ended.code != 0:
        raise explain_failure(ended, "mmdebstrap")
    return tar


def enclosed_argv(scratch: bytes, command: Sequence[str]) -> list[str]:
    """Return a command that runs another as root of the inner namespace, with `scratch`/mirror and `scratch`/tmp.

    It ends, with all that it started, when its standard input does. No file can grow beyond the most that an archive
    may hold; the tar that it writes is one.
    """
    # Shells count in blocks of 512 bytes
    return [*_OUTER, _SCRIPT, "unspill-debian", os.fsdecode(scratch), str(_MOST_BYTES // 512), *command]


def mmdebstrap_argv(suite: str, arch: str, packages: Sequence[str], archives: Sequence[Archive]) -> list[str]:
    """Return the command that makes the tar, as it is run inside: the archives are at /mirror, by number."""
    sources = [
        f"deb copy:/mirror/{number} {name} main" for number, archive in enumerate(archives) for name in archive.suites
    ]
    return [
        "mmdebstrap",
        "--mode=unshare",
        "--variant=apt",
        "--format=tar",
        f"--architectures={arch}",
        f"--include={','.join(packages)}",
        "--keyring=/mirror/keys",
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--dpkgopt={option}" for option in _LEFT_OUT),
        "--customize-hook=upload /mirror/sources.list /etc/apt/sources.list",
        "--customize-hook=upload /mirror/apt.conf /etc/apt/apt.conf.d/99unspill",
        "--skip=output/dev",
        suite,
        "-",
        *sources,
    ]
