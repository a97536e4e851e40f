"""A server of completions that behaves as it is told: for the client's tests, with sockets and threads."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler", dict[str, Any]], None]


def event(text: str | None = "", finish: str | None = None, **choice: Any) -> str:
    """One event of a stream, as JSON. Text is not escaped: servers send UTF-8 as it is."""
    whole = {"choices": [{"index": 0, "text": text, "finish_reason": finish, **choice}]}
    return json.dumps(whole, ensure_ascii=False)


def usage_event(prompt: int, generated: int, **details: Any) -> str:
    return json.dumps(
        {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": generated, **details}}
    )


def stream_bytes(events: Iterable[str], *, done: bool = True, end: str = "\n\n") -> bytes:
    return "".join(f"data: {e}{end}" for e in [*events, *(["[DONE]"] if done else [])]).encode()


def words(tokens: Sequence[str], finish: str | None = "stop", **choice: Any) -> list[str]:
    """The events of a text that comes token by token, the end in one of its own."""
    return [*(event(token) for token in tokens), *([] if finish is None else [event("", finish, **choice)])]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        known = self.server.pages.get(self.path)
        self.server.gets.append(self.path)
        if known is None:
            self.plain(404, b'{"detail":"Not Found"}')
        elif callable(known):
            known(self, {})
        else:
            self.plain(200, json.dumps(known).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self.do_GET()
            return
        server = self.server
        with server.lock:
            server.requests.append(body)
            server.headers.append(dict(self.headers))
            number = len(server.requests) - 1
            server.active += 1
            server.most = max(server.most, server.active)
        try:
            answers = server.answers
            (answers[min(number, len(answers) - 1)] if isinstance(answers, list) else answers)(self, body)
        except (BrokenPipeError, ConnectionResetError):
            server.left.set()
        finally:
            with server.lock:
                server.active -= 1

    def plain(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        """An answer of known length."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def begin(self, kind: str = "text/event-stream", *, chunked: bool = True) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.chunked = chunked

    def send(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if self.chunked else data)
        self.wfile.flush()

    def finish_body(self) -> None:
        if self.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def hang_up(self) -> None:
        """Ends the connection without a word."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class FakeServer(ThreadingHTTPServer):
    """Listens on a free loopback port until the end of the `with`.

    answers: how the requests are answered, one after another, the last for all that follow; or one for all.
    Attributes: requests and headers: what came; most: the most requests that ran at a time; left: set when
    the client has left in mid-answer; pages: what GET answers; gets: the paths that were asked for.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, answers: Answer | list[Answer], kind: str = "generic") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        owner = {"vllm": "vllm", "transformers": "local"}.get(kind, "someone")
        self.pages: dict[str, Any] = {"/v1/models": {"data": [{"id": "m", "owned_by": owner}]}}
        if kind == "transformers":
            self.pages["/openapi.json"] = {"paths": {"/load_model": {}, "/v1/completions": {}}}
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.gets: list[str] = []
        self.active = self.most = 0
        self.left, self.over = threading.Event(), threading.Event()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()


def streamed(events: Iterable[str], *, done: bool = True, step: int = 0, chunked: bool = True) -> Answer:
    """A stream of these events; step: so many bytes at a time."""
    data = stream_bytes(events, done=done)

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin(chunked=chunked)
        for at in range(0, len(data), step or len(data)):
            handler.send(data[at : at + (step or len(data))])
        handler.finish_body()

    return answer


def status(code: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> Answer:
    return lambda handler, request: handler.plain(code, body, kind, **headers)


def cut(data: bytes, *, chunked: bool = True) -> Answer:
    """Sends this much of a stream and hangs up."""

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin(chunked=chunked)
        handler.send(data)
        time.sleep(0.05)  # the bytes are read before the connection is reset
        handler.hang_up()

    return answer


def silent(data: bytes = b"") -> Answer:
    """Sends this much of a stream, or nothing at all, and falls silent."""

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        if data:
            handler.begin()
            handler.send(data)
        handler.server.over.wait(20)

    return answer


def hangs_up(handler: Handler, body: dict[str, Any]) -> None:
    """No answer at all."""
    handler.hang_up()
