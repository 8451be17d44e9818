"""Handwritten frames of HTTP/2 and gRPC: an adversary sends frames that no library would send.

An attack follows the protocol and decodes answers only where it would not be let in otherwise.
Lengths are in bytes.
"""

import socket
import ssl
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4
WINDOW_MAX = 2**31 - 1
# The adversary's address on the loopback interface.
ADDRESS = "127.0.0.66"
# The largest frame that a peer must accept without negotiation.
FRAME_BYTES = 16_384


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name, value):
    """A literal header field without an index."""
    name, value = name.encode(), value.encode()
    assert len(name) < 127 and len(value) < 127, "longer ones need another form of length"
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def field(number, value):
    """A field of a protobuf message: bytes, or an unsigned number."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def message(body):
    return message_start(len(body)) + body


def message_start(length):
    """The beginning of a gRPC message of this length. The rest may never follow."""
    return b"\x00" + struct.pack(">I", length)


class Target:
    """The target of an attack: an address, and the certificate that the attacker shows there, if
    any."""

    def __init__(self, host, port, *, ca=None, certificate=None, key=None):
        self.host, self.port, self.certificate, self.key = host, port, certificate, key
        self.context = None
        if ca:
            self.context = ssl.create_default_context(cafile=ca)
            self.context.set_alpn_protocols(["h2"])
            if certificate:
                self.context.load_cert_chain(certificate, key)

    def socket(self, limit=10):
        """A TCP connection that sends nothing. Its receive buffer is small."""
        connection = socket.socket(socket.AF_INET)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.settimeout(limit)
        # Without a certificate, the ledger counts by address. No other client uses the adversary's
        # address.
        connection.bind((ADDRESS, 0))
        connection.connect((self.host, self.port))
        return connection

    def connect(self, limit=10):
        """A connection after its TLS handshake, if there is TLS."""
        raw = self.socket(limit)
        return self.context.wrap_socket(raw, server_hostname=self.host) if self.context else raw


class Attacker:
    """An HTTP/2 connection that opens streams, and reads only on request."""

    def __init__(self, target, *, window=65_535):
        self.socket = target.connect()
        self.authority = f"{target.host}:{target.port}"
        self.scheme = "https" if target.context else "http"
        self.next_stream = 1
        self.buffer = bytearray()
        # The remaining windows for sending: of the connection, of a new stream, of each stream.
        self.room, self.initial_room, self.rooms = 65_535, 65_535, {}
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self.send(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(SETTINGS, ACK, 0))
        if window > 65_535:
            self.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW_MAX - 65_535)))

    def send(self, data):
        self.socket.sendall(data)

    def headers(self, path):
        """The header block of a call."""
        fields = [(":method", "POST"), (":scheme", self.scheme), (":path", path), (":authority", self.authority),
                  ("content-type", "application/grpc"), ("te", "trailers")]
        return b"".join(header(name, value) for name, value in fields)

    def open(self, path, body=b"", *, end=True):
        """Opens a stream with a call; returns its number."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        self.rooms[stream] = self.initial_room
        self.send(frame(HEADERS, END_HEADERS, stream, self.headers(path)))
        if body or end:
            self.send(frame(DATA, END_STREAM if end else 0, stream, body))
            self.room, self.rooms[stream] = self.room - len(body), self.rooms[stream] - len(body)
        return stream

    def data(self, stream, data, limit=10):
        """Sends a part of a request without ending it, as the other end grants windows; returns the
        number of bytes that were sent."""
        sent, end = 0, time.monotonic() + limit
        while sent < len(data) and stream in self.rooms and time.monotonic() < end:
            size = min(self.room, self.rooms[stream], FRAME_BYTES, len(data) - sent)
            if size <= 0:
                if not self.read_some():
                    break
                continue
            self.send(frame(DATA, 0, stream, data[sent:sent + size]))
            sent, self.room = sent + size, self.room - size
            self.rooms[stream] -= size
        return sent

    def read_some(self, limit=0.2):
        """Reads once and records granted windows; False if the other end has hung up. Other frames
        are dropped."""
        try:
            self.socket.settimeout(limit)
            data = self.socket.recv(1 << 18)
        except (TimeoutError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        finally:
            self.socket.settimeout(10)
        if not data:
            return False
        self.buffer += data
        while len(self.buffer) >= 9:
            length = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + length:
                break
            kind, flags, stream = struct.unpack(">BBI", self.buffer[3:9])
            self._note(kind, flags, stream & WINDOW_MAX, bytes(self.buffer[9:9 + length]))
            del self.buffer[:9 + length]
        return True

    def _note(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at:at + 6])
                if name == INITIAL_WINDOW_SIZE:
                    self.rooms = {open_: room + value - self.initial_room for open_, room in self.rooms.items()}
                    self.initial_room = value
        elif kind == WINDOW_UPDATE:
            more = struct.unpack(">I", payload)[0] & WINDOW_MAX
            if stream:
                if stream in self.rooms:
                    self.rooms[stream] += more
            else:
                self.room += more
        elif kind == RST_STREAM:
            self.rooms.pop(stream, None)

    def close(self):
        try:
            self.socket.close()
        except OSError:
            pass
