# SPDX-License-Identifier: Apache-2.0
"""What protection costs: starting with the filter and the limits, with the proxy too, and the proxy against socat.

The library's own run of `true`, everything included, in turns: without filter and limits, which no other run ever is,
with both as every run has them, and with a proxy besides. The command line is measured with and without a proxy.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from baseline import run_program
from bridge import HELD, Server, measure_bridges
from measuring import Case, Turns, make_parser, report

from unspill import Limits, Policy, Sandbox
from unspill.layers.trees import remove_tree
from unspill.model.policy import Network
from unspill.sandbox import planning

PROTECTED_BAR = 1.15
PROXY_BAR = 1.4
HOSTS = ("example.org",)
# Root has cgroups where nobody else has
AS_ROOT = not os.getuid()
UNLIMITED = Limits(
    wall_s=None,
    output_bytes=None,
    layer_bytes=None,
    layer_entries=None,
    file_bytes=None,
    processes=None,
    memory_bytes=None,
    open_files=None,
)


def main() -> None:
    arguments = parse_arguments()
    directory = Path(tempfile.mkdtemp(prefix="unspill-protection-", dir=Path.home()))
    os.environ["UNSPILL_STATE_DIR"] = str(directory / "state")
    allow_descriptors()
    # Before there is any thread: it is a fork
    server = Server()
    try:
        cases = [*measure_library(directory, arguments), *measure_command_line(directory, arguments)]
        with Sandbox(make_project(directory, "bridged"), policy=Policy(allow_root=AS_ROOT)) as sandbox:
            cases += measure_bridges(sandbox, server, directory, arguments)
            version = sandbox.facts.bwrap.version if sandbox.facts.bwrap else "none"
            note = f"bwrap {version}, engine {sandbox.engine}, cgroup {sandbox.facts.cgroup}"
        report("protection", cases, arguments, [note])
    finally:
        server.close()
        remove_tree(os.fsencode(directory))


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--quick", action="store_true", help="too few samples to judge by")
    arguments = parser.parse_args()
    arguments.times = 4.0 if arguments.full else 0.15 if arguments.quick else 1.0
    return arguments


def make_project(directory: Path, name: str) -> Path:
    project = directory / name
    project.mkdir()
    (project / "file").write_text("content\n")
    return project


def measure_library(directory: Path, arguments: argparse.Namespace) -> list[Case]:
    bare = Sandbox(make_project(directory, "bare"), policy=Policy(limits=UNLIMITED, allow_root=AS_ROOT))
    bare._project = bare._project.with_means(facts=bare.facts.replace(cgroup="none"))
    protected = Sandbox(make_project(directory, "protected"), policy=Policy(allow_root=AS_ROOT))
    proxied = Sandbox(
        make_project(directory, "proxied"), policy=Policy(network=Network(hosts=HOSTS), allow_root=AS_ROOT)
    )
    turns = Turns(seconds=15 * arguments.times, rounds=int(250 * arguments.times))

    def run_bare() -> None:
        with no_filter():
            run_true(bare)

    with no_filter():
        assert b"Seccomp:\t0" in bare.run(["cat", "/proc/self/status"]).stdout.kept()
    turns.run({"bare": run_bare, "protected": lambda: run_true(protected), "proxied": lambda: run_true(proxied)})
    for sandbox in (bare, protected, proxied):
        sandbox.close()
    return [
        Case(words, turns.median(name), "ms", turns.median("bare"), bar, samples=turns.samples[name])
        for name, words, bar in (
            ("protected", "library run of true with filter and limits", PROTECTED_BAR),
            ("proxied", "library run of true with filter, limits and proxy", PROXY_BAR),
        )
    ]


@contextmanager
def no_filter() -> Iterator[None]:
    """Have plans made without a filter of system calls, for which there is no setting."""
    names = vars(planning)
    build = names["build_filter"]
    names["build_filter"] = lambda *_given: b""
    try:
        yield
    finally:
        names["build_filter"] = build


def run_true(sandbox: Sandbox) -> None:
    result = sandbox.run(["true"])
    assert result.exit_code == 0, result


def measure_command_line(directory: Path, arguments: argparse.Namespace) -> list[Case]:
    """Measure the program with and without a proxy: there the modules of the proxy have to be loaded as well."""
    program = str(Path(sys.executable).with_name("unspill"))
    turns = Turns(seconds=8 * arguments.times, rounds=int(60 * arguments.times))

    def configure(name: str, settings: str) -> Path:
        config = directory / f"{name}-config"
        (config / "unspill").mkdir(parents=True)
        (config / "unspill" / "config.toml").write_text(f"allow_root = {str(AS_ROOT).lower()}\n[network]\n{settings}\n")
        make_project(directory, name)
        return config

    def run(name: str) -> None:
        os.environ["XDG_CONFIG_HOME"] = str(configs[name])
        run_program([program, "run", "--project", str(directory / name), "--", "true"])

    configs = {
        "plain-cli": configure("plain-cli", "hosts = []"),
        "proxied-cli": configure("proxied-cli", f"hosts = {[*HOSTS]}"),
    }
    try:
        turns.run({name: partial(run, name) for name in configs})
    finally:
        del os.environ["XDG_CONFIG_HOME"]
    plain, proxied = turns.median("plain-cli"), turns.samples["proxied-cli"]
    words = "unspill run -- true with a proxy, against without"
    return [Case(words, turns.median("proxied-cli"), "ms", plain, PROXY_BAR, samples=proxied)]


def allow_descriptors() -> None:
    """Have room for both ends of all connections; the program itself does the same."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * HELD + 256
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


if __name__ == "__main__":
    main()
