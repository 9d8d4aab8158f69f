# SPDX-License-Identifier: Apache-2.0
"""`unspill init`: a file with every setting of a project, which is read as nothing, and uncommented as the defaults."""

import json
import re

import pytest

from tests.support import Ground, run_cli
from unspill import Limits, Policy
from unspill.model.policy import Network, Rules, Secrets
from unspill.policy.config import PROJECT_KEYS, parse_policy
from unspill.policy.merge import tighten

pytestmark = pytest.mark.kernel


def test_it_writes_a_file_that_changes_nothing_and_never_replaces_one(ground: Ground) -> None:
    done = run_cli("init", cwd=ground.project)
    assert done.stdout.decode() == "Wrote .unspill.toml. It changes nothing until you uncomment a line.\n"
    text = (ground.project / ".unspill.toml").read_text()
    assert all(not line or line.startswith("#") for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 120
    assert run_cli("run", "--", "true", cwd=ground.project).returncode == 0
    (ground.project / ".unspill.toml").write_text("after = 'hold'\n")
    again = run_cli("init", cwd=ground.project)
    assert (again.returncode, again.stderr.decode().splitlines()[0]) == (2, "unspill: .unspill.toml is there already")
    assert (ground.project / ".unspill.toml").read_text() == "after = 'hold'\n"
    assert run_cli("init", "--print", cwd=ground.project).stdout.decode() == text


def test_every_setting_is_in_it_with_its_default(ground: Ground) -> None:
    text = run_cli("init", "--print", cwd=ground.project).stdout.decode()
    settings = re.sub(r"^#(?! )", "", text, flags=re.MULTILINE)
    read = parse_policy(settings, where="here", trusted=False, home=b"/home/ann", base=b"/home/ann/project")
    assert tighten(Policy(), read) == Policy()
    assert {key for key in PROJECT_KEYS if getattr(read, key) not in (None, ())} | {"hidden", "environment"} == set(
        PROJECT_KEYS
    )
    assert {"hidden = []", "environment = []"} <= set(settings.splitlines())
    for table, record, left in (
        ("limits", Limits(), set()),
        ("network", Network(), {"mode"}),
        ("permissions", Rules(), set()),
        ("secrets", Secrets(), {"reveal"}),
    ):
        assert dict(getattr(read, table)).keys() == record.as_dict().keys() - left


def test_a_link_is_not_written_through(ground: Ground) -> None:
    (ground.project / ".unspill.toml").symlink_to(ground.home / "elsewhere")
    assert run_cli("init", cwd=ground.project).returncode == 2
    assert not (ground.home / "elsewhere").exists()


def test_programs_are_told_where_it_is(ground: Ground) -> None:
    told = json.loads(run_cli("init", "--json", cwd=ground.project).stdout)
    assert told["file"] == f"{ground.project}/.unspill.toml"
