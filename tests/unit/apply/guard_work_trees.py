# SPDX-License-Identifier: Apache-2.0
"""Where the work tree of a repository may lie, as cases of the guard: that of a new module, as git itself writes it."""

from tests.unit.apply.guard_cases import MINIMAL, SHA, Case, bare, only
from tests.unit.apply.guard_given import GONE, Link, What
from unspill.policy import held as rows


def module(tree: str, *others: tuple[str, What], name: str = "lib") -> dict[str, What]:
    """Return the repository of a new module, with the setting that leads to its work tree."""
    return {**bare(f".git/modules/{name}", config=MINIMAL + f"\tworktree = {tree}\n"), **dict(others)}


MODULE_CONFIG = ".git/modules/lib/config"
BACK = ("lib/.git", "gitdir: ../.git/modules/lib\n")
WORK_TREES = [
    Case(MODULE_CONFIG, module("../../../lib", BACK), None),
    Case(MODULE_CONFIG, module("../../../lib"), None, dict([BACK]), id="the work tree is there"),
    Case(MODULE_CONFIG, module("../../../lib", BACK), None, dict([BACK]), id="the work tree is there, and comes"),
    Case(
        ".git/modules/a/b/config",
        module("../../../../x/lib", ("x/lib/.git", "gitdir: ../../.git/modules/a/b\n"), name="a/b"),
        None,
    ),
    Case(
        ".git/modules/lib/modules/in/config",
        module(
            "../../../../../lib/in",
            ("lib/in/.git", "gitdir: ../../.git/modules/lib/modules/in\n"),
            name="lib/modules/in",
        ),
        None,
        dict([BACK]),
    ),
    Case(MODULE_CONFIG, module("../../../lib"), rows.SETTINGS, id="nothing leads back"),
    Case(MODULE_CONFIG, module("../../../lib"), rows.SETTINGS, {"lib/file": ""}, id="nothing in it leads back"),
    *(
        Case(MODULE_CONFIG, module("../../../lib", ("lib/.git", text)), rows.SETTINGS, id=f"it leads to {text!r}")
        for text in ("gitdir: ../.git/modules/other\n", "gitdir: ../.git\n", "gitdir: ../elsewhere\n", "text\n", "")
    ),
    Case(
        MODULE_CONFIG,
        module("../../../lib", BACK),
        rows.SETTINGS,
        {"lib/.git": "gitdir: ../.git/modules/other\n"},
        id="it led to another one",
    ),
    Case(MODULE_CONFIG, module("../../../lib"), rows.SETTINGS, {"lib/.git/HEAD": SHA}, id="another repository"),
    Case(MODULE_CONFIG, module("../../../lib", ("lib/.git", GONE)), rows.SETTINGS, dict([BACK]), id="it goes"),
    Case(MODULE_CONFIG, module("../../../lib", ("lib/.git", Link("../f"))), rows.SETTINGS, {"f": BACK[1]}),
    *(
        Case(MODULE_CONFIG, module(tree, BACK), rows.SETTINGS, id=tree)
        for tree in ("", ".", "..", "../..", "../../..", "../../../..", "../../hooks", "../../../.git/hooks", "hooks")
    ),
    Case(
        MODULE_CONFIG,
        module("../../hooks", (".git/hooks/.git", "gitdir: ../modules/lib\n")),
        rows.SETTINGS,
        id="hooks that lead back",
    ),
    Case(
        MODULE_CONFIG,
        module("../../../.GIT/x", (".GIT/x/.git", "gitdir: ../../.git/modules/lib\n")),
        rows.SETTINGS,
        id="another spelling",
    ),
    Case(
        MODULE_CONFIG,
        module("../../../s.git/hooks", ("s.git/hooks/.git", "gitdir: ../../.git/modules/lib\n")),
        rows.SETTINGS,
        bare("s.git"),
        id="a bare repository",
    ),
    Case(
        MODULE_CONFIG,
        module("../../../s.git", ("s.git/.git", "gitdir: ../.git/modules/lib\n")),
        rows.SETTINGS,
        bare("s.git"),
        id="a bare repository itself",
    ),
    Case(
        MODULE_CONFIG,
        module("../../../lib", ("lib", Link("real")), ("real/.git", BACK[1])),
        rows.SETTINGS,
        id="a link",
    ),
    Case(MODULE_CONFIG, module("../../../lib"), rows.SETTINGS, {"lib": Link("real"), "real/.git": BACK[1]}),
    Case(
        MODULE_CONFIG,
        module("../../../x/lib"),
        rows.SETTINGS,
        {"x": Link("real"), "real/lib/.git": "gitdir: ../../.git/modules/lib\n"},
        id="behind a link",
    ),
    Case(
        ".git/config",
        {".git/config": MINIMAL + "\tworktree = ../wt\n", "wt/.git": "gitdir: ../.git\n"},
        rows.SETTINGS,
        id="no module",
    ),
    Case(
        "x/config",
        {**bare("x", config=MINIMAL + "\tworktree = ../wt\n"), "wt/.git": "gitdir: ../x\n"},
        rows.SETTINGS,
        id="no module, and not in .git",
    ),
    only(".git/config.worktree", "[core]\n\tworktree = hooks\n", rows.SETTINGS),
    only(
        "shared",
        "[core]\n\tworktree = .git\n",
        rows.SETTINGS,
        before={".git/config": "[include]\n\tpath = ../shared\n"},
    ),
    *(
        Case(
            MODULE_CONFIG,
            {MODULE_CONFIG: after},
            rows.SETTINGS,
            {**bare(".git/modules/lib", config=before), **dict([BACK])},
            id=f"{before[len(MINIMAL) :]!r} to {after[len(MINIMAL) :]!r}",
        )
        for before, after in (
            (MINIMAL, MINIMAL + "\tworktree = ../../../lib\n"),
            (MINIMAL + "\tworktree = ../../../lib\n", MINIMAL),
            (MINIMAL + "\tworktree = ../../../lib\n", MINIMAL + "\tworktree = ../../hooks\n"),
        )
    ),
    Case(".git/config", {".git/config": MINIMAL + "\tworktree = hooks\n"}, rows.SETTINGS, {".git/config": MINIMAL}),
    *(
        Case(path, {path: what}, row, {".git/config": MINIMAL + "\tworktree = ../x/wt\n", "x/wt/f": "", "y/f": ""})
        for path, what, row in (
            ("x/wt", Link("../.git/hooks"), rows.GIT_LINK),
            ("x", Link("y"), rows.GIT_LINK),
            ("x/wt/f", Link("g"), None),
            ("y", Link("x"), None),
            ("x/wt/g", "text", None),
        )
    ),
]
