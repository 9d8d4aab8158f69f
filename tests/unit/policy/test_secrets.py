# SPDX-License-Identifier: Apache-2.0
"""The table of names that are secrets of a project: exact, without examples and what projects need."""

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.apply.guard import SecretPlaces
from unspill.errors import PolicyError
from unspill.model.policy import Policy, Secrets
from unspill.policy.config import parse_policy
from unspill.policy.merge import tighten, with_own
from unspill.policy.secrets import PROJECT_SECRETS, SECRET_NAMES, masked_names, revealed_names

HOME = b"/home/ann"
PROJECT = b"/home/ann/project"

EXAMPLES = """
.env.example .env.sample .env.template .env.dist .env.defaults .env.schema .npmrc.example .envrc.example
credentials.json.example credentials.example.json secrets.example.yml terraform.tfvars.example id_rsa.pub
id_ed25519.pub kubeconfig.template .pypirc.template
""".split()
NEEDED = """
package.json .yarnrc.yml .gitconfig .gitignore pyproject.toml Cargo.toml google-services.json .flaskenv Makefile
gradle.properties local.properties settings.py secrets.py docker-compose.yml terraform.tfstate cert.pem server.crt
known_hosts authorized_keys
""".split()


def test_what_the_issue_names_is_in_the_table() -> None:
    wanted = b".env .env.local .npmrc .pypirc .netrc id_rsa id_ed25519 credentials.json".split()
    assert set(wanted) <= set(SECRET_NAMES)


def test_every_name_is_there_once_with_a_reason_and_is_a_plain_name() -> None:
    assert len(SECRET_NAMES) == len(set(SECRET_NAMES))
    assert all(reason and names for reason, names in PROJECT_SECRETS.items())
    assert all(name and b"/" not in name and len(name) < 256 for name in SECRET_NAMES)


@pytest.mark.parametrize("name", [*EXAMPLES, *NEEDED])
def test_examples_and_what_projects_need_are_not_in_the_table(name: str) -> None:
    assert name.encode() not in SECRET_NAMES


def test_no_name_is_masked_where_the_person_says_so() -> None:
    assert masked_names(Secrets(mask=False, names=(b"x",))) == ()


def test_names_of_the_policy_are_added() -> None:
    assert set(masked_names(Secrets(names=(b"x", b".env")))) == {*SECRET_NAMES, b"x"}


@pytest.mark.parametrize(
    ("revealed", "directory", "names"),
    [
        ((b".env",), PROJECT, {b".env"}),
        ((b"./.env",), PROJECT, {b".env"}),
        ((b"config/.env",), PROJECT, set()),
        ((b"config/.env",), PROJECT + b"/config", {b".env"}),
        ((b"../other/.env",), b"/home/ann/other", {b".env"}),
        ((b"/home/ann/other/.env",), b"/home/ann/other", {b".env"}),
        ((b"/home/ann/other/.env",), PROJECT, set()),
        ((b"sub/../.env", b".npmrc"), PROJECT, {b".env", b".npmrc"}),
    ],
)
def test_a_path_reveals_that_file_and_no_other(
    revealed: tuple[bytes, ...], directory: bytes, names: set[bytes]
) -> None:
    assert revealed_names(revealed, PROJECT, directory) == names


@given(st.lists(st.sampled_from([b".env", b"config", b"..", b".", b"a"]), min_size=1, max_size=5))
def test_nothing_is_revealed_in_a_directory_that_its_path_does_not_lead_to(parts: list[bytes]) -> None:
    path = b"/".join(parts)
    whole = posixpath.normpath(PROJECT + b"/" + path)
    for directory in (PROJECT, PROJECT + b"/config", b"/home/ann"):
        for name in revealed_names((path,), PROJECT, directory):
            assert directory + b"/" + name == whole


def test_the_first_look_knows_every_component_that_may_matter() -> None:
    places = SecretPlaces(Secrets(names=(b"My.Key",), directories=(b"A/b",)))
    assert places.names >= {b".env", b"my.key", b"a", b"b", b"serviceaccountkey.json"}


def parsed(text: str, *, trusted: bool) -> Policy:
    settings = parse_policy(text, where="file", trusted=trusted, home=HOME, base=None if trusted else PROJECT)
    return with_own(Policy(), settings) if trusted else tighten(Policy(secrets=Secrets(names=(b"own",))), settings)


def test_a_person_may_set_all_of_it() -> None:
    text = '[secrets]\nmask = true\nnames = ["x"]\ndirectories = ["a/b"]\nreveal = [".env", "/srv/x/.env", "~/y/.env"]'
    assert parsed(text, trusted=True).secrets == Secrets(
        names=(b"x",), directories=(b"a/b",), reveal=(b".env", b"/srv/x/.env", b"/home/ann/y/.env")
    )


def test_a_project_only_adds() -> None:
    found = parsed('[secrets]\nnames = ["x"]\ndirectories = ["config"]', trusted=False).secrets
    assert found == Secrets(names=(b"own", b"x"), directories=(b"config",))


@pytest.mark.parametrize("text", ['reveal = [".env"]', "mask = false"])
def test_a_project_reveals_nothing(text: str) -> None:
    with pytest.raises(PolicyError, match=r"secrets\."):
        parsed(f"[secrets]\n{text}", trusted=False)


@pytest.mark.parametrize(
    "text",
    [
        'names = ["a/b"]', 'names = [""]', 'names = [".."]', 'names = ["*.pem"]', 'names = [1]', "names = 1",
        "mask = 1",
        'directories = ["/etc"]', 'directories = ["../x"]', 'directories = ["a//b"]', 'directories = ["."]',
        'reveal = ["../x"]', 'other = 1', 'names = ["a\\u0000"]', f'names = ["{"x" * 256}"]',
        f"names = {[f'n{number}' for number in range(300)]}",
    ],
)  # fmt: skip
def test_what_is_not_understood_stops_the_run(text: str) -> None:
    with pytest.raises(PolicyError, match="secrets"):
        parsed(f"[secrets]\n{text}", trusted=True)
