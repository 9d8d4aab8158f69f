# SPDX-License-Identifier: Apache-2.0
"""Signals wait while something must not be interrupted, and are handled afterwards as ever."""

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from types import FrameType

import pytest

from unspill.host.libc import DeferredSignals, Terminated, repeat_swallowed_signals

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def heard() -> Iterator[list[int]]:
    """Python handlers for all of them, that note what they hear."""
    found: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        found.append(number)

    before = [signal.signal(number, note) for number in NUMBERS]
    yield found
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_handled_once_when_the_block_is_over(heard: list[int], number: int) -> None:
    handler = signal.getsignal(number)
    with DeferredSignals():
        for _ in range(3):
            os.kill(os.getpid(), number)
        assert heard == []
    assert heard == [number]
    assert signal.getsignal(number) is handler
    os.kill(os.getpid(), number)
    assert heard == [number, number]


def test_what_a_handler_raises_is_raised_after_the_block(heard: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done = []

    def work() -> None:
        with DeferredSignals():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # Every handler is back, also if an earlier one has raised
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard[-1] == signal.SIGTERM


def test_an_error_of_the_block_itself_is_kept_and_the_handlers_are_back(heard: list[int]) -> None:
    def fail() -> None:
        with DeferredSignals():
            os.kill(os.getpid(), signal.SIGHUP)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert heard == [signal.SIGHUP]


def test_one_block_may_stand_in_another(heard: list[int]) -> None:
    with DeferredSignals():
        with DeferredSignals():
            os.kill(os.getpid(), signal.SIGINT)
        assert heard == []
    assert heard == [signal.SIGINT]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_signal_without_a_handler_of_python_is_left_alone(handler: signal.Handlers) -> None:
    signal.signal(signal.SIGTERM, handler)
    with DeferredSignals():
        assert signal.getsignal(signal.SIGTERM) == handler
    assert signal.getsignal(signal.SIGTERM) == handler


def test_in_another_thread_it_does_nothing(heard: list[int]) -> None:
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with DeferredSignals():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    os.kill(os.getpid(), signal.SIGINT)
    assert heard == [signal.SIGINT]
    leave.set()
    thread.join()


def test_without_the_block_it_is_handled_at_once(heard: list[int]) -> None:
    """The control arm."""
    os.kill(os.getpid(), signal.SIGINT)
    assert heard == [signal.SIGINT]


@pytest.mark.parametrize(
    ("raised", "number"), [(KeyboardInterrupt(), signal.SIGINT), (Terminated(signal.SIGTERM), signal.SIGTERM)]
)
def test_a_signal_whose_exception_python_swallows_comes_again(
    heard: list[int], raised: KeyboardInterrupt, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def callback(_gone: object) -> None:
        raise raised

    class Watched:
        pass

    watched, before = Watched(), signal.getsignal(signal.SIGALRM)
    deadline = time.monotonic() + 20
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    repeat_swallowed_signals()
    link = weakref.ref(watched, callback)
    del watched
    while not heard and time.monotonic() < deadline:
        time.sleep(0.01)
    assert link() is None
    assert heard == [number]
    assert signal.getsignal(signal.SIGALRM) == before
