# SPDX-License-Identifier: Apache-2.0
"""Background runs of a model: one live sandbox for them while any is alive, and what the model is told of them.

A live sandbox has the lock of its sandbox. So other calls join it as long as it is there, and what can't join is
refused: nothing waits for a command that may never end. A first background run waits for calls that began before it.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from threading import Condition, Lock, Thread
from time import monotonic

from unspill.adapters.answers import (
    OUTPUT,
    Answer,
    answer_error,
    answer_run,
    change_lines,
    many,
    own_failure,
    result_values,
    shown_as,
    text_answer,
    whole_characters,
)
from unspill.errors import SandboxUnavailable, UnspillError, UsageError
from unspill.layers.locks import keeper_files, refuse_given_up, refuse_kept, tell_kept
from unspill.model.run import NeverStarted
from unspill.runner.background import end_runs, forget_ended
from unspill.sandbox.result import describe_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from unspill.model.policy import Limits, Policy
    from unspill.model.run import Event
    from unspill.runner.background import BackgroundRun
    from unspill.sandbox.live import Live
    from unspill.sandbox.project import Project
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

LONGEST_WAIT_S = 60
_PAUSE_S = 0.05
_CLAIM_S = 2.0
_KILL_FIRST = "End them with `kill` first: {}."
_CLAIM = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
# What needs a sandbox of its own, or somebody to ask
_MORE = ("network", "hosts", "roots", "unsandboxed")


class JoinedSandbox:
    """What tools use of a Sandbox, while it is alive: `run` joins the background runs.

    `results` are those of its runs. Each has what all have changed since the last one.
    """

    def __init__(self, sandbox: Sandbox, live: Live, turn: Lock, refusal: Callable[[str], UsageError]) -> None:
        self._project: Project = sandbox._project
        self.policy: Policy = sandbox.policy
        self.project = sandbox.project
        self.results: list[RunResult] = []
        self._live = live
        self._turn = turn
        self._refusal = refusal

    def run(
        self,
        command: Any,
        *,
        limits: Limits | None = None,
        after: object = None,
        after_cancel: object = None,
        alone: bool = False,
        reuse: bool = False,
        approver: object = None,
        on_event: Callable[[Event], None] | None = None,
        cancel_fd: int | None = None,
        **options: Any,
    ) -> RunResult:
        """Do what `Sandbox.run` does, beside the background runs.

        What a file tool wants discarded (`after`, `after_cancel`) is not: others may have changed something meanwhile.

        Raises:
            UsageError: it wants more than a live sandbox can be given.
        """
        if wanted := next((name for name in _MORE if options.pop(name, None)), None):
            raise self._refusal(f"`{wanted}` is not possible beside background runs")
        if limits is not None:
            options["limits"] = limits
            options["after_cancel"] = self.policy.after if self._project.roots else None
        while not self._turn.acquire(timeout=_PAUSE_S):
            refuse_given_up(cancel_fd)
        try:
            result = self._live.run(command, on_event=on_event, cancel_fd=cancel_fd, **options)
        finally:
            self._turn.release()
        self.results.append(result)
        return result


class BackgroundRuns:
    """The background runs of one sandbox in this process. Used by any thread."""

    def __init__(self, sandbox: Sandbox, on_result: Callable[[RunResult], None] = lambda _result: None) -> None:
        """Prepare for some; `on_result` is called with the result of each, and of each run beside them."""
        self._sandbox = sandbox
        self._on_result = on_result
        # Of foreground runs beside them
        self._turn = Lock()
        self._news = Condition()  # protects the fields below
        self._live: Live | None = None
        self._claim = -1
        # Calls under way: in the live sandbox, and without one
        self._joined = self._plain = 0
        self._is_starting = self._is_closed = False
        self._runs: dict[int, BackgroundRun] = {}
        # Those whose end no answer has told yet, and numbers of those where one has
        self._untold: list[BackgroundRun] = []
        self._told: set[int] = set()

    @contextmanager
    def joined(self, cancel_fd: int | None) -> Iterator[JoinedSandbox | None]:
        """Join the background runs for one call; None where there are none, and none is begun meanwhile."""
        with self._news:
            self._wait_for_change(cancel_fd)
            live = self._live
            self._joined += live is not None
            self._plain += live is None
        try:
            yield None if live is None else JoinedSandbox(self._sandbox, live, self._turn, self.refusal)
        finally:
            with self._news:
                self._joined -= live is not None
                self._plain -= live is None
                self._news.notify_all()
            self._close_if_idle()

    def refusal(self, why: str) -> UsageError:
        """Return the error for what can't be done beside background runs."""
        alive = " and ".join(f"run {number}" for number in self._alive()) or "they are ending"
        return UsageError(why, remedy=_KILL_FIRST.format(alive))

    def _alive(self) -> list[int]:
        return [number for number, run in tuple(self._runs.items()) if run.is_alive()]

    def _wait(self, is_so: Callable[[], bool], cancel_fd: int | None) -> None:
        while not is_so():
            refuse_given_up(cancel_fd)
            self._news.wait(_PAUSE_S)

    def _wait_for_change(self, cancel_fd: int | None) -> None:
        """Wait while a live sandbox begins or ends."""
        self._wait(lambda: not self._is_starting and (self._live is None or bool(self._alive())), cancel_fd)

    def start(self, options: dict[str, Any], cancel_fd: int | None) -> Answer:
        """Start a command. `options` are those of `Sandbox.run` that a model may give.

        Raises:
            UsageError: it wants what a live sandbox can't be given, or the command can't be begun like this.
        """
        if wanted := next((name for name in (*_MORE, "stdin") if options.pop(name, None)), None):
            raise UsageError(f"`{wanted}` is not possible with `background`", remedy="Leave one of them out.")
        with self._news:
            self._wait_for_change(cancel_fd)
            self._is_starting = True
            try:
                if self._live is None:
                    self._wait(lambda: not self._plain, cancel_fd)
                    self._open()
                live = self._live
            except BaseException:
                self._is_starting = False
                raise
        assert live is not None
        try:
            run = live.start(**options)
            # There is nobody who would write to it
            run.close_input()
            with self._news:
                self._add(run)
        finally:
            with self._news:
                self._is_starting = False
                self._news.notify_all()
            self._close_if_idle()
        if not run.is_alive() and isinstance(run.wait().outcome, NeverStarted):
            return self._answer_end(run)
        told = f"Run {run.number} goes on in the background. `output` shows what it prints, `kill` ends it."
        return text_answer([told], {"run": run.number, "running": True})

    def _open(self) -> None:
        """Make the live sandbox. Other processes do not wait for it, as they do not for a keeper's."""
        if self._is_closed:
            raise SandboxUnavailable("the server is ending")
        project = self._sandbox._project
        live = self._sandbox.live()
        if project.roots and project.means.policy.after != "discard":
            state = project.store.state
            claim = os.open(keeper_files(state, self._sandbox.id)[0], _CLAIM, 0o600)
            try:
                self._take_claim(claim)
                tell_kept(claim, self._sandbox.name, "an MCP server")
            except BaseException:
                os.close(claim)
                raise
            self._claim = claim
        self._live = live

    def _take_claim(self, claim: int) -> None:
        deadline = monotonic() + _CLAIM_S
        while True:
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                refuse_kept(self._sandbox._project.store.state, self._sandbox.id)
                # Who only looks whether somebody has it, has it for a moment
                if monotonic() > deadline:
                    raise SandboxUnavailable("background runs of another process use this sandbox") from error
            self._news.wait(_PAUSE_S)

    def _add(self, run: BackgroundRun) -> None:
        forget_ended(self._runs, self._untold)
        self._runs[run.number] = run
        Thread(target=self._follow, args=(run,), name="unspill-follow", daemon=True).start()

    def _follow(self, run: BackgroundRun) -> None:
        run.join()
        # What it raises is told with the next answer, which asks for the result too
        with suppress(Exception):
            self._on_result(run.wait())
        with self._news:
            if run.number not in self._told:
                self._untold.append(run)
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        with self._news:
            is_used = self._joined or self._is_starting or self._is_closed or self._alive()
            if self._live is None or is_used:
                return
            try:
                self._live.close()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        self._live = None
        if self._claim >= 0:
            os.ftruncate(self._claim, 0)
            os.close(self._claim)
            self._claim = -1
        self._news.notify_all()

    def close(self) -> None:
        """Kill all of them, and return when what they changed is applied or held."""
        with self._news:
            self._is_closed = True
            live = self._live
        if live is not None:
            live.close()
            with self._news:
                self._let_go()

    def output(self, given: dict[str, Any], cancel_fd: int | None) -> Answer:
        """Return what a run has printed from an offset on.

        Raises:
            UsageError: there is no such run.
        """
        run, offset = self._find(given["run"]), given.get("offset", 0)
        deadline = monotonic() + given.get("wait_s", 0)
        policy = self._sandbox.policy
        while True:
            # Before its output: what it has printed at its end is all
            is_alive = run.is_alive()
            raw, following, lost = run.output(offset, policy.shown_bytes, timeout=_PAUSE_S if is_alive else 0.0)
            if raw or not is_alive or monotonic() >= deadline:
                break
            refuse_given_up(cancel_fd)
        shown = _part(raw, policy, is_last=not is_alive)
        following -= len(raw) - len(shown)
        lines = [f"Run {run.number} is running."]
        values: dict[str, Any] = {"run": run.number, "running": is_alive}
        if not is_alive:
            result = self._result(run)
            lines = [f"Run {run.number} has ended.", describe_end(result.outcome), *change_lines(result)]
            values |= {"exit_code": result.exit_code, **result_values(result)}
        if lost:
            lines.append(f"Note: {many(lost, 'byte')} before this are lost: only the newest output is kept.")
        if is_alive or len(shown) < len(raw) or run.output(following, 1)[0]:
            lines.append(f"For what follows call `output` with `offset` {following}.")
        text = shown_as(shown)
        lines += [OUTPUT, text.rstrip("\n")] if text else ["There is nothing new."]
        values |= {"text": text, "offset": offset + lost, "next_offset": following, "lost": lost}
        return text_answer(lines, values)

    def kill(self, given: dict[str, Any], cancel_fd: int | None) -> Answer:
        """End a run, by a signal that it can handle and then for good; return what became of it.

        Raises:
            UsageError: there is no such run.
            SandboxUnavailable: it does not die, and others are alive.
        """
        run = self._find(given["run"])
        refuse_given_up(cancel_fd)
        if run.is_alive() and not end_runs((run,)):
            with self._news:
                live = self._live
                is_alone = self._alive() == [run.number] and not self._joined
            if live is None or not is_alone:
                remedy = f"Call `output` for run {run.number} later, or end the other runs too."
                raise SandboxUnavailable(f"run {run.number} was killed, and has not ended yet", remedy=remedy)
            # Whether it does not die or is being applied: this ends the one and waits for the other
            live.close()
        return self._answer_end(run)

    def _answer_end(self, run: BackgroundRun) -> Answer:
        return answer_run(self._result(run), policy=self._sandbox.policy)

    def _result(self, run: BackgroundRun) -> RunResult:
        """Return the result of a run that ends now, which need not be told once more."""
        run.join()
        with self._news:
            self._told.add(run.number)
            self._untold = [one for one in self._untold if one is not run]
        result: RunResult = run.wait()
        return result

    def _find(self, number: int) -> BackgroundRun:
        with self._news:
            found = self._runs.get(number)
            known = ", ".join(map(str, self._runs))
        if found is None:
            remedy = f"There are {known}." if known else "`run` with `background` starts one."
            raise UsageError(f"there is no background run {number}", remedy=remedy)
        return found

    def with_news(self, answer: Answer, joined: JoinedSandbox | None = None) -> Answer:
        """Return an answer that also tells of what ended meanwhile, and of changes that are not the call's own."""
        results = [] if joined is None else [one for one in joined.results if one.changes]
        for result in results:
            self._on_result(result)
        own = answer.values.get("run")
        lines = [line for result in results if result.number != own for line in change_lines(result)]
        with self._news:
            untold, self._untold = self._untold, []
            self._told.update(one.number for one in untold)
        for one in untold:
            lines += [f"Note: run {one.number} has ended in the background.", *self._end_lines(one)]
        notes = "".join(f"{line}\n" for line in lines)
        return answer.replace(text=answer.text + notes if answer.is_error else notes + answer.text)

    def _end_lines(self, run: BackgroundRun) -> list[str]:
        try:
            result = run.wait()
        except UnspillError as error:
            return answer_error(error).text.splitlines()
        except OSError as error:
            return answer_error(own_failure(error)).text.splitlines()
        return [describe_end(result.outcome), *change_lines(result)]


def _part(raw: bytes, policy: Policy, *, is_last: bool) -> bytes:
    """Return as much as is shown at once: whole characters, and no more lines and bytes than the policy says."""
    lines = raw.split(b"\n", policy.shown_lines)
    if len(lines) > policy.shown_lines:
        raw = raw[: len(raw) - len(lines[-1])]
    if len(shown_as(raw).encode()) > policy.shown_bytes:
        raw, is_last = raw[: policy.shown_bytes // 4], False
    return raw if is_last else whole_characters(raw) or raw
