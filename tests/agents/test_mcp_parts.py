# SPDX-License-Identifier: Apache-2.0
"""Parts of the MCP server by themselves: what a wire can't show, because it would take too long or too much."""

import asyncio
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import Ground
from unspill.adapters.answers import Answer
from unspill.adapters.mcp import resources
from unspill.adapters.mcp.questions import LONGEST_S, ClientApprover, PendingQuestion, make_form
from unspill.adapters.mcp.resources import CallHistory, OutputBuffer, Projects
from unspill.adapters.mcp.server import READING, Call, Calls, last_line
from unspill.errors import SandboxUnavailable, UsageError
from unspill.model.permission import Allowed, Denied, NetworkForCommand, Question
from unspill.model.run import Output, OutputChunk
from unspill.permissions.question import make_question

pytestmark = pytest.mark.agents

NETWORK = NetworkForCommand(project=b"/p", sandbox="1" * 16, argv=(b"git", b"fetch"), cwd=b"/p")
BYTES = st.lists(st.sampled_from([b"a", "ä".encode(), "€".encode(), b"\xff", b"\xc3", b"\n"])).map(b"".join)


def question(wait_s: float = 20.0) -> Question:
    return make_question(NETWORK, NETWORK.scopes, wait_s=wait_s)


def read_on(output: Output, size: int) -> tuple[str, list[str]]:
    """Read an output in parts of so many bytes; return what it has, and what was said of it."""
    found, said, start = "", [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "PART", size)
        while True:
            contents = list(resources._parts("unspill://x", "text/plain", start, *resources._read(output, start)))
            found += contents[0].text
            said += [one.text for one in contents[1:]]
            follows = contents[-1].uri.partition("?start=")[2] if len(contents) > 1 else ""
            if not follows or int(follows) == start:
                return found, said
            assert int(follows) > start
            start = int(follows)


@given(text=st.text("aä€😀\n", max_size=60), at=st.integers(0, 200), size=st.integers(4, 9))
def test_reading_on_returns_a_text_as_it_was_whatever_lies_across_a_bound(text: str, at: int, size: int) -> None:
    whole = text.encode()
    found, said = read_on(Output(head=whole[:at], tail=whole[at:]), size)
    assert found == text
    assert not any("not kept" in line for line in said)


@given(head=BYTES, tail=BYTES, left_out=st.integers(1, 20), size=st.integers(4, 9))
def test_reading_on_ends_and_says_once_what_was_not_kept(head: bytes, tail: bytes, left_out: int, size: int) -> None:
    output = Output(head=head, tail=tail, left_out=left_out)
    found, said = read_on(output, size)
    notes = [line for line in said if "not kept" in line]
    begin, end = len(head), len(head) + left_out
    assert len(notes) == 1
    assert f"Bytes {begin} to {end} were not kept" in notes[0]
    assert found.count("a") == output.kept().count(b"a")


def test_what_was_heard_is_kept_for_the_last_runs_as_far_as_the_bound(ground: Ground) -> None:
    sandbox, other = ground.sandbox(), ground.sandbox("other")
    history = CallHistory(most=100)
    for run in range(1, 4):
        history.keep(sandbox, run, "stdout", b"x" * 40)
    assert [history.printed(sandbox, run, "stdout") is not None for run in range(1, 4)] == [False, True, True]
    assert history.printed(other, 3, "stdout") is None
    history.keep(sandbox, 4, "stdout", b"x" * 101)
    assert not any(history.printed(sandbox, run, "stdout") for run in range(1, 5)), "never more than the bound"


def test_of_a_stream_that_is_too_long_nothing_is_heard() -> None:
    heard = OutputBuffer(4)
    for chunk in (b"123", b"456", b"7"):
        heard.take(OutputChunk(stream="stdout", chunk=chunk))
        heard.take(OutputChunk(stream="stderr", chunk=b"x"))
    assert (heard.whole("stdout"), heard.whole("stderr")) == (None, b"xxx")


@pytest.mark.parametrize(
    ("tail", "line"),
    [(b"", ""), (b"\n \n", ""), (b"a\nb\n\n", "b"), (b"a\r50%\r", r"a\r50%"), ("ä".encode() * 300, "ä" * 200)],
)
def test_the_last_line_is_the_last_that_says_something(tail: bytes, line: str) -> None:
    assert last_line(tail) == line


def test_projects_of_the_same_name_are_told_apart_and_none_is_there_twice(ground: Ground) -> None:
    twin = ground.top / "elsewhere" / "project"
    twin.mkdir(parents=True)
    one, other = ground.sandbox(), ground.sandbox(project=twin)
    assert list(Projects([one, other]).named) == [str(ground.project), str(twin)]
    for wrong in ([one, ground.sandbox()], []):
        with pytest.raises(UsageError):
            Projects(wrong)


def ask_in_thread(bridge: ClientApprover, asked: Question) -> "asyncio.Future[object]":
    return asyncio.ensure_future(asyncio.to_thread(bridge.ask, asked))


def test_however_a_question_ends_who_asked_gets_an_answer() -> None:
    async def steps() -> list[object]:
        bridge = ClientApprover(asyncio.get_running_loop())
        late, closed = question(0.05), question()
        answers = [ask_in_thread(bridge, late), ask_in_thread(bridge, closed)]
        await bridge.news.wait()
        await answers[0]
        bridge.close("the call was cancelled")
        answers.append(ask_in_thread(bridge, question()))
        return list(await asyncio.gather(*answers))

    answers = asyncio.run(steps())
    assert [answer.reason for answer in answers if isinstance(answer, Denied)] == [
        "nobody answered in time",
        *["the call was cancelled"] * 2,
    ]
    assert all(answer.is_unseen for answer in answers if isinstance(answer, Denied)), "no client was asked"


def test_a_question_that_is_answered_or_over_is_not_put_to_the_client_any_more() -> None:
    """Control: one that waits is."""

    async def steps() -> None:
        bridge = ClientApprover(asyncio.get_running_loop())
        waits, answered, late = PendingQuestion(question()), PendingQuestion(question()), PendingQuestion(question(0.0))
        for pending in (waits, answered, late):
            bridge._add(pending)
        answered.deny("not this one")
        assert bridge.take_new() == (waits,)

    asyncio.run(steps())


def test_who_asks_when_the_loop_has_ended_is_denied() -> None:
    loop = asyncio.new_event_loop()
    bridge = ClientApprover(loop)
    loop.close()
    assert isinstance(bridge.ask(question()), Denied)


def test_the_first_answer_counts_and_no_question_waits_longer_than_a_client_may_take() -> None:
    pending = PendingQuestion(question(wait_s=1e6))
    assert pending.left_s <= LONGEST_S
    pending.give(Denied(digest="x", by="y"))
    pending.give(Allowed(digest="x", by="y"))
    assert isinstance(pending.wait(), Denied)


def test_a_command_that_is_too_long_for_its_question_is_shown_whole_below_or_said_to_be_cut() -> None:
    def shown(length: int) -> str:
        request = NETWORK.replace(argv=(b"/bin/sh", b"-c", b"x" * length))
        form = make_form(make_question(request, ("once",)), may_remember=False)
        return str(form.params.message)

    assert shown(5_000).count("x") > 5_000
    assert "careful:" in shown(1_000_000).splitlines()[-1]
    assert len(shown(1_000_000)) < 40_000


def test_calls_that_wait_in_one_project_hold_up_neither_another_nor_a_look_at_it() -> None:
    """Control: of their own project there are only so many at once."""
    goes_on = threading.Event()

    def waits(_call: Call, _cancel_fd: int) -> Answer:
        goes_on.wait(20)
        return Answer(text="", values={})

    def works(_call: Call, _cancel_fd: int) -> Answer:
        return Answer(text="", values={})

    async def steps() -> None:
        async with Calls() as calls:
            for _ in range(64):
                calls.begin(waits, "one")
            late = calls.begin(works, "one").task
            done, _ = await asyncio.wait([calls.begin(works, place).task for place in ("two", READING)], timeout=10)
            assert len(done) == 2
            assert not late.done()
            goes_on.set()
            await late

    asyncio.run(steps())


def test_ending_a_server_ends_calls_that_wait_for_their_client_and_lets_none_begin() -> None:
    ended = threading.Event()

    def work(call: Call, _cancel_fd: int) -> Answer:
        answer = call.approver.ask(question())
        ended.set()
        return Answer(text=type(answer).__name__, values={})

    async def steps() -> None:
        async with Calls() as calls:
            call = calls.begin(work)
            await call.until_news()
            state = calls.pause(call, call.approver.take_new())
        assert ended.is_set()
        assert calls.resume(state) is None
        with pytest.raises(SandboxUnavailable):
            calls.begin(work)

    began = time.monotonic()
    asyncio.run(steps())
    assert time.monotonic() - began < 10
