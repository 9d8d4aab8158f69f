# SPDX-License-Identifier: Apache-2.0
"""A model on loopback that plays a script to a real coding agent, in whichever of four model APIs the agent speaks.

Anthropic's messages, OpenAI's chat completions and responses, Gemini's generateContent; with and without streaming.
A step of the script is one turn of the model: text that ends it, or calls of tools, several of them in parallel.

It keeps no state: the step of a request is the number of turns with calls in the conversation that the agent sent, so
titles, summaries and retries do not put it out of step. Turns in which it only looks for a tool do not count: clients
keep the tools of servers back until they are asked for, or until the server is up. A request that has neither the next
tool nor a way to find it is a side request, and gets "ok". A script of texts alone is for agents without tools: its
step is the first text that the model has not said yet.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Body = dict[str, Any]
# Calls that only make other tools known, with their arguments. Names of limits differ, and unknown ones are refused
FINDERS: dict[str, Body] = {
    "WaitForMcpServers": {},
    "ToolSearch": {"query": "unspill run"},
    "tool_search": {"query": "run a command"},
}
# Calls a tool that was found by its name
CALLER = "tool_call"
# A client that does not find it by then never will: its server may take a while to start
MOST_SEARCHES = 40
SEARCH_S = 0.5
_numbers = itertools.count(1)


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool, by the first of its names that the client knows. `text` is for tools without arguments."""

    names: tuple[str, ...]
    arguments: Body = field(default_factory=dict)
    text: str | None = None


@dataclass(frozen=True)
class Turn:
    """What the model does once: it says something, or calls tools."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Asked:
    """One request: which tools it offers, how far the script is, what the last tools returned, what was said."""

    tools: Mapping[str, Body]
    step: int
    searches: int
    results: tuple[str, ...]
    said: str = ""


class _Turns:
    """Counts the turns of the model in a conversation."""

    def __init__(self) -> None:
        self.steps = self.searches = 0
        self.results: list[str] = []
        self.said = ""

    def called(self, *names: str) -> None:
        if any(name in FINDERS for name in names):
            self.searches += 1
        elif names:
            self.steps += 1
            self.results = []

    def asked(self, tools: Mapping[str, Body]) -> Asked:
        return Asked(tools, self.steps, self.searches, tuple(self.results), self.said)


def text_of(content: Any) -> str:
    """Return the text of what APIs have as a text, or as a list of parts."""
    match content:
        case None:
            return ""
        case str():
            return content
        case {"text": str(text)}:
            return text
        case dict():
            return json.dumps(content)
    return "".join(map(text_of, content))


def read_anthropic(body: Body) -> Asked:
    turns = _Turns()
    for message in body.get("messages") or []:
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if message.get("role") == "assistant":
            turns.called(*(part["name"] for part in parts if part.get("type") == "tool_use"))
        else:
            turns.results += [text_of(part.get("content")) for part in parts if part.get("type") == "tool_result"]
    return turns.asked({tool["name"]: tool for tool in body.get("tools") or [] if "name" in tool})


def read_chat(body: Body) -> Asked:
    turns = _Turns()
    for message in body.get("messages") or []:
        if message.get("role") == "assistant":
            turns.said += text_of(message.get("content"))
            turns.called(*(call["function"]["name"] for call in message.get("tool_calls") or []))
        elif message.get("role") == "tool":
            turns.results.append(text_of(message.get("content")))
    return turns.asked({tool["function"]["name"]: tool for tool in body.get("tools") or [] if "function" in tool})


def read_responses(body: Body) -> Asked:
    sent = body.get("input")
    items: list[Body] = sent if isinstance(sent, list) else []
    offered = [*(body.get("tools") or [])]
    for item in items:
        if item.get("type") in ("additional_tools", "tool_search_output"):
            offered += item.get("tools") or []
    tools: dict[str, Body] = {}
    for tool in offered:
        tools[tool.get("name") or tool.get("type") or ""] = tool
        for inner in tool.get("tools") or []:
            tools[inner["name"]] = {**inner, "namespace": tool.get("name")}
    turns = _Turns()
    names: list[str] = []
    for item in items:
        kind = item.get("type", "")
        if kind in ("function_call", "custom_tool_call", "local_shell_call"):
            names.append(str(item.get("name", kind)))
        elif kind == "tool_search_call":
            names.append("tool_search")
        elif kind != "reasoning":
            turns.called(*names)
            names = []
            if kind.endswith("call_output"):
                turns.results.append(text_of(item.get("output")))
    turns.called(*names)
    return turns.asked(tools)


def read_gemini(body: Body) -> Asked:
    turns = _Turns()
    for message in body.get("contents") or []:
        parts = message.get("parts") or []
        turns.called(*(part["functionCall"]["name"] for part in parts if "functionCall" in part))
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        turns.results += [json.dumps(answer.get("response")) for answer in answers]
    declared = [one for tool in body.get("tools") or [] for one in tool.get("functionDeclarations") or []]
    return turns.asked({one["name"]: one for one in declared})


@dataclass(frozen=True)
class ModelAnswer:
    """A turn with the names that the client knows, to be said in the words of an API."""

    model: str
    text: str
    calls: tuple[tuple[str, ToolCall], ...]
    tools: Mapping[str, Body]


def name(prefix: str) -> str:
    return f"{prefix}{next(_numbers):024d}"


def say_anthropic(answer: ModelAnswer, *, is_stream: bool) -> Body | list[str]:
    blocks: list[Body] = [{"type": "text", "text": answer.text}] if answer.text else []
    blocks += [
        {"type": "tool_use", "id": name("toolu_"), "name": known, "input": call.arguments}
        for known, call in answer.calls
    ]
    reason = "tool_use" if answer.calls else "end_turn"
    usage = {"input_tokens": 100, "output_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    message: Body = {"id": name("msg_"), "type": "message", "role": "assistant", "model": answer.model}
    message |= {"content": blocks, "stop_reason": reason, "stop_sequence": None, "usage": usage}
    if not is_stream:
        return message
    events: list[tuple[str, Body]] = [("message_start", {"message": {**message, "content": [], "stop_reason": None}})]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            whole = json.dumps(block["input"])
            empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": whole}
        events.append(("content_block_start", {"index": index, "content_block": empty}))
        events.append(("content_block_delta", {"index": index, "delta": delta}))
        events.append(("content_block_stop", {"index": index}))
    events.append(("message_delta", {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}))
    events.append(("message_stop", {}))
    return [f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n" for kind, data in events]


def say_chat(answer: ModelAnswer, *, is_stream: bool) -> Body | list[str]:
    calls = [
        {
            "index": index,
            "id": name("call_"),
            "type": "function",
            "function": {"name": known, "arguments": json.dumps(call.arguments)},
        }
        for index, (known, call) in enumerate(answer.calls)
    ]
    reason = "tool_calls" if calls else "stop"
    base = {"id": name("chatcmpl-"), "created": 1, "model": answer.model}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    said: Body = {"role": "assistant", "content": answer.text or None} | ({"tool_calls": calls} if calls else {})
    if not is_stream:
        choice = {"index": 0, "message": said, "finish_reason": reason}
        return {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
    base["object"] = "chat.completion.chunk"
    chunks: list[Body] = [
        {**base, "choices": [{"index": 0, "delta": said, "finish_reason": None}]},
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {**base, "choices": [], "usage": usage},
    ]
    return [*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks), "data: [DONE]\n\n"]


def _item(answer: ModelAnswer, known: str, call: ToolCall) -> Body:
    if known == "tool_search":
        arguments = {"execution": "client", "arguments": call.arguments}
        return {
            "type": "tool_search_call",
            "id": name("ts_"),
            "call_id": name("call_"),
            "status": "completed",
            **arguments,
        }
    item: Body = {"id": name("fc_"), "call_id": name("call_"), "name": known, "status": "completed"}
    if call.text is not None:
        item |= {"type": "custom_tool_call", "input": call.text}
    else:
        item |= {"type": "function_call", "arguments": json.dumps(call.arguments)}
    space = answer.tools[known].get("namespace")
    return item | ({"namespace": space} if space else {})


def say_responses(answer: ModelAnswer, *, is_stream: bool) -> Body | list[str]:
    items: list[Body] = []
    if answer.text:
        content = [{"type": "output_text", "text": answer.text, "annotations": []}]
        items.append({"type": "message", "id": name("msg_"), "role": "assistant", "content": content})
        items[0]["status"] = "completed"
    items += [_item(answer, known, call) for known, call in answer.calls]
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    whole: Body = {"id": name("resp_"), "object": "response", "created_at": 1, "status": "completed"}
    whole |= {"model": answer.model, "output": items, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    whole["usage"] = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120, **details}
    if not is_stream:
        return whole
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[tuple[str, Body]] = [("response.created", {"response": begun})]
    for index, item in enumerate(items):
        at: Body = {"output_index": index, "item_id": item["id"]}
        events.append(
            ("response.output_item.added", {"output_index": index, "item": {**item, "status": "in_progress"}})
        )
        if item["type"] == "message":
            part = item["content"][0]
            events.append(("response.content_part.added", {**at, "content_index": 0, "part": {**part, "text": ""}}))
            events.append(("response.output_text.delta", {**at, "content_index": 0, "delta": part["text"]}))
            events.append(("response.output_text.done", {**at, "content_index": 0, "text": part["text"]}))
            events.append(("response.content_part.done", {**at, "content_index": 0, "part": part}))
        elif item["type"] == "function_call":
            events.append(("response.function_call_arguments.delta", {**at, "delta": item["arguments"]}))
            events.append(("response.function_call_arguments.done", {**at, "arguments": item["arguments"]}))
        events.append(("response.output_item.done", {"output_index": index, "item": item}))
    events.append(("response.completed", {"response": whole}))
    return [
        f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': number, **data})}\n\n"
        for number, (kind, data) in enumerate(events)
    ]


def say_gemini(answer: ModelAnswer, *, is_stream: bool) -> Body | list[str]:
    parts: list[Body] = [{"text": answer.text}] if answer.text else []
    parts += [
        {"functionCall": {"id": name("fc"), "name": known, "args": call.arguments}} for known, call in answer.calls
    ]
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    whole = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": answer.model, "responseId": name("r")}
    return [f"data: {json.dumps(whole)}\r\n\r\n"] if is_stream else whole


APIS = {
    "/messages": (read_anthropic, say_anthropic),
    "/chat/completions": (read_chat, say_chat),
    "/responses": (read_responses, say_responses),
    ":generateContent": (read_gemini, say_gemini),
    ":streamGenerateContent": (read_gemini, say_gemini),
}


class ScriptedModel:
    """The server, as long as the block lasts. `requests` has the text of each request, `paths` what else was asked."""

    def __init__(self, script: tuple[Turn, ...] = (), *, most_searches: int = MOST_SEARCHES) -> None:
        self.script = script
        self.most_searches = most_searches
        self.requests: list[str] = []
        self.results: list[str] = []
        self.paths: list[str] = []
        # What the client has offered
        self.tools: set[str] = set()
        model = self

        class Handler(_Handler):
            said_to = model

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_rest: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, asked: Asked, model: str) -> ModelAnswer:
        """Return what to say, with the names of tools that this client has."""
        step = asked.step
        if not any(turn.calls for turn in self.script):
            step = sum(turn.text.strip() in asked.said for turn in self.script)
        if step >= len(self.script):
            return ModelAnswer(model, "The script is over.", (), asked.tools)
        turn = self.script[step]
        calls = []
        for wanted in turn.calls:
            call, known = wanted, next((one for one in wanted.names if one in asked.tools), None)
            if known is None and CALLER in asked.tools:
                # It names the tools that it keeps back, and what was found of them is not added to the others
                hidden = next((one for one in call.names if f'"name":"{one}"' in "".join(asked.results)), None)
                if hidden is not None or asked.step:
                    given = {"name": hidden or call.names[0], "arguments": call.arguments}
                    known, call = CALLER, ToolCall((CALLER,), given)
            if known is None:
                return self._search(asked, model)
            calls.append((known, call))
        return ModelAnswer(model, turn.text, tuple(calls), asked.tools)

    def _search(self, asked: Asked, model: str) -> ModelAnswer:
        finders = [one for one in FINDERS if one in asked.tools]
        if not finders or asked.searches >= self.most_searches:
            return ModelAnswer(model, "ok", (), asked.tools)
        # As slow as a model is. Each in turn: one waits for the server, the next asks for its tools
        time.sleep(SEARCH_S)
        finder = finders[asked.searches % len(finders)]
        return ModelAnswer(model, "", ((finder, ToolCall((finder,), FINDERS[finder])),), asked.tools)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    said_to: ScriptedModel

    def log_message(self, *_rest: object) -> None:
        pass

    def _send(self, answer: Body | list[str], status: int = 200) -> None:
        data = ("".join(answer) if isinstance(answer, list) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if isinstance(answer, list) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data)
        except ConnectionError:
            # A client that does not wait for an answer is noted all the same
            self.close_connection = True

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        raw = b""
        while size := int(self.rfile.readline().strip() or b"0", 16):
            raw += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return raw

    def do_HEAD(self) -> None:
        self._send([])

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.said_to.paths.append(path)
        if path.endswith("/models"):
            model = {
                "id": "mock-model",
                "slug": "mock-model",
                "object": "model",
                "type": "model",
                "display_name": "mock",
            }
            self._send({"object": "list", "data": [model], "has_more": False})
            return
        self._send({"error": {"message": "there is nothing here"}}, 404)

    def do_POST(self) -> None:
        path, raw = self.path.partition("?")[0], self._body()
        if path.endswith(("/count_tokens", ":countTokens")):
            self._send({"input_tokens": 100, "totalTokens": 100})
            return
        api = next((api for end, api in APIS.items() if path.endswith(end)), None)
        if api is None:
            self.said_to.paths.append(path)
            self._send({"error": {"message": "there is nothing here"}}, 404)
            return
        body = json.loads(raw)
        read, say = api
        asked = read(body)
        self.said_to.requests.append(raw.decode())
        self.said_to.results += asked.results
        self.said_to.tools |= asked.tools.keys()
        answer = self.said_to.answer(asked, body.get("model") or "mock-model")
        is_stream = path.endswith(":streamGenerateContent") or bool(body.get("stream"))
        self._send(say(answer, is_stream=is_stream))
