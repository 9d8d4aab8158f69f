# SPDX-License-Identifier: Apache-2.0
"""The project in which the tests of a working day type their commands: Python, C and JavaScript in a git repository."""

import os
import subprocess

from tests.kernel.internet import Internet

FILES = {
    "README.md": "# Demo\n\nA small project.\n",
    "src/shapes.py": '"""Areas."""\n\nPI = 3.14\n\n\ndef circle(radius):\n    """Return an area.\n\n'
    '    >>> circle(0)\n    0.0\n    """\n    return PI * radius * radius\n\n\ndef main():\n    print(circle(1.0))\n',
    "src/hello.c": '#include <stdio.h>\n\nint main(void) {\n    puts("hello");\n    return 0;\n}\n',
    "src/index.js": "console.log([1, 2, 3].map((side) => side * side).join(' '));\n",
    "checks/__init__.py": "",
    "checks/test_shapes.py": "import sys\nimport unittest\n\nsys.path.insert(0, 'src')\nimport shapes  # noqa\n\n\n"
    "class Shapes(unittest.TestCase):\n    def test(self):\n        self.assertEqual(shapes.square(3), 9)\n",
    "checks/shapes.test.js": "require('node:test')('squares', () => { if (3 * 3 !== 9) throw new Error(); });\n",
    "scripts/report.sh": "#!/bin/sh\nwc -l src/*.*\n",
    "package.json": '{"name": "demo-project", "version": "0.1.0", "private": true}\n',
    "Makefile": "build/hello: src/hello.c\n\tmkdir -p build\n\t$(CC) -O1 -o $@ $<\n\nclean:\n\trm -rf build\n\n"
    ".PHONY: clean\n",
}


def prepare(net: Internet, **more: str) -> None:
    """Write the project, a repository with one revision in it; `more` are files besides."""
    for name, text in {**FILES, **more}.items():
        path = net.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (net.directory / "home" / ".gitconfig").write_text("[user]\n\tname = Ann\n\temail = ann@example.org\n")
    git = ["git", "-C", os.fspath(net.project), "-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "Begin"]):
        subprocess.run([*git, *words], check=True)
