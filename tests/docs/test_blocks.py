# SPDX-License-Identifier: Apache-2.0
"""How documents are read: which blocks are found, what is run of them, and what counts as the same output."""

import pytest

from tests.docs.blocks import BadBlock, Block, Step, find_blocks, matches, steps

DOCUMENT = """\
# Title

```console
$ echo one
one
```

<!-- not run: needs root -->
```sh
apt install bubblewrap
```

1. In a list:
   ```sh
   true
   ```

````text
```sh
not a block of its own
```
````
"""


def test_blocks_are_found_with_language_line_and_note() -> None:
    assert list(find_blocks(DOCUMENT)) == [
        Block(language="console", line=4, content=("$ echo one", "one")),
        Block(language="sh", line=10, content=("apt install bubblewrap",), not_run="needs root"),
        Block(language="sh", line=15, content=("true",)),
        Block(language="text", line=19, content=("```sh", "not a block of its own", "```")),
    ]


def test_a_block_that_is_never_closed_is_an_error() -> None:
    with pytest.raises(BadBlock, match="line 2"):
        list(find_blocks("text\n```sh\ntrue\n"))


def test_a_note_without_a_reason_is_no_note() -> None:
    (block,) = find_blocks("<!-- not run: -->\n```sh\ntrue\n```\n")
    assert block.not_run is None


def test_a_console_block_is_split_into_commands_with_their_output() -> None:
    content = ("$ echo one", "one", "$ true", "$ cat <<E", "> two", "> E", "two", "> not a command")
    assert steps(Block(language="console", line=10, content=content)) == (
        Step(line=10, script="echo one", expected=("one",)),
        Step(line=12, script="true", expected=()),
        Step(line=13, script="cat <<E\ntwo\nE", expected=("two", "> not a command")),
    )


def test_a_script_is_one_step_whose_output_does_not_matter() -> None:
    (step,) = steps(Block(language="sh", line=3, content=("a", "b")))
    assert step == Step(line=3, script="a\nb", expected=None)


def test_a_program_is_one_step_that_python_reads() -> None:
    (step,) = steps(Block(language="python", line=3, content=("import os", "print(os.sep)")))
    script = "python3 - <<'END-OF-BLOCK'\nimport os\nprint(os.sep)\nEND-OF-BLOCK"
    assert step == Step(line=3, script=script, expected=None)


def test_output_without_a_command_is_an_error() -> None:
    with pytest.raises(BadBlock, match="line 7"):
        steps(Block(language="console", line=7, content=("one",)))


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ((), ""),
        (("one", "", "two", ""), "one\n\ntwo\n"),
        (("one",), "one"),
        (("took ... s",), "took 0.25 s\n"),
        (("...",), ""),
        (("one", "...", "four"), "one\ntwo\nthree\nfour\n"),
        (("one", "...", "four"), "one\nfour\n"),
        (("a+b (c)",), "a+b (c)\n"),
        (("padded",), "padded   \n"),
    ],
)
def test_output_as_shown_matches(expected: tuple[str, ...], printed: str) -> None:
    assert matches(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ((), "one\n"),
        (("one",), ""),
        (("one",), "one\ntwo\n"),
        (("took ... s",), "took 0.25\n s\n"),
        (("one", "...", "four"), "one\ntwo\n"),
        (("a.b",), "axb\n"),
    ],
)
def test_other_output_does_not_match(expected: tuple[str, ...], printed: str) -> None:
    assert not matches(expected, printed)
