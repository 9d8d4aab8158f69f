# SPDX-License-Identifier: Apache-2.0
"""A web server on loopback that says which requests have arrived."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site(BaseHTTPRequestHandler):
    """Says which request arrived; keeps connections if it is allowed to."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append(f"{self.command} {self.headers['Host']} {self.path} {body.decode()}".strip())
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        return


class Web:
    """A web server, with what it has seen."""

    def __init__(self, wrapped: ssl.SSLContext | None = None) -> None:
        self.seen: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Seen", (Site,), {"seen": self.seen}))
        self._server.daemon_threads = True
        if wrapped is not None:
            self._server.socket = wrapped.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
