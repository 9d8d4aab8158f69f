# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md says every setting with its default and who may set it, and no other."""

import os

import pytest

from tests.docs.blocks import Block, find_blocks
from tests.docs.tables import ROOT, code, rows_of, section
from unspill import Limits, Policy
from unspill.model.policy import Network, Rules, Secrets
from unspill.model.rootfs import RootfsSpec
from unspill.policy.config import AFTER, ENGINES, PROFILES, PROJECT_KEYS, SOURCES, TMP, VIEWS, Settings, parse_policy
from unspill.policy.defaults import ALLOWED_VARIABLES, is_private_variable, is_refused_variable, mount_place_problem
from unspill.policy.merge import tighten, with_own
from unspill.record import Record

DOCUMENT = "docs/configuration.md"
HOME = b"/home/ann"
KEYS = rows_of(DOCUMENT, "Keys")
LIMITS = rows_of(DOCUMENT, "Limits")
TABLES: dict[str, type[Record]] = {"network": Network, "permissions": Rules, "secrets": Secrets}
EXAMPLES = [block for block in find_blocks((ROOT / DOCUMENT).read_text("utf-8")) if block.language == "toml"]


def default_of(key: str, cell: str, table: str = "") -> object:
    """Return the value that a file with the documented default would set."""
    (value,) = code(cell)
    settings = parse_policy(f"{table}\n{key} = {value}", where="document", trusted=True, home=HOME)
    return dict(settings.limits)[key] if table else getattr(settings, key)


def test_every_key_is_documented_and_no_other() -> None:
    assert sorted(code(row[0])[0] for row in KEYS) == sorted(set(Settings.__match_args__) - {"where"})


def test_every_limit_is_documented_and_no_other() -> None:
    assert [code(row[0])[0] for row in LIMITS] == list(Limits.__match_args__)


def test_documented_defaults_are_those_of_the_code() -> None:
    documented = {
        code(key)[0]: None if default == "unset" else default_of(code(key)[0], default)
        for key, _value, default, _project, _meaning in KEYS
        if code(key)[0] not in ("limits", *TABLES)
    }
    assert documented == {key: getattr(Policy(), key) for key in documented}


def test_documented_default_limits_are_those_of_the_code() -> None:
    documented = {code(key)[0]: default_of(code(key)[0], default, "[limits]") for key, _, default, _ in LIMITS}
    assert documented == Limits().as_dict()


def test_what_a_project_may_set_is_documented() -> None:
    assert {code(row[0])[0] for row in KEYS if row[3] != "no"} == set(PROJECT_KEYS)


@pytest.mark.parametrize("table", TABLES)
def test_every_key_of_a_table_is_documented_with_its_default_and_who_may_set_it(table: str) -> None:
    rows = rows_of(DOCUMENT, table.capitalize())
    assert [code(row[0])[0] for row in rows] == list(TABLES[table].__match_args__)
    documented: dict[str, object] = {}
    for key, values, default, project, _meaning in rows:
        (name,), (value,) = code(key), code(default)
        text = f"[{table}]\n{name} = {value}"
        settings = parse_policy(text, where="document", trusted=True, home=HOME)
        documented |= dict(getattr(settings, table))
        for choice in code(values):
            parse_policy(f"[{table}]\n{name} = {choice}", where="document", trusted=True, home=HOME)
        asked = parse_policy(text, where="document", trusted=False, home=HOME, base=HOME)
        if project == "no":
            with pytest.raises(Exception, match="only your own configuration"):
                tighten(Policy(), asked)
        else:
            assert tighten(Policy(), asked) == Policy()
    assert documented == TABLES[table]().as_dict()


@pytest.mark.parametrize(
    ("key", "values"),
    [("view", VIEWS), ("after", AFTER), ("engine", ENGINES), ("profile", PROFILES), ("tmp", TMP)],
)
def test_every_choice_is_documented(key: str, values: tuple[str, ...]) -> None:
    (row,) = [row for row in KEYS if code(row[0]) == [key]]
    assert code(row[1]) == [f'"{value}"' for value in values]


def test_every_key_of_a_provision_is_documented_with_its_default() -> None:
    rows = rows_of(DOCUMENT, "Rootfs")
    assert [code(row[0])[0] for row in rows] == list(RootfsSpec.__match_args__)
    assert code(rows[0][1]) == [f'"{source}"' for source in SOURCES]
    lines = [f"{code(key)[0]} = {code(default)[0]}" for key, _value, default, _meaning in rows[1:]]
    text = "\n".join(["[provision]", 'source = "alpine"', *lines])
    settings = parse_policy(text, where="document", trusted=True, home=HOME)
    assert settings.provision == RootfsSpec(source="alpine")


def test_the_places_that_are_never_free_are_documented() -> None:
    text = section(DOCUMENT, "Rootfs")
    named = [place for place in code(text) if place.startswith("/")]
    assert "/tmp" in named
    assert all(mount_place_problem(place.encode()) for place in named)


def test_limits_that_are_never_unlimited_are_documented() -> None:
    never = {code(row[0])[0] for row in LIMITS if "never unlimited" in row[3]}
    for name in Limits().as_dict():
        text = f'[limits]\n{name} = "unlimited"'
        if name in never:
            with pytest.raises(Exception, match="can't be unlimited"):
                parse_policy(text, where="document", trusted=True, home=HOME)
        else:
            assert parse_policy(text, where="document", trusted=True, home=HOME).limits == ((name, None),)


def test_the_list_of_variables_is_that_of_the_code() -> None:
    (block,) = find_blocks(section(DOCUMENT, "Variables"))
    assert sorted(" ".join(block.content).split()) == sorted(ALLOWED_VARIABLES)


def test_variables_called_private_or_refused_are() -> None:
    text = section(DOCUMENT, "Variables")
    for name in ("MY_TOKEN", "MY_KEY", "MY_PASSWORD", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS"):
        assert is_private_variable(name)
    for name in ("LD_PRELOAD", "BASH_ENV"):
        assert is_refused_variable(name)
    assert all(word in text for word in ("*_TOKEN", "*_KEY", "*_PASSWORD", "DBUS_*", "LD_*", "BASH_ENV"))


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.content[0])
def test_examples_are_accepted(block: Block) -> None:
    is_project = block.content[0] == "# .unspill.toml"
    settings = parse_policy(
        "\n".join(block.content), where="document", trusted=not is_project, home=HOME, base=HOME + b"/project"
    )
    merged = tighten(Policy(), settings) if is_project else with_own(Policy(), settings)
    assert merged != Policy()


def test_the_examples_are_of_both_files() -> None:
    assert [os.path.basename(block.content[0].split()[-1]) for block in EXAMPLES] == [
        "config.toml",
        ".unspill.toml",
        "config.toml",
        "config.toml",
        "config.toml",
    ]
