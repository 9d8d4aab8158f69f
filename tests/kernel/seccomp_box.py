# SPDX-License-Identifier: Apache-2.0
"""Commands under a filter that the kernel really loaded, by bwrap alone: nothing else of unspill takes part."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.seccomp.rules import numbers_of

INSIDE: Final = Path(__file__).with_name("seccomp_inside.py")
MACHINE: Final = platform.machine()

# Makes calls by the entries for 32-bit programs and prints their results
FOREIGN: Final = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <errno.h>
#include <sys/syscall.h>
static long int80(long number, long argument) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(argument), "c"(0), "d"(0), "S"(0), "D"(0)
                     : "memory", "r8", "r9", "r10", "r11");
    return (int)result;
}
int main(int count, char **words) {
    /* getpid and unshare(CLONE_NEWUSER) have the numbers 20 and 310 there */
    printf("[%d, %ld, %ld", getpid(), int80(20, 0), int80(310, 0x10000000));
    if (count > 1)
        for (int number = 0; number < 1024; number++) printf(", %ld", int80(number, -1));
    long x32 = syscall(0x40000000 | SYS_getpid);
    printf(", %ld]\n", x32 < 0 ? -(long)errno : x32);
}
"""


@dataclass(frozen=True)
class Box:
    """A bubblewrap and the one directory that commands in it may write."""

    bwrap: Path
    work: Path

    def run(
        self, program: bytes | None, *command: str | Path, options: Sequence[str] = (), timeout: float = 50
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command under a program, or under none."""
        words = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--unshare-all"]
        words += ["--die-with-parent", "--new-session", "--bind", str(self.work), str(self.work)]
        words += ["--chdir", str(self.work), "--setenv", "HOME", str(self.work), *options]
        passed = []
        if program is not None:
            descriptor = os.memfd_create("filter")
            os.write(descriptor, program)
            os.lseek(descriptor, 0, os.SEEK_SET)
            words += ["--seccomp", str(descriptor)]
            passed.append(descriptor)
        try:
            return subprocess.run(
                [self.bwrap, *words, "--", *command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                pass_fds=passed,
                timeout=timeout,
            )
        finally:
            for descriptor in passed:
                os.close(descriptor)

    def inside(self, program: bytes | None, *words: str) -> dict[str, Any]:
        """Run the script of attempts and return what it tells."""
        result = self.run(program, "/usr/bin/python3", "-I", INSIDE, *words)
        assert result.returncode == 0, result
        told: dict[str, Any] = json.loads(result.stdout)
        return told

    def attempts(self, program: bytes | None) -> dict[str, str]:
        """Return what came of each attempt: "done", or the name of the error."""
        return self.inside(program, "attempts", *(f"{name}={number}" for name, number in numbers_of(MACHINE).items()))

    def errors(self, program: bytes | None, numbers: Sequence[int]) -> dict[int, int]:
        """Return the error of each call, made with arguments that no call can take."""
        told = self.inside(program, "numbers", *map(str, numbers))
        return {int(number): error for number, error in told.items()}

    def compile(self, source: str, name: str = "program") -> Path:
        """Compile a C program and return its path."""
        path = self.work / name
        subprocess.run(["gcc", "-O1", "-o", path, "-x", "c", "-"], input=source, text=True, check=True)
        return path
