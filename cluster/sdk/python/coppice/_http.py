"""Requests with limits: for each attempt a time, for each answer a size, for all a patience."""

import http.client
import io
import json
import random
import re
import socket
import ssl
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._types import EXHAUSTED, UNAVAILABLE, Refused

PROOF = "application/vnd.coppice.proof"
ENDPOINTS_MAX = 16
LINE_BYTES_MAX = 4 << 20
PAUSE_S, PAUSE_MAX_S = 0.02, 0.5
# A watch without a word for so long is broken: a coordinator says every 15 s that it is there.
SILENCE_S = 45.0
COORDINATOR = ("URI", "urn:coppice:role:coordinator")


@dataclass(frozen=True)
class TLS:
    """Paths of PEM files: the authorities of the ledger, and the caller's certificate and its key.

    They are read again for each connection. The server must have the role of a coordinator, unless
    `any_server` is set.
    """

    ca: str
    certificate: str | None = None
    key: str | None = None
    any_server: bool = False

    def context(self) -> ssl.SSLContext:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate and its key go together")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self.ca)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True)
class Answer:
    """An answer of HTTP that is no refusal."""

    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return parsed(self.body)

    def lines(self) -> list[Any]:
        return [parsed(line) for line in self.body.splitlines()]


class Malformed(Exception):
    """An answer that no coordinator sends."""


class _Timed(io.RawIOBase):
    """A socket's bytes, of which each read ends at the connection's deadline."""

    def __init__(self, connection: "_Connection", sock: socket.socket) -> None:
        self._connection, self._sock, self._raw = connection, sock, sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._connection.left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Socket:
    """What http.client uses of a socket, with the connection's deadline."""

    def __init__(self, connection: "_Connection", sock: socket.socket) -> None:
        self._connection, self._sock = connection, sock

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Timed(self._connection, self._sock))

    def sendall(self, data: bytes) -> None:
        # The limit of `sendall` is for all of the data.
        self._connection.sent = True
        self._sock.settimeout(self._connection.left())
        self._sock.sendall(data)

    def close(self) -> None:
        self._sock.close()


class _Connection(http.client.HTTPConnection):
    """A connection whose waits all end at `deadline`, a time of the monotonic clock."""

    def __init__(self, host: str, port: int, tls: TLS | None, deadline: float) -> None:
        super().__init__(host, port)
        self.deadline, self.sent, self._tls = deadline, False, tls

    def left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time for an answer is over")
        return left

    def connect(self) -> None:
        context = self._tls.context() if self._tls else None
        sock = socket.create_connection((self.host, self.port), self.left())
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context and self._tls:
                sock.settimeout(self.left())
                sock = context.wrap_socket(sock, server_hostname=self.host)
                shown: dict[str, Any] = sock.getpeercert() or {}
                if not self._tls.any_server and COORDINATOR not in shown.get("subjectAltName", ()):
                    raise ssl.SSLError("the server's certificate is not a coordinator's")
        except BaseException:
            sock.close()
            raise
        self.sock: Any = _Socket(self, sock)


class Transport:
    """Sends requests to the coordinators of one ledger, to the one that answered last until it
    fails. For one thread at a time."""

    def __init__(
        self, endpoints: str | list[str], tls: TLS | None, timeout: float, patience: float, answer_bytes_max: int
    ) -> None:
        endpoints = [endpoints] if isinstance(endpoints, str) else list(endpoints)
        if not 1 <= len(endpoints) <= ENDPOINTS_MAX:
            raise ValueError(f"from 1 to {ENDPOINTS_MAX} endpoints are needed")
        if timeout <= 0 or patience < 0 or answer_bytes_max <= 0:
            raise ValueError("limits are above 0")
        if tls:
            tls.context()
        self._places = [_place(endpoint, tls is not None) for endpoint in endpoints]
        self._tls, self._timeout, self._patience = tls, timeout, patience
        self._bytes_max = answer_bytes_max
        self._connection: _Connection | None = None

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    def call(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, body: bytes | None = None,
        once: bool = False,
    ) -> Answer:
        """Sends a request until it succeeds, is refused for good, or the patience ends. With
        `once`, it is sent again only if it certainly had no effect."""
        until, pause, unknown = time.monotonic() + self._patience, PAUSE_S, False
        while True:
            try:
                return self._attempt(method, path, headers or {}, body, fresh=once)
            except Failed as failed:
                refused, wait = failed.refused, max(pause * random.uniform(0.5, 1), failed.retry_after)
                nothing_done = refused.reason in EXHAUSTED or refused.reason == "NOT_LEADER" or not failed.sent
                unknown = unknown or not (nothing_done or failed.final)
                # These two concern the number of a batch, so they hold for all attempts.
                refused.outcome_unknown = unknown and refused.reason not in ("ROLLED_BACK", "SESSION_MISMATCH")
                if failed.final or time.monotonic() + wait > until or (once and not nothing_done):
                    raise refused from failed.__cause__
            self._places.append(self._places.pop(0))
            time.sleep(wait)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _attempt(self, method: str, path: str, headers: dict[str, str], body: bytes | None, fresh: bool) -> Answer:
        deadline = time.monotonic() + self._timeout
        connection = self._connect(deadline, fresh)
        try:
            response = _ask(connection, method, path, headers, body)
            content = _whole(response, self._bytes_max)
        except (OSError, http.client.HTTPException, Malformed) as error:
            self.close()
            raise Failed(_unanswered(self._places[0], error), sent=connection.sent) from error
        if response.will_close:
            self.close()
        if response.status >= 300:
            raise _refusal(response, content)
        return Answer(response.headers, content)

    def _connect(self, deadline: float, fresh: bool) -> _Connection:
        place = self._places[0]
        kept = self._connection
        if kept and (fresh or (kept.host, kept.port) != place):
            self.close()
        if not self._connection:
            self._connection = _Connection(*place, self._tls, deadline)
        self._connection.deadline, self._connection.sent = deadline, False
        return self._connection

    def events(self, path: str, quiet: float | None) -> Iterator[dict[str, str]]:
        """The events of a stream as fields. The stream ends when it breaks off, or after `quiet`
        seconds without an event.

        Raises Failed if it does not begin.
        """
        connection = _Connection(*self._places[0], self._tls, time.monotonic() + self._timeout)
        try:
            try:
                response = _ask(connection, "GET", path, {}, None)
                if response.status != 200:
                    raise _refusal(response, _whole(response, self._bytes_max))
            except (OSError, http.client.HTTPException, Malformed) as error:
                self._places.append(self._places.pop(0))
                raise Failed(_unanswered(self._places[-1], error), sent=True) from error
            yield from _events(connection, response, quiet)
        finally:
            connection.close()


def _events(
    connection: _Connection, response: http.client.HTTPResponse, quiet: float | None
) -> Iterator[dict[str, str]]:
    event: dict[str, str] = {}
    last = time.monotonic()
    try:
        while True:
            silence = SILENCE_S if quiet is None else min(SILENCE_S, last + quiet - time.monotonic())
            connection.deadline = time.monotonic() + silence
            line = response.readline(LINE_BYTES_MAX)
            if not line.endswith(b"\n"):
                return
            name, _, value = line[:-1].decode().partition(":")
            if name in ("id", "event", "data"):
                event[name] = value.removeprefix(" ")
            elif event and not name and not value:
                yield event
                event, last = {}, time.monotonic()
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return


class Failed(Exception):
    """One attempt that failed."""

    def __init__(self, refused: Refused, sent: bool, final: bool = False, retry_after: float = 0.0) -> None:
        self.refused, self.sent, self.final, self.retry_after = refused, sent, final, retry_after


def _ask(
    connection: _Connection, method: str, path: str, headers: dict[str, str], body: bytes | None
) -> http.client.HTTPResponse:
    connection.request(method, path, body, headers)
    return connection.getresponse()


def _whole(response: http.client.HTTPResponse, bytes_max: int) -> bytes:
    """The body. One whose end nobody states might be cut off."""
    length = response.length
    if length is None and not response.chunked:
        raise Malformed("an answer without a length")
    if length is not None and length > bytes_max:
        raise Malformed(f"an answer of more than {bytes_max} bytes")
    parts: list[bytes] = []
    size = 0
    while part := response.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > bytes_max:
            raise Malformed(f"an answer of more than {bytes_max} bytes")
    if length is not None and size != length:
        raise Malformed("an answer that broke off")
    # The connection is free for the next request.
    response.close()
    return b"".join(parts)


def _refusal(response: http.client.HTTPResponse, content: bytes) -> Failed:
    try:
        problem = parsed(content)
        reason, detail = str(problem["reason"]), str(problem["detail"])
    except (Malformed, KeyError, TypeError):
        reason, detail = "", f"the answer is {response.status}"
    again = reason in EXHAUSTED or reason in UNAVAILABLE or (not reason and response.status >= 500)
    after = response.headers.get("Retry-After", "")
    wait = float(after) if re.fullmatch("[0-9]{1,4}", after) else 0.0
    refused = Refused(detail, reason, response.status)
    return Failed(refused, sent=True, final=not again, retry_after=wait if again else 0.0)


def _unanswered(place: tuple[str, int], error: Exception) -> Refused:
    return Refused(f"no answer from {place[0]}:{place[1]}: {error}")


def parsed(text: bytes | str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed("an answer that is no JSON") from error


def _place(endpoint: str, encrypted: bool) -> tuple[str, int]:
    url = urllib.parse.urlsplit(endpoint)
    scheme = "https" if encrypted else "http"
    if url.scheme != scheme or not url.hostname or url.username or url.path not in ("", "/") or url.query:
        raise ValueError(f"an endpoint is {scheme}://HOST:PORT")
    return url.hostname, url.port or (443 if encrypted else 80)
