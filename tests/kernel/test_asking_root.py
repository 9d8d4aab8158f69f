# SPDX-License-Identifier: Apache-2.0
"""A sandbox for root: refused, unless the person's configuration lets it be asked and the person says yes."""

import pytest

from tests.kernel.answering import Person, opened
from tests.support import Ground, printed
from unspill import DeniedError, Rules
from unspill.errors import RootCallerRefused

pytestmark = [pytest.mark.kernel, pytest.mark.root]

ASKED = Rules(as_root="ask")


def test_root_is_not_asked_about_by_default(ground: Ground) -> None:
    person = Person()
    with pytest.raises(RootCallerRefused):
        opened(ground, person)
    assert person.asked == []


def test_root_is_served_after_a_yes(ground: Ground) -> None:
    person = Person()
    assert printed(opened(ground, person, permissions=ASKED).run("id -u")) == "0\n"
    assert person.texts == ["Open a sandbox as root, where it protects less?"]
    assert person.asked[0].request.is_dangerous


def test_root_is_refused_after_a_no(ground: Ground) -> None:
    with pytest.raises(DeniedError, match="Open a sandbox as root"):
        opened(ground, Person(False), permissions=ASKED)


def test_root_is_refused_where_nobody_answers(ground: Ground) -> None:
    with pytest.raises(RootCallerRefused):
        ground.sandbox(permissions=ASKED)


def test_an_answer_for_root_can_be_remembered(ground: Ground) -> None:
    person = Person("always")
    for _ in range(2):
        assert opened(ground, person, permissions=ASKED).run("true").ok
    assert len(person.asked) == 1
