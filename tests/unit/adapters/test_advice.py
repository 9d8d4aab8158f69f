# SPDX-License-Identifier: Apache-2.0
"""Remedies of the library in the words of a model, and none of them lost."""

import ast
from pathlib import Path

import pytest

import unspill
from unspill.adapters.answers import answer_error, file_advice, for_user, without_paths
from unspill.errors import FileError, HostError, RootRefused, SandboxUnavailable, StoreError, UnspillError, UsageError

SOURCES = Path(unspill.__file__).parent
KINDS = [
    *("not_found", "is_directory", "not_a_directory", "not_a_file", "permission_denied", "exists", "too_large"),
    *("not_text", "changed", "not_found_in_file", "ambiguous", "failed"),
]


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        ("", ""),
        ("Give a directory that is there.", "Give a directory that is there."),
        ("Run `unspill doctor`.", "What the user can do: Run `unspill doctor`."),
        ("Why: no. Use `--ask`, or `x=`.", "Why: no. What the user can do: Use `--ask`, or `x=`."),
        ("Set x in your own configuration.", "What the user can do: Set x in your own configuration."),
    ],
)
def test_words_of_a_command_line_are_for_the_user(remedy: str, expected: str) -> None:
    assert for_user(remedy) == expected


def test_no_remedy_of_the_library_has_words_of_a_command_line_for_a_model() -> None:
    """Every constant remedy in the sources, as it is told to a model."""
    found = 0
    for source in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if not isinstance(node, ast.keyword) or node.arg != "remedy" or not isinstance(node.value, ast.Constant):
                continue
            remedy = str(node.value.value)
            told = for_user(remedy)
            found += told != remedy
            before = told.partition("What the user can do: ")[0]
            assert "`unspill" not in before
            assert "--" not in before
    assert found > 10


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_error_has_its_advice_or_the_librarys_own(kind: str) -> None:
    error = FileError("x: no", kind=kind, remedy="Do something else.")  # type: ignore[arg-type]
    advice = file_advice(error, is_masked=False)
    assert advice.endswith(".")
    assert (advice == "Do something else.") is (kind in ("not_a_file", "failed"))
    assert ("masked" in file_advice(error, is_masked=True)) is (kind == "not_found")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", ""),
        ("too many open files: Too many open files", "too many open files: Too many open files"),
        ("Give a name, such as src/app.py or and/or", "Give a name, such as src/app.py or and/or"),
        ("unspill can't create a layer in /home/me/.state: No space left on device.", "No space left on device."),
        ("/home/me/.state can't be repaired: Permission denied", "Permission denied"),
        ("could not start the spawner process: [Errno 2] No such file: '/home/me/bwrap'", ""),
        ("The playground /home/me/p belongs to user 7.", ""),
        ("b'/home/me' is gone", ""),
        ("/home/me", ""),
    ],
)
def test_a_path_of_the_person_is_not_told(message: str, expected: str) -> None:
    assert without_paths(message) == expected


DOCTOR = (
    "What the user can do: Run `unspill doctor`. If it finds no problem, this is a bug in unspill: please report it."
)
ERRORS: dict[str, tuple[UnspillError, str]] = {
    "our failure": (
        SandboxUnavailable("unspill can't create a layer in /home/me/.state: No space left on device."),
        f"ERROR: the sandbox failed: No space left on device. {DOCTOR}\n",
    ),
    "a remedy": (
        SandboxUnavailable("it failed", remedy="Remove /home/me/.state."),
        f"ERROR: it failed. {DOCTOR}\n",
    ),
    "the store": (StoreError("The audit /home/me/audit can't be read."), "ERROR: the sandbox failed (store)."),
    "the project": (RootRefused("/home/me/x can't be a root: it is gone."), "ERROR: the sandbox failed: it is gone. "),
    "what a model gave": (UsageError("not a path: /a b"), "ERROR: not a path: /a b.\n"),
    "the host, when it is opened": (
        HostError("There is no bwrap at /x/bwrap."),
        "ERROR: There is no bwrap at /x/bwrap.",
    ),
    "a file of the sandbox": (FileError("/project/x: it failed", kind="failed"), "ERROR: /project/x: it failed.\n"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_where_the_sandbox_fails_no_path_is_told(case: str) -> None:
    """Control: what a model gave itself, or knows as its commands do, is named."""
    error, expected = ERRORS[case]
    answer = answer_error(error)
    assert answer.text.startswith(expected)
    assert "/home/me" not in f"{answer.text}{answer.values}"
