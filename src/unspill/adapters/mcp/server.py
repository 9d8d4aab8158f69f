# SPDX-License-Identifier: Apache-2.0
"""The MCP server: the tools and resources of sandboxes, for clients of both eras of the protocol.

Names, words and schemas are those of `adapters.tools`; this only puts them on the wire. Approving and granting are no
tools, and `apply` is one only if the operator says so.

Each call runs in a thread. If it asks the user something, a client of the handshake era is called back while its
request goes on; one of 2026-07-28 gets the questions as the result, and comes back with the answers in a new request.

`serve_stdio` serves the one client that started this process. Meanwhile descriptor 0 leads nowhere and 1 to standard
error, so what a library prints by mistake never reaches the client. When the client closes its end, or a signal ends
the process, all that runs is killed and recorded first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.runner import serve_dual_era_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    REQUEST_TIMEOUT,
    CallToolResult,
    ElicitResult,
    InputRequiredResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    ReadResourceResult,
    TextContent,
)
from pydantic import ValidationError

from unspill import __version__
from unspill.adapters.answers import answer_error, answer_run, notes_of, own_failure
from unspill.adapters.background import BackgroundRuns
from unspill.adapters.files import places_of
from unspill.adapters.mcp.questions import (
    LONGEST_S,
    ClientApprover,
    QuestionSettings,
    approver_for,
    is_modern,
    make_form,
    read_form,
    with_open_questions,
)
from unspill.adapters.mcp.resources import (
    CallHistory,
    OutputBuffer,
    Projects,
    is_address,
    link_to,
    list_resources,
    list_templates,
    prefix_of,
    read_resource,
)
from unspill.adapters.tools import call_tool
from unspill.changes.render import safe_text
from unspill.errors import SandboxUnavailable, UnspillError, UsageError
from unspill.host.dirfd import above_standard
from unspill.model.run import OutputChunk
from unspill.runner.aio import call_in_thread
from unspill.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession
    from mcp_types import (
        CallToolRequestParams,
        InputResponses,
        PaginatedRequestParams,
        ReadResourceRequestParams,
        ResourceLink,
    )

    from unspill.adapters.answers import Answer
    from unspill.adapters.mcp.questions import PendingQuestion
    from unspill.model.run import Event

    Work = Callable[["Call", int], Answer]

    Context = ServerRequestContext["Calls", Any]


NAME = "unspill"
INSTRUCTIONS = (
    "Commands run in a sandbox over the project; `changes`, `diff` and `undo` are about what they changed. "
    "Where more is needed than the sandbox has, the user is asked, never the model."
)
WITHOUT_PROJECT = (
    "Commands run in a sandbox, in a playground that is kept; nothing else of the user's can be changed. "
    "Where more is needed than the sandbox has, the user is asked, never the model."
)
IN_CONTAINER = "Commands run without a sandbox, as plain processes: what they change is changed at once, for good."
# The place of calls that read all that is held: they take memory, and hardly any time
READING = "reading"
_READERS = ("changes", "diff")
_LINKS_SINCE = "2025-06-18"
_OVER = UsageError(
    "this call is over: its question was answered already, or nobody answered it in time",
    remedy="Nothing of it runs any more. Call the tool again if it is still needed.",
)
_NO_FILE = UsageError(
    "this is a resource, not a file: it is the client that reads it",
    remedy="If you have no tool for resources, run the command again, write what it prints to a file, and read that.",
)

_MOST_AT_ONCE = 64
_MOST_READING = 4
# The clients of all SDKs answer this many rounds of questions within one call
_MOST_ROUNDS = 10
_TOO_OFTEN = f"this call has asked {_MOST_ROUNDS} times, which is as often as clients let it"
_TOO_OFTEN_REMEDY = "The user can put what it needs into their configuration."
# Questions that come together are one round
_TOGETHER_S = 0.05
# A client that answers at the last moment shall find its call
_GRACE_S = 2.0
_PROGRESS_PAUSE_S = 0.25
_PROGRESS_LETTERS = 200
_PROGRESS_BYTES = 4096

# Kept, since a server calls often: starting a thread takes as long as reading the call does
_threads = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="unspill-call")
_logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LONGEST_LINE = 64 << 20
# What was asked right before the end shall be answered, if that takes no longer
_LAST_ANSWERS_S = 0.2
# The loop itself keeps only weak references to tasks
_ending: set[asyncio.Task[None]] = set()


def make_server(
    sandboxes: Sandbox | Sequence[Sandbox],
    *,
    default: Sandbox | None = None,
    questions: QuestionSettings | None = None,
    may_apply: bool = False,
) -> Server[Calls]:
    """Return a server for these sandboxes, to be served by `serve_stdio`.

    Args:
        sandboxes: One, or several, which the argument `project` of each tool chooses from.
        default: The one of several that is meant where none is named.
        questions: How permission questions get to the person; by default as the client can, without lasting answers.
        may_apply: Whether `apply` is a tool too.

    Raises:
        UsageError: there is no sandbox, or one is there twice.
    """
    several = (sandboxes,) if isinstance(sandboxes, Sandbox) else tuple(sandboxes)
    handlers = _Handlers(Projects(several, default=default, may_apply=may_apply), questions or QuestionSettings())
    server = Server(
        NAME,
        version=__version__,
        instructions=_instructions(several),
        lifespan=handlers.calls,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
    )
    security = RequestStateSecurity.ephemeral(ttl=LONGEST_S)
    server.middleware.append(RequestStateBoundary(security, default_audience=NAME))
    return server


def _instructions(sandboxes: Sequence[Sandbox]) -> str:
    places = [places_of(sandbox) for sandbox in sandboxes]
    if not all(one.is_sealed for one in places):
        return IN_CONTAINER
    return INSTRUCTIONS if any(one.roots for one in places) else WITHOUT_PROJECT


class _Handlers:
    """What the server does for each kind of request."""

    def __init__(self, projects: Projects, questions: QuestionSettings) -> None:
        self._projects = projects
        self._questions = questions
        self._history = CallHistory()
        self._background = {}
        if projects.has_background:
            self._background = {one.id: self._make_background(one) for one in projects.named.values()}

    def _make_background(self, sandbox: Sandbox) -> BackgroundRuns:
        # Only what they applied: what they print has a tool of its own
        return BackgroundRuns(sandbox, lambda result: self._history.add(sandbox, "background", answer_run(result)))

    @asynccontextmanager
    async def calls(self, _server: Server[Calls]) -> AsyncIterator[Calls]:
        """Return the calls of a server, in a block at whose end nothing of them runs any more."""
        async with Calls(self._end_background) as calls:
            yield calls

    def _end_background(self) -> None:
        for runs in self._background.values():
            runs.close()

    async def list_tools(self, _context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        """Return the tools as they are for these projects."""
        return ListToolsResult(tools=self._projects.tools())

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Call a tool, or go on with a call whose questions the client has answered."""
        remember = self._questions.may_remember
        if params.request_state is None:
            try:
                call = self._begin(context, params)
            except UnspillError as error:
                return to_result(answer_error(error))
        else:
            resumed = context.lifespan_context.resume(params.request_state)
            if resumed is None:
                return to_result(answer_error(_OVER))
            call = resumed
            take_responses(context, call, params.input_responses, may_remember=remember)
        outcome = await converse(context, call, may_remember=remember)
        if isinstance(outcome, InputRequiredResult):
            return outcome
        return to_result(outcome, call.links if context.protocol_version >= _LINKS_SINCE else ())

    def _begin(self, context: Context, params: CallToolRequestParams) -> Call:
        sandbox, arguments = self._projects.choose(params.arguments or {})
        if params.name == "read" and is_address(arguments.get("path")):
            raise _NO_FILE
        approver = approver_for(context, sandbox, self._questions)
        prefix = prefix_of(self._projects, sandbox)

        def work(call: Call, cancel_fd: int) -> Answer:
            # A stream that is longer than what a result has of it, both ends together, has a file
            buffer = OutputBuffer(2 * sandbox.policy.limits.kept_bytes)

            def on_event(event: Event) -> None:
                buffer.take(event)
                call.progress.take(event)

            def where(run: int, stream: str) -> str:
                self._history.keep(sandbox, run, stream, buffer.whole(stream))
                call.links.append(link_to(prefix, run, stream))
                return f"the resource {call.links[-1].uri}"

            answer = call_tool(
                sandbox,
                params.name,
                arguments,
                on_event=on_event,
                cancel_fd=cancel_fd,
                approver=approver or call.approver,
                may_apply=self._projects.may_apply,
                where=where,
                is_mine=lambda operation: self._history.has_operation(sandbox, operation.number),
                background=self._background.get(sandbox.id),
            )
            self._history.add(sandbox, params.name, answer)
            return with_open_questions(answer, approver)

        place = READING if params.name in _READERS else sandbox.id
        return context.lifespan_context.begin(work, place)

    async def list_resources(self, _context: Context, _params: PaginatedRequestParams | None) -> ListResourcesResult:
        """Return what can be read at once."""
        return ListResourcesResult(resources=list_resources(self._projects))

    async def list_templates(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        """Return what can be read once its number is known."""
        return ListResourceTemplatesResult(resource_templates=list_templates(self._projects))

    async def read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """Return a part of what a run printed, or what is held."""
        try:
            async with context.lifespan_context.slots(READING):
                # What only reads is not worth interrupting
                with anyio.CancelScope(shield=True):
                    found = await call_in_thread(lambda _fd: read_resource(self._projects, self._history, params.uri))
        except UsageError as error:
            raise _refusal(INVALID_PARAMS, error) from None
        except UnspillError as error:
            raise _refusal(INTERNAL_ERROR, error) from None
        except OSError as error:
            raise _refusal(INTERNAL_ERROR, own_failure(error)) from None
        return ReadResourceResult(contents=found)


def _refusal(code: int, error: UnspillError) -> MCPError:
    return MCPError(code=code, message=answer_error(error).text.removeprefix("ERROR: ").rstrip())


def to_result(answer: Answer, links: Sequence[ResourceLink] = ()) -> CallToolResult:
    """Return an answer as the protocol has it.

    Claude Code and Codex show a model the values instead of the text, so what we say of a call is in both.
    """
    return CallToolResult(
        content=[TextContent(text=_wire(answer.text)), *links],
        structured_content=_wire({"notes": notes_of(answer.text), **answer.values}),
        is_error=answer.is_error,
    )


def _wire(value: Any) -> Any:
    """Return a value that JSON can hold: half a character would end the server when it is written."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_wire(key): _wire(item) for key, item in value.items()}
    return [_wire(item) for item in value] if isinstance(value, list | tuple) else value


async def converse(context: Context, call: Call, *, may_remember: bool) -> Answer | InputRequiredResult:
    """Return the call's answer, or the questions that a client of the newer era has to come back with answers to."""
    try:
        if progress_token_from_params(context.params) is None:
            # Most calls ask nothing, and then there is nothing to be done beside them
            await call.until_news()
        questions: tuple[PendingQuestion, ...] = ()
        if not call.is_over():
            async with anyio.create_task_group() as beside:
                beside.start_soon(call.progress.report, context.session)
                questions = await _until_asked(context, call, beside, may_remember=may_remember)
                beside.cancel_scope.cancel()
        if questions:
            return _pause(context, call, questions, may_remember=may_remember)
        return await _answer_of(call)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await call.end()
        raise


def take_responses(context: Context, call: Call, responses: InputResponses | None, *, may_remember: bool) -> None:
    """Give a call the answers that its client came back with; a question without one is denied."""
    for pending in call.put:
        question = pending.question
        given = (responses or {}).get(question.id)
        pending.give(read_form(question, given, by=_name_of(context), may_remember=may_remember))
    call.put = ()


async def _until_asked(
    context: Context, call: Call, beside: anyio.abc.TaskGroup, *, may_remember: bool
) -> tuple[PendingQuestion, ...]:
    """Return what the client has to be returned, nothing when the call is over; call a client back meanwhile."""
    while not call.is_over():
        await call.until_news()
        if call.is_over():
            break
        if is_modern(context):
            await anyio.sleep(_TOGETHER_S)
            if call.is_over():
                break
        questions = call.approver.take_new()
        if is_modern(context) and questions:
            if call.rounds < _MOST_ROUNDS:
                return questions
            for pending in questions:
                pending.is_put = False
                pending.deny(_TOO_OFTEN, _TOO_OFTEN_REMEDY)
        elif not is_modern(context):
            for pending in questions:
                beside.start_soon(_call_back, context, pending, may_remember)
    return ()


def _pause(
    context: Context, call: Call, questions: tuple[PendingQuestion, ...], *, may_remember: bool
) -> InputRequiredResult:
    forms = {one.question.id: make_form(one.question, may_remember=may_remember) for one in questions}
    return InputRequiredResult(
        input_requests=forms,  # type: ignore[arg-type]
        request_state=context.lifespan_context.pause(call, questions),
    )


async def _call_back(context: Context, pending: PendingQuestion, may_remember: bool) -> None:
    question = pending.question
    try:
        given: object = await context.session.send_request(
            make_form(question, may_remember=may_remember),
            ElicitResult,
            request_read_timeout_seconds=max(pending.left_s, 0.01),
        )
    except (MCPError, ValidationError) as error:
        if isinstance(error, MCPError) and error.error.code == REQUEST_TIMEOUT:
            return  # and so does who asks, at this very moment
        given = None
    pending.give(read_form(question, given, by=_name_of(context), may_remember=may_remember))


async def _answer_of(call: Call) -> Answer:
    try:
        return await call.task
    except Exception as error:
        _logger.exception("a tool failed")
        return answer_error(SandboxUnavailable(f"the server failed: {type(error).__name__}"))


def _name_of(context: Context) -> str:
    """Return the client as the record of answers names it; a name is what a client says of itself."""
    params = context.session.client_params
    name = "" if params is None else safe_text(params.client_info.name)[:60]
    return f"mcp client {name}".rstrip()


class Calls:
    """The calls of a server; leaving the `async with` ends them all, and then does what `at_end` says, in a thread."""

    def __init__(self, at_end: Callable[[], None] = lambda: None) -> None:
        self._at_end = at_end
        self._under_way: set[Call] = set()
        self._paused: dict[str, Call] = {}
        # By place: what waits for its turn in one project must not hold up another, nor a look at either
        self._slots = {READING: asyncio.Semaphore(_MOST_READING)}
        self._ending: set[asyncio.Future[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Calls:
        return self

    async def __aexit__(self, *_rest: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()

    async def close(self) -> None:
        """End all calls; nothing of them is left when this returns."""
        self._is_closed = True
        self._paused.clear()
        ending = [asyncio.ensure_future(call.end()) for call in tuple(self._under_way)]
        if ending:
            await asyncio.wait(ending)
        await call_in_thread(lambda _fd: self._at_end())

    def slots(self, place: str) -> asyncio.Semaphore:
        """Return what bounds how much is done at once at a place: in a project, or `READING`."""
        return self._slots.setdefault(place, asyncio.Semaphore(_MOST_AT_ONCE))

    def begin(self, work: Work, place: str = "") -> Call:
        """Start a call.

        Raises:
            SandboxUnavailable: the server is ending.
        """
        if self._is_closed:
            raise SandboxUnavailable("the server is ending")
        call = Call(work, self.slots(place))
        self._under_way.add(call)
        call.task.add_done_callback(lambda _task: self._under_way.discard(call))
        return call

    def pause(self, call: Call, put: tuple[PendingQuestion, ...]) -> str:
        """Let a call wait for its client to come back with answers; return what the client has to show then."""
        call.rounds += 1
        call.put = put
        state = f"{call.identity}.{call.rounds}"
        self._paused[state] = call
        left_s = max(pending.left_s for pending in put) + _GRACE_S
        call.timer = asyncio.get_running_loop().call_later(left_s, self._give_up, state)
        return state

    def resume(self, state: str) -> Call | None:
        """Return the call that waits for this state, which is good for one time; None if none does."""
        call = self._paused.pop(state, None)
        if call is not None and call.timer is not None:
            call.timer.cancel()
            call.timer = None
        return call

    def _give_up(self, state: str) -> None:
        call = self._paused.pop(state, None)
        if call is not None:
            ending = asyncio.ensure_future(call.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


class Call:
    """One call. `put` are the questions that its client was asked and has not answered.

    `links` lead to what its answer does not show.
    """

    def __init__(self, work: Work, slots: asyncio.Semaphore) -> None:
        self.identity = secrets.token_hex(16)
        self.rounds = 0
        self.put: tuple[PendingQuestion, ...] = ()
        self.links: list[ResourceLink] = []
        self.approver = ClientApprover(asyncio.get_running_loop())
        self.progress = _Progress(asyncio.get_running_loop())
        self.timer: asyncio.TimerHandle | None = None
        # A task of its own: cancelling a request must not interrupt the wait for dead processes
        self.task = asyncio.create_task(self._do(work, slots))
        self.task.add_done_callback(lambda _task: self.approver.close("the call is over"))

    async def _do(self, work: Work, slots: asyncio.Semaphore) -> Answer:
        async with slots:
            return await call_in_thread(lambda cancel_fd: work(self, cancel_fd), _threads.submit)

    def is_over(self) -> bool:
        """Tell whether there is nothing more to wait for."""
        return self.task.done()

    async def until_news(self) -> None:
        """Wait until it is over, or something is asked."""
        if not self.task.done():
            # Set by the end as well, which closes the approver
            await self.approver.news.wait()

    async def end(self) -> None:
        """Cancel it, and return when every process of it is dead."""
        self.approver.close("the call was cancelled")
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait((self.task,))
        if not self.task.cancelled():
            # Whoever ended it does not want to know; asked for, so that nobody complains about it
            self.task.exception()


class _Progress:
    """What a run printed last. `take` is for the run's thread, `report` for the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tail = b""
        self._count = 0
        self._is_told = True
        self._news = asyncio.Event()

    def take(self, event: Event) -> None:
        """Look at an event of the run."""
        if not isinstance(event, OutputChunk):
            return
        self._tail = (self._tail + event.chunk)[-_PROGRESS_BYTES:]
        self._count += len(event.chunk)
        if self._is_told:
            self._is_told = False
            self._loop.call_soon_threadsafe(self._news.set)

    async def report(self, session: ServerSession) -> None:
        """Report until cancelled, to the client whose request this is."""
        while True:
            await self._news.wait()
            self._news.clear()
            self._is_told = True
            await session.report_progress(float(self._count), None, last_line(self._tail))
            await asyncio.sleep(_PROGRESS_PAUSE_S)


def last_line(tail: bytes) -> str:
    """Return the last line that is not blank, as it can be shown."""
    lines = tail.decode("utf-8", "replace").split("\n")
    for line in reversed(lines):
        if line.strip():
            return safe_text(line.strip())[:_PROGRESS_LETTERS]
    return ""


def serve_stdio(server: Server[Calls]) -> None:
    """Serve until the client goes away. A signal that ends the process does so once nothing runs any more."""
    try:
        anyio.run(_serve, server)
    except* ConnectionError:
        pass  # the client went away while we were writing to it


async def _serve(server: Server[Calls]) -> None:
    loop = asyncio.get_running_loop()
    async with _open_streams() as (incoming, outgoing), server.lifespan(server) as calls:
        for number in _SIGNALS:
            loop.add_signal_handler(number, _end_soon, calls, number)
        await serve_dual_era_loop(
            server,
            incoming,
            outgoing,
            lifespan_state=calls,
            init_options=server.create_initialization_options(),
        )


def _end_soon(calls: Calls, number: int) -> None:
    _ending.add(asyncio.ensure_future(_end(calls, number)))


async def _end(calls: Calls, number: int) -> None:
    await calls.close()
    # Whoever waits for this process shall see what ended it
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _open_streams() -> AbstractAsyncContextManager[Any]:
    """Return what the SDK's `stdio_server` returns, read and written by the event loop itself where that is possible.

    The SDK uses a thread for each line, which takes as long as all else that it does for a call.
    """
    if all(_is_pipe(fd) for fd in (0, 1)):
        return _piped()
    return stdio_server()


def _is_pipe(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@asynccontextmanager
async def _piped() -> AsyncIterator[Any]:
    loop = asyncio.get_running_loop()
    incoming, outgoing = _take(0, os.O_RDONLY), _take(1, os.O_WRONLY)
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(incoming, "rb", 0))
    sink, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(outgoing, "wb", 0))
    writer = asyncio.StreamWriter(sink, flow, None, loop)
    try:
        async with stdio_server(_ClientLines(reader), _ClientWriter(writer)) as streams:  # type: ignore[arg-type]
            yield streams
    finally:
        source.close()
        sink.close()


def _take(fd: int, way: int) -> int:
    """Return a standard stream under another number, and let its own number lead elsewhere."""
    taken = above_standard(os.dup(fd))
    other = os.open(os.devnull, way) if way == os.O_RDONLY else os.dup(2)
    os.dup2(other, fd)
    os.close(other)
    return taken


class _ClientLines:
    """What the client sends, line by line, to its end."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def __aiter__(self) -> _ClientLines:
        return self

    async def __anext__(self) -> str:
        line = await self._reader.readline()
        if not line:
            await asyncio.sleep(_LAST_ANSWERS_S)
            raise StopAsyncIteration
        return line.decode("utf-8", "replace")


class _ClientWriter:
    """Writes to the client, and waits for one that reads slowly."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        self._writer.write(text.encode("utf-8"))

    async def flush(self) -> None:
        await self._writer.drain()
