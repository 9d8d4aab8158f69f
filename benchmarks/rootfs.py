# SPDX-License-Identifier: Apache-2.0
"""What a rootfs costs: starting in one, against the view `sealed`; unpacking an archive, against GNU tar.

The rootfs that is started in has this machine's `true` and `sh` with their libraries, and the top of Alpine's.

The archive is made of what this machine has beneath /usr, up to 8,000 files (20,000 with --full, 1,500 with --short),
and kept.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from measuring import (
    Case,
    Options,
    Turns,
    compiled_environ,
    fast,
    kept_directory,
    make_project,
    parse_options,
    report,
    run_program,
    scratch,
    timed,
    unspill_program,
)

from unspill import Policy, RootfsRegistry, RootfsSpec, Sandbox
from unspill.layers.trees import remove_tree
from unspill.rootfs.tar import unpack

UNPACK_BAR = 0.5
START_BAR = 1.1
TOPS = "bin etc home lib media mnt opt root sbin srv usr var/tmp".split()
SOURCES = ("/usr/lib/python3", "/usr/share", "/usr/bin", "/usr/include", "/usr/lib")
LARGEST_FILE = 8 << 20
MEGABYTE = 1e6
MEMORY = Path("/dev/shm")
AS_ROOT = not os.getuid()


def main() -> None:
    options = parse_options(__doc__ or "")
    unpacking, note = measure_unpacking(options)
    report("rootfs", [*measure_starting(options), *unpacking], options, [note])


def measure_starting(options: Options) -> list[Case]:
    """Run `true` by the library and by the command line, in turns with the same in the default view."""
    with scratch() as directory:
        registry = RootfsRegistry(directory / "registry")
        spec = RootfsSpec(source="archive", location=str(make_small_archive(directory)), label="small")
        made = registry.pull(spec)
        policies = {
            "sealed": Policy(allow_root=AS_ROOT),
            "rootfs": Policy(allow_root=AS_ROOT, view="rootfs", rootfs=made.name, rootfs_dir=registry.directory),
        }
        library = Turns(seconds=options.pick(2, 12, 48), rounds=options.pick(40, 250, 1000))
        sandboxes = {name: Sandbox(make_project(directory, name), policy=policies[name]) for name in policies}
        library.run({name: partial(run_true, sandbox) for name, sandbox in sandboxes.items()})
        program = Turns(seconds=options.pick(2, 14, 56), rounds=options.pick(12, 100, 400))
        program.run({name: partial(run_program, *command_line(directory, name, registry)) for name in policies})
        for sandbox in sandboxes.values():
            sandbox.close()
    return [_start_case("library", library), _start_case("command line", program)]


def _start_case(what: str, turns: Turns) -> Case:
    values = turns.fast("rootfs"), turns.fast("sealed")
    name = f"{what}: a run of true in a rootfs, against the view sealed"
    return Case(name, values[0], "ms", values[1], START_BAR, samples=turns.samples["rootfs"])


def run_true(sandbox: Sandbox) -> None:
    result = sandbox.run(["/bin/true"])
    assert result.ok, result


def command_line(directory: Path, name: str, registry: RootfsRegistry) -> tuple[list[str], dict[str, str]]:
    """Return the words and the variables of a run of `true` by the command line."""
    config = directory / f"config-{name}"
    (config / "unspill").mkdir(parents=True)
    text = f"allow_root = {str(AS_ROOT).lower()}\nview = {name!r}\n"
    if name == "rootfs":
        text += f"rootfs_dir = {os.fsdecode(registry.directory)!r}\n"
    (config / "unspill" / "config.toml").write_text(text)
    variables = {**compiled_environ(directory), "XDG_CONFIG_HOME": str(config)}
    return [unspill_program(), "run", "-q", "--project", str(directory / name), "--", "/bin/true"], variables


def make_small_archive(directory: Path) -> Path:
    """Return an archive of a rootfs with what `true` and `sh` need."""
    tree = directory / "tree"
    for top in TOPS:
        (tree / top).mkdir(parents=True)
    for program in ("true", "sh"):
        path = Path(shutil.which(program) or f"/bin/{program}")
        shutil.copy(path.resolve(), tree / "bin" / program)
        told = subprocess.run(["ldd", path], capture_output=True, check=True, text=True).stdout
        for word in told.split():
            if word.startswith("/") and not (tree / word[1:]).exists():
                (tree / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(word).resolve(), tree / word[1:])
    archive = directory / "small.tar"
    with tarfile.open(archive, "w") as made:
        made.add(tree, arcname=".")
    return archive


def measure_unpacking(options: Options) -> tuple[list[Case], str]:
    """Unpack a plain and a compressed archive, in turns with GNU tar; say what is in it."""
    files, most_bytes = options.pick((1_500, 20 << 20), (8_000, 120 << 20), (20_000, 400 << 20))
    plain = make_archive(kept_directory(), files=files, most_bytes=most_bytes)
    size = plain.stat().st_size / MEGABYTE
    seconds, rounds = options.pick((2, 6), (5, 20), (60, 60))
    cases = []
    for form, archive in (("plain", plain), ("gzip", plain.with_suffix(".tar.gz"))):
        samples = unpack_in_turns(archive, seconds, rounds)
        ours, tar = (size / (fast(samples[name]) / 1000) for name in ("ours", "tar"))
        speeds = [size / (sample / 1000) for sample in samples["ours"]]
        words = f"unpacking, {form}, against tar"
        cases.append(Case(words, ours, "MB/s", tar, UNPACK_BAR, at_least=True, samples=speeds))
    with tarfile.open(plain) as opened:
        return cases, f"archive: {len(opened.getmembers())} entries, {size:.0f} MB"


def unpack_in_turns(archive: Path, seconds: float, rounds: int) -> dict[str, list[float]]:
    """Unpack to a new directory each time; removing it is not measured.

    In memory, because there the work itself is measured: a disk is as slow for one as for the other, and never quiet.
    """
    things: dict[str, Callable[[Path], object]] = {
        "tar": lambda tree: subprocess.run(["tar", "-xf", archive, "-C", tree], check=True),
        "ours": lambda tree: unpack(os.fsencode(archive), os.fsencode(tree)),
    }
    samples: dict[str, list[float]] = {name: [] for name in things}
    end = time.monotonic() + seconds
    for number in range(rounds):
        for name in list(things)[:: -1 if number % 2 else 1]:
            tree = Path(tempfile.mkdtemp(prefix="unspill-rootfs-", dir=MEMORY if MEMORY.is_dir() else archive.parent))
            samples[name].append(timed(partial(things[name], tree)))
            remove_tree(os.fsencode(tree))
        if time.monotonic() > end:
            break
    return samples


def make_archive(kept: Path, *, files: int, most_bytes: int) -> Path:
    """Return a plain archive, with a compressed one beside it; made once, by renaming a finished one into place."""
    archive = kept / f"rootfs-{files}.tar"
    if archive.exists():
        return archive
    kept.mkdir(parents=True, exist_ok=True)
    making = kept / f"making-{os.getpid()}.tar"
    with tarfile.open(making, "w", format=tarfile.GNU_FORMAT) as tar:
        for path in found_files(files, most_bytes):
            tar.add(path, os.path.relpath(path, "/"), recursive=False)
    with open(making, "rb") as whole, gzip.open(f"{making}.gz", "wb", compresslevel=6) as compressed:
        shutil.copyfileobj(whole, compressed, 1 << 20)
    os.rename(f"{making}.gz", f"{archive}.gz")
    making.rename(archive)
    return archive


def found_files(files: int, most_bytes: int) -> Iterator[str]:
    """Yield directories, files and links that everybody may read, each directory before what is in it."""
    seen: set[str] = set()
    for source in SOURCES:
        for directory, folders, names in os.walk(source):
            folders.sort()
            if directory in seen:
                continue
            seen.add(directory)
            yield directory
            for path in sorted(os.path.join(directory, name) for name in names):
                status = os.lstat(path)
                if status.st_size > LARGEST_FILE or not (os.path.islink(path) or os.access(path, os.R_OK)):
                    continue
                files -= 1
                most_bytes -= status.st_size
                if files < 0 or most_bytes < 0:
                    return
                yield path


if __name__ == "__main__":
    main()
