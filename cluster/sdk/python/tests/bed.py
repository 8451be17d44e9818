"""Ledgers of `coppice dev` for tests, and servers that lie."""

import atexit
import http.client
import http.server
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coppice import UnverifiedClient

ROOT = Path(__file__).parents[4]
BIN = Path(os.environ.get("COPPICE_BIN", ROOT / "target/debug/coppice")).absolute()
LIMIT_S = 60


class Dev:
    """A ledger on a free port."""

    def __init__(self, directory: Path) -> None:
        if not BIN.exists():
            raise RuntimeError(f"{BIN} is missing: `make build`, or set COPPICE_BIN")
        self.directory = directory
        options = ["--replicas", "1", "--shards", "2", "--listen", "127.0.0.1:0", "--data-dir", str(directory)]
        with directory.with_suffix(".log").open("w") as log:
            self.process = subprocess.Popen([BIN, "dev", *options], stdout=subprocess.PIPE, stderr=log, text=True)
        # However the tests end, no ledger stays behind.
        atexit.register(self.process.kill)
        assert self.process.stdout
        words = next((line for line in self.process.stdout if line.startswith("ready ")), "")
        self.endpoint = words.removeprefix("ready ").strip()
        assert self.endpoint, f"the ledger did not start: {directory.with_suffix('.log').read_text()}"
        self.vkey = (directory / "ledger.vkey").read_text()

    def command(self, *words: str) -> None:
        environment = os.environ | {"COPPICE_ENDPOINT": self.endpoint}
        subprocess.run([BIN, *words], env=environment, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=LIMIT_S)

    def twin(self, directory: Path) -> tuple["Dev", "Dev"]:
        """Two ledgers that go on from this one under one key: a fork."""
        self.stop()
        shutil.copytree(self.directory, directory)
        return Dev(self.directory), Dev(directory)


class Answered:
    """An answer on its way through a relay, which may change it."""

    def __init__(self, code: int, headers: dict[str, str], body: bytes) -> None:
        self.code, self.headers, self.body = code, headers, body


class Drop(Exception):
    """The relay closes the connection without an answer."""


class Relay:
    """A coordinator that passes requests on to a ledger. `lie` gets the method, the path and the
    answer, and may change the answer; `before` gets method and path, and may answer itself. A watch
    breaks off after two entries, within an event."""

    def __init__(self, dev: Dev, context: ssl.SSLContext | None = None) -> None:
        self.dev = dev
        self.lie: Callable[[str, str, Answered], None] | None = None
        self.before: Callable[[str, str], Answered | None] | None = None
        self.calls: list[tuple[str, str]] = []
        relay = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def handle_any(self) -> None:
                relay._handle(self)

            do_GET = do_PUT = do_POST = do_DELETE = handle_any

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        # A handshake that fails is no fault of the relay.
        self.server.handle_error = lambda *_: None
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "https" if context else "http"
        self.endpoint = f"{scheme}://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Answered:
        connection = http.client.HTTPConnection(self.dev.endpoint.removeprefix("http://"), timeout=LIMIT_S)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answered = Answered(answer.status, dict(answer.headers.items()), answer.read())
        connection.close()
        return answered

    def _two_events(self, start: int) -> Answered:
        lines = self.ask("GET", f"/v1/log?from={start}&limit=2", {}).body.splitlines()
        events = (b"id: %d\nevent: e\ndata: %s\n\n" % (start + i, line) for i, line in enumerate(lines))
        return Answered(200, {"Content-Type": "text/event-stream"}, b"".join(events) + b"id: 99\nevent: e\nda")

    def _handle(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        method, path = handler.command, handler.path
        self.calls.append((method, path))
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        try:
            answer = self.before and self.before(method, path)
            if not answer and path.startswith("/v1/watch"):
                answer = self._two_events(int(path.partition("from=")[2]))
            if not answer:
                kept = {name: value for name, value in handler.headers.items() if name.lower() != "host"}
                answer = self.ask(method, path, kept, body)
                if self.lie:
                    self.lie(method, path, answer)
        except Drop:
            handler.close_connection = True
            return
        handler.send_response(answer.code)
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "date", "transfer-encoding"):
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(answer.body)))
        handler.end_headers()
        try:
            handler.wfile.write(answer.body)
        except OSError:
            # The client has had enough.
            handler.close_connection = True


class Wire:
    """A server that gets each connection after its request was read, and does what it wants."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.count = 0

        def one(connection: socket.socket) -> None:
            with connection:
                connection.settimeout(LIMIT_S)
                head = b""
                while b"\r\n\r\n" not in head and (part := connection.recv(4096)):
                    head += part
                try:
                    serve(connection)
                except OSError:
                    # The client has had enough.
                    pass

        def accept() -> None:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except OSError:
                    return
                self.count += 1
                threading.Thread(target=one, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def close(self) -> None:
        # Wakes the thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def refusal(code: int, reason: str, **headers: str) -> Answered:
    document = f'{{"reason": "{reason}", "detail": "it is said", "status": {code}}}'
    return Answered(code, {"Content-Type": "application/problem+json", **headers}, document.encode())


def certificates(directory: Path, name: str, role: str, *hosts: str) -> tuple[str, str]:
    """Paths of a new certificate and its key; the authority is `ca.pem` beside them."""
    script = ROOT / "scripts/certificates.sh"
    subprocess.run([script, directory, name, role, *hosts], check=True, timeout=LIMIT_S)
    return str(directory / f"{name}.pem"), str(directory / f"{name}.key")


def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="coppice-python-"))


def within(seconds: float, began: float) -> None:
    took = time.monotonic() - began
    assert took <= seconds, f"it took {took:.1f} s"


class Closing(unittest.TestCase):
    """Tests whose clients are closed at their end."""

    def believing(self, endpoint: str, **options: Any) -> UnverifiedClient:
        client = UnverifiedClient(endpoint, **options)
        self.addCleanup(client.close)
        return client


class OnLedger(Closing):
    """Tests that share a ledger."""

    folder: Path
    dev: Dev

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = folder()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.dev = Dev(cls.folder / "ledger")
        cls.addClassCleanup(cls.dev.stop)
