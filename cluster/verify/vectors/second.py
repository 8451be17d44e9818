#!/usr/bin/env python3
"""A second implementation of docs/verification.md, written from the page, to check the page and the vectors beside this file.

Slow and plain, no packages. Run without arguments; it ends with an error at the first value that differs.
"""

import base64
import hashlib
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))


def load(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return json.load(file)


# Section 1: notation.
def H(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def u8(x):
    return struct.pack("<B", x)


def u16(x):
    return struct.pack("<H", x)


def u32(x):
    return struct.pack("<I", x)


def u64(x):
    return struct.pack("<Q", x)


def str16(x):
    return u16(len(x)) + x


def opt16(x):
    return b"\0" if x is None else b"\1" + str16(x)


class Failed(Exception):
    """A step that failed."""


def need(holds, step):
    if not holds:
        raise Failed(step)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        need(self.at + n <= len(self.data), "format")
        self.at += n
        return self.data[self.at - n : self.at]

    def u8(self):
        return self.take(1)[0]

    def u16(self):
        return struct.unpack("<H", self.take(2))[0]

    def u32(self):
        return struct.unpack("<I", self.take(4))[0]

    def u64(self):
        return struct.unpack("<Q", self.take(8))[0]

    def short(self):
        """Seven bits a byte, the lowest first, in one spelling."""
        x = shift = 0
        while True:
            byte = self.u8()
            x |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                need(x < 2**64 and (byte > 0 or shift == 7), "format")
                return x

    def less(self, bits):
        x = self.short()
        need(x < 2**bits, "format")
        return x

    def flag(self):
        x = self.u8()
        need(x < 2, "format")
        return x == 1

    def stamp(self):
        return (self.u64(), self.u64())

    def str16(self):
        return self.take(self.u16())

    def str32(self):
        return self.take(self.u32())

    def opt16(self):
        return self.str16() if self.flag() else None

    def hashes(self):
        return [self.take(32) for _ in range(self.u16())]

    def end(self):
        need(self.at == len(self.data), "format")


# Section 2: Merkle lists.
def half(n):
    k = 1
    while k * 2 < n:
        k *= 2
    return k


def mth(leaves):
    if not leaves:
        return H(b"")
    if len(leaves) == 1:
        return leaves[0]
    k = half(len(leaves))
    return H(b"\1", mth(leaves[:k]), mth(leaves[k:]))


def list_root(n, revealed, hashes, step):
    """The root to which a list proof leads; `revealed` are (index, leaf hash)."""
    indices = [i for i, _ in revealed]
    if n == 0:
        need(not revealed and not hashes, step)
        return H(b"")
    need(indices and all(a < b for a, b in zip(indices, indices[1:])) and indices[-1] < n, step)
    leaves, rest = dict(revealed), list(hashes)

    def root(start, size):
        if not any(start <= i < start + size for i in indices):
            need(rest, step)
            return rest.pop(0)
        if size == 1:
            return leaves[start]
        k = half(size)
        left = root(start, k)
        return H(b"\1", left, root(start + k, size - k))

    result = root(0, n)
    need(not rest, step)
    return result


def included(index, size, leaf, path, root, step):
    """RFC 9162, 2.1.3.2."""
    need(index < size, step)
    fn, sn, r = index, size - 1, leaf
    for p in path:
        need(sn != 0, step)
        if fn & 1 or fn == sn:
            r = H(b"\1", p, r)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            r = H(b"\1", r, p)
        fn, sn = fn >> 1, sn >> 1
    need(sn == 0 and r == root, step)


def consistent(old, new, old_root, new_root, path, step):
    """RFC 9162, 2.1.4.2."""
    need(old <= new, step)
    if old in (0, new):
        need(not path and old_root == (new_root if old == new else H(b"")), step)
        return
    path = ([old_root] if old & (old - 1) == 0 else []) + path
    need(path, step)
    fn, sn = old - 1, new - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = path[0]
    for c in path[1:]:
        need(sn != 0, step)
        if fn & 1 or fn == sn:
            fr, sr = H(b"\1", c, fr), H(b"\1", c, sr)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = H(b"\1", sr, c)
        fn, sn = fn >> 1, sn >> 1
    need(sn == 0 and fr == old_root and sr == new_root, step)


# Section 3: a record is (key, stamp, length, hash) or, as a tombstone, (key, stamp, None, None).
def record_hash(record):
    key, (epoch, version), length, value = record
    if length is None:
        return H(b"\x10\1", u64(epoch), u64(version), str16(key))
    return H(b"\x10\0", u64(epoch), u64(version), str16(key), u32(length), value)


def leaf_hash(n, root):
    return H(b"\x11", u16(n), root)


def inner_hash(level, n, root):
    return H(b"\x1c", u8(level), u16(n), root)


def entry_hash(separator, child):
    return H(b"\x12", str16(separator), child)


def tree_digest(level, entries, root):
    return H(b"\x13", u8(level), u64(entries), root)


def shard_digest(trees):
    return H(b"\x14\1", u8(len(trees)), *trees)


EMPTY_ROOT = leaf_hash(0, mth([]))


# Section 4: a tree is a node; a node is (0, records) or (level, [(separator, node)]).
class Rules:
    def __init__(self, parameters):
        self.p = parameters
        self.least = -(-self.p["node_bytes"] // self.p["fanout"])

    def weigh_record(self, record):
        length = record[2]
        inline = length if length is not None and length <= self.p["inline_bytes"] else 0
        return max(72 + len(record[0]) + inline, self.least)

    def weigh_entry(self, entry):
        return max(64 + len(entry[0]), self.least)

    def split(self, entries, weigh):
        total, before, pieces = sum(map(weigh, entries)), 0, {}
        if total <= self.p["node_bytes"]:
            return [entries] if entries else []
        n = -(-total // self.p["node_bytes"])
        for entry in entries:
            pieces.setdefault(before * n // total, []).append(entry)
            before += weigh(entry)
        return [pieces[i] for i in sorted(pieces)]

    def pack(self, entries, weigh):
        nodes, weight = [], 0
        for entry in entries:
            if nodes and weight + weigh(entry) <= self.p["node_bytes"]:
                nodes[-1].append(entry)
                weight += weigh(entry)
            else:
                nodes.append([entry])
                weight = weigh(entry)
        return nodes

    def leaves(self, records, cut):
        """(separator, leaf) of each, the first without a separator."""
        pieces = cut(records, self.weigh_record)
        bounds = [b""] + [separator(a[-1][0], b[0][0]) for a, b in zip(pieces, pieces[1:])]
        return [(bound, (0, piece)) for bound, piece in zip(bounds, pieces)]

    def inner(self, level, entries, cut):
        """The same of inner nodes over these entries."""
        entries = [(b"", node) for _, node in entries[:1]] + entries[1:]
        pieces = cut(entries, self.weigh_entry)
        return [(piece[0][0], (level, [(b"", piece[0][1])] + piece[1:])) for piece in pieces]

    def above(self, nodes, cut):
        while len(nodes) > 1:
            nodes = self.inner(nodes[0][1][0] + 1, nodes, cut)
        return nodes[0][1] if nodes else (0, [])

    def apply(self, node, changes):
        level, entries = node
        if level == 0:
            records = {record[0]: record for record in entries}
            for key, record in changes:
                if record is None:
                    records.pop(key, None)
                else:
                    records[key] = record
            return self.leaves([records[key] for key in sorted(records)], self.split)
        groups = [[] for _ in entries]
        for key, record in changes:
            at = max(i for i, (bound, _) in enumerate(entries) if bound <= key)
            groups[at].append((key, record))
        after = []
        for (bound, child), group in zip(entries, groups):
            new = self.apply(child, group) if group else [(bound, child)]
            after += [(bound, node) for _, node in new[:1]] + new[1:]
        return self.inner(level, after, self.split)

    def change(self, tree, changes):
        root = self.above(self.apply(tree, changes), self.split)
        while root[0] > 0 and len(root[1]) == 1:
            root = root[1][0][1]
        return root

    def packed(self, records):
        return self.above(self.leaves(records, self.pack), self.pack)

    # Section 5.
    def filter(self, keys):
        blocks = max(1, -(-len(keys) * self.p["filter_bits"] // 512))
        bits = set().union(*(filter_bits(key, blocks) for key in keys)) if keys else set()
        return lambda key: filter_bits(key, blocks) <= bits


def filter_bits(key, blocks):
    a, x = struct.unpack("<QQ", H(b"\x15", key)[:16])
    return {(a * blocks >> 64, (x >> 9 * i) % 512) for i in range(7)}


def separator(left, right):
    return next(right[:n] for n in range(len(right) + 1) if right[:n] > left)


def records_of(node):
    level, entries = node
    return list(entries) if level == 0 else [r for _, child in entries for r in records_of(child)]


def node_hash(node):
    level, entries = node
    if level == 0:
        return leaf_hash(len(entries), mth([record_hash(r) for r in entries]))
    return inner_hash(level, len(entries), mth([entry_hash(s, node_hash(c)) for s, c in entries]))


def digest_of(tree):
    return tree_digest(tree[0], len(records_of(tree)), node_hash(tree))


# Section 6.
class Forest:
    def __init__(self, rules):
        self.rules, self.active, self.frozen = rules, (0, []), []

    def freeze(self, tree):
        return (tree, self.rules.filter([r[0] for r in records_of(tree)]))

    def trees(self):
        return [self.active] + [tree for tree, _ in self.frozen]

    def prepare(self, stamp, merges, operations):
        for merge in merges:
            digests, n = [digest_of(tree).hex() for tree, _ in self.frozen], len(merge["inputs"])
            at = next(i for i in range(len(digests)) if digests[i : i + n] == merge["inputs"])
            youngest = {}
            for tree, _ in self.frozen[at : at + n]:
                for record in records_of(tree):
                    youngest.setdefault(record[0], record)
            older = self.frozen[at + n :]
            kept = [youngest[key] for key in sorted(youngest)]
            kept = [r for r in kept if r[2] is not None or any(admits(r[0]) for _, admits in older)]
            output = self.rules.packed(kept)
            assert digest_of(output).hex() == merge["output"]
            self.frozen[at : at + n] = [self.freeze(output)]
        if operations and len(records_of(self.active)) >= self.rules.p["capacity"]:
            self.frozen.insert(0, self.freeze(self.active))
            self.active = (0, [])
        changes = []
        for key, value in sorted(dict(operations).items()):
            if value is not None:
                changes.append((key, (key, stamp, len(value), H(value))))
                continue
            newest = [r for tree in self.trees() for r in records_of(tree) if r[0] == key][:1]
            if not newest or newest[0][2] is None:
                continue
            held = any(r[0] == key for r in records_of(self.active))
            excluded = not any(admits(key) for _, admits in self.frozen)
            changes.append((key, None if held and excluded else (key, stamp, None, None)))
        self.active = self.rules.change(self.active, changes)


# Section 9.
class Header:
    def __init__(self, data, step):
        r = Reader(data)
        self.data = data
        need(r.u8() == 1, step)
        self.kind, self.cluster, self.sequence = r.u8(), r.take(16), r.u64()
        self.stamp, self.time = r.stamp(), r.u64()
        self.state_root, self.state_leaves, self.map = r.take(32), r.u32(), r.take(32)
        self.journal_root, self.journal_leaves = r.take(32), r.u32()
        self.epochs_root, self.epoch_pairs = r.take(32), r.u32()
        self.admin, self.previous, self.body = r.u64(), r.take(32), r.str16()
        r.end()
        self.hash = H(b"\0", data)


# Ed25519 (RFC 8032), for the one signature of a note.
P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def ed_add(a, b):
    (x1, y1), (x2, y2) = a, b
    t = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + t, P - 2, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - t, P - 2, P)
    return (x % P, y % P)


def ed_times(n, point):
    result = (0, 1)
    while n:
        if n & 1:
            result = ed_add(result, point)
        point, n = ed_add(point, point), n >> 1
    return result


def ed_point(data):
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    xx = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(xx, (P + 3) // 8, P)
    if (x * x - xx) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - xx) % P or y >= P:
        return None
    return (P - x if x & 1 != sign else x, y)


BASE = ed_point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
VERIFIED = {}


def ed_verify(key, message, signature):
    case = (key, message, signature)
    if case not in VERIFIED:
        a, r, s = ed_point(key), ed_point(signature[:32]), int.from_bytes(signature[32:], "little")
        k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
        good = a and r and s < L and (0, 1) not in (ed_times(8, a), ed_times(8, r))
        VERIFIED[case] = bool(good) and ed_times(s, BASE) == ed_add(r, ed_times(k, a))
    return VERIFIED[case]


# Section 10.
def canonical(text):
    data = base64.b64decode(text, validate=True)
    assert base64.b64encode(data).decode() == text
    return data


class Key:
    def __init__(self, name, key):
        self.name, self.key, self.id = name, key, H(name.encode(), b"\n\1", key)[:4]

    def vkey(self):
        return "+".join([self.name, self.id.hex(), base64.b64encode(b"\1" + self.key).decode()])


def parse_key(vkey):
    name, key_id, key = vkey.split("+", 2)
    key = canonical(key)
    assert key[0] == 1 and len(key) == 33
    result = Key(name, key[1:])
    assert result.id.hex() == key_id
    return result


class Keys:
    """The keys of a ledger, from the first on if changes are known; those before `trusted` are not believed by themselves."""

    def __init__(self, keys, changes, trusted):
        self.keys, self.changes, self.trusted = keys, changes, trusted

    def in_force(self, size):
        return sum(sequence < size for sequence in self.changes)

    def follow(self, headers):
        """What is known with the key changes in a file, before it is known that they are in the log."""
        if not headers:
            return self
        name, keys, changes = self.keys[0].name, [], []
        need(len(headers) <= 256, "format")
        for number, header in enumerate(headers, 1):
            need(header.kind == 6, "keys")
            r = Reader(header.body)
            try:
                n, old, new, by_old, by_new = r.u32(), r.take(32), r.take(32), r.take(64), r.take(64)
                need(len(r.str16()) <= 256 and len(r.str16()) <= 4096, "keys")
                r.end()
            except Failed as error:
                raise Failed("keys") from error
            message = b"\x1fcoppice-key-change" + header.cluster + u32(n) + old + new
            need(n == number and ed_verify(old, message, by_old) and ed_verify(new, message, by_new), "keys")
            keys = keys or [old]
            need(keys[-1] == old and new not in keys and (not changes or changes[-1] < header.sequence), "keys")
            keys.append(new)
            changes.append(header.sequence)
        keys = [Key(name, key) for key in keys]
        known = [key.key for key in self.keys]
        if not self.changes:
            need(known[0] in [key.key for key in keys], "keys")
            return Keys(keys, changes, [key.key for key in keys].index(known[0]))
        common = min(len(changes), len(self.changes))
        need(changes[:common] == self.changes[:common], "keys")
        need([key.key for key in keys][: common + 1] == known[: common + 1], "keys")
        return self if len(self.changes) >= len(changes) else Keys(keys, changes, self.trusted)


def open_checkpoint(note, keys, step, joined=False):
    """(size, root) of a checkpoint that the key in force at its size signed."""
    try:
        size = int(note.split(b"\n")[1])
        at = keys.in_force(size)
        need(joined or at >= keys.trusted, step)
        key = keys.keys[at]
        text, lines = note.decode().rsplit("\n\n", 1)
        text += "\n"
        need(lines.endswith("\n") and min(c for c in note if c != 10) >= 32 and len(note) <= 65536, step)
        signed = False
        lines = lines.split("\n")[:-1]
        need(len(lines) <= 100, step)
        for line in lines:
            dash, name, payload = line.split(" ")
            payload = canonical(payload)
            need(dash == "\u2014" and name and "+" not in name and len(payload) > 4, step)
            if name == key.name and payload[:4] == key.id:
                need(ed_verify(key.key, text.encode(), payload[4:]), step)
                signed = True
        need(signed, step)
        origin, size, root, rest = text.split("\n")
        need(rest == "" and origin == key.name and str(int(size)) == size and int(size) >= 0, step)
        root = canonical(root)
        need(len(root) == 32, step)
        return int(size), root
    except (ValueError, IndexError, AssertionError, UnicodeDecodeError) as error:
        raise Failed(step) from error


# Section 11.
def stands(version, pair, following):
    epoch, base = pair
    return (epoch, version) == (0, 0) or base < version and (following is None or version <= following[1])


def epoch_leaf(pair):
    return H(b"\x18", u64(pair[0]), u64(pair[1]))


# Sections 12 and 13.
class Log:
    def __init__(self, r, cluster, keys, joined):
        self.note, newest, path = r.str32(), r.str16(), r.hashes()
        self.changes = [(r.str16(), r.hashes()) for _ in range(r.u16())]
        need(len(self.changes) <= 256, "format")
        self.parts, self.cluster, self.keys, self.joined = (newest, path), cluster, keys, joined

    def check(self):
        headers = [Header(part[0], "keys") for part in self.changes]
        need(all(header.cluster == self.cluster for header in headers), "keys")
        self.keys = self.keys.follow(headers)
        self.size, self.root = open_checkpoint(self.note, self.keys, "checkpoint", self.joined)
        need(self.keys.keys[0].name.endswith("/" + self.cluster.hex()), "checkpoint")
        for part in self.changes:
            self.header(part, "keys")
        self.newest = self.header(self.parts, "newest_header")
        need(self.newest.sequence == self.size - 1, "newest_header")

    def header(self, part, step):
        header = Header(part[0], step)
        need(header.cluster == self.cluster, step)
        included(header.sequence, self.size, header.hash, part[1], self.root, step)
        return header


def read_epoch(r):
    index, pair = r.u32(), (r.u64(), r.u64())
    return index, pair, (r.u64(), r.u64()) if r.flag() else None, r.hashes()


def check_epoch(part, newest, stamp):
    index, pair, following, hashes = part
    revealed = [(index, epoch_leaf(pair))] + ([(index + 1, epoch_leaf(following))] if following else [])
    need(list_root(newest.epoch_pairs, revealed, hashes, "epoch") == newest.epochs_root, "epoch")
    need(following or index + 1 == newest.epoch_pairs, "epoch")
    need(pair[0] == stamp[0] and stands(stamp[1], pair, following), "epoch")


def read_node(r, level):
    """(level, n, [(index, key, content)], hashes); content is a record, a child node, or a child's hash."""
    n, entries = r.less(16), []
    for _ in range(r.less(16)):
        index = r.less(16)
        if level == 0:
            tombstone, stamp, key = r.flag(), (r.short(), r.short()), r.take(r.less(16))
            record = (key, stamp, None, None) if tombstone else (key, stamp, r.less(32), r.take(32))
            entries.append((index, key, record))
        else:
            bound = r.take(r.less(16))
            entries.append((index, bound, read_node(r, level - 1) if r.flag() else r.take(32)))
    return (level, n, entries, [r.take(32) for _ in range(r.less(16))])


def read_trees(r):
    count, trees = r.u8(), []
    need(count <= 16, "format")
    for _ in range(count):
        level, entries = r.u8(), r.short()
        need(level <= 32, "format")
        trees.append((level, entries, read_node(r, level) if r.flag() else r.take(32)))
    return trees


def part_hash(node, low, high, stamp):
    """The hash of a node of which a part is revealed. Its keys are in low .. high, and only the root has no low."""
    if isinstance(node, bytes):
        return node
    level, n, entries, hashes = node
    need(n > 0 or level == 0 and low is None, "tree")
    keys, revealed = [key for _, key, _ in entries], []
    need(all(a < b for a, b in zip(keys, keys[1:])), "tree")
    for place, (index, key, content) in enumerate(entries):
        first, least = level > 0 and index == 0, low or b""
        need(key == b"" if first else key > least or level == 0 and key == least, "tree")
        need(high is None or key < high, "tree")
        if level == 0:
            need(content[1][0] <= stamp[0] and content[1][1] <= stamp[1], "tree")
            revealed.append((index, record_hash(content)))
        else:
            following = keys[place + 1] if place + 1 < len(keys) else high
            revealed.append((index, entry_hash(key, part_hash(content, least if first else key, following, stamp))))
    root = list_root(n, revealed, hashes, "tree")
    return leaf_hash(n, root) if level == 0 else inner_hash(level, n, root)


def empty(tree):
    return tree[0] == 0 and tree[1] == 0 and tree[2] == EMPTY_ROOT


def shown(node):
    """All revealed records below a node."""
    if isinstance(node, bytes):
        return []
    level, _, entries, _ = node
    return [c for _, _, c in entries] if level == 0 else [r for _, _, c in entries for r in shown(c)]


def complete(node, low, high):
    """The records of the node with low <= key < high are all revealed; no high means no bound."""
    if isinstance(node, bytes):
        return False
    level, n, entries, _ = node
    begin = max((i for i, (_, key, _) in enumerate(entries) if key <= low), default=0)
    run = [e for e in entries[begin:] if high is None or e[1] < high]
    beyond = entries[begin + len(run) : begin + len(run) + 1]
    around = run + beyond
    if n == 0:
        return True
    if around and around[0][1] > low and around[0][0] != 0:
        return False
    if any(b[0] != a[0] + 1 for a, b in zip(around, around[1:])):
        return False
    if not beyond and (not around or around[-1][0] != n - 1):
        return False
    return level == 0 or all(complete(child, low, high) for _, _, child in run)


def absent(node, key, ends=True):
    """Whether it is shown that the node, with all behind it if it `ends` below what follows, has no record of a key."""
    if isinstance(node, bytes):
        return False
    level, n, entries, _ = node
    below, above = [e for e in entries if e[1] <= key], [e for e in entries if e[1] > key]
    if not below:
        return n == 0 or level == 0 and above[0][0] == 0
    index, found, child = below[-1]
    followed = bool(above) and above[0][0] == index + 1
    ends = followed or ends and index == n - 1
    return absent(child, key, ends) if level > 0 else found != key and ends


def find(trees, key):
    for tree in trees:
        found = [record for record in shown(tree[2]) if record[0] == key]
        if found:
            return found[0]
        need(empty(tree) or absent(tree[2], key), "query")
    return None


def read_query(r):
    if r.flag():
        low, high = r.str16(), r.opt16()
        need(max(len(low), len(high or b"")) <= 513 and (high is None or low < high), "format")
        return (low, high), None
    keys = [r.str16() for _ in range(r.u16())]
    need(keys and all(1 <= len(key) <= 512 for key in keys), "format")
    need(all(a < b for a, b in zip(keys, keys[1:])), "format")
    return None, keys


def answer_keys(keys, shards):
    answers, unused = [], set(range(len(shards)))
    for key in keys:
        at = [i for i, s in enumerate(shards) if s["low"] <= key and (s["high"] is None or key < s["high"])]
        need(at, "query")
        unused -= set(at)
        answers.append((key, find(shards[at[0]]["trees"], key)))
    need(not unused, "query")
    return answers


def answer_range(low, high, shards):
    need(shards and shards[0]["low"] <= low, "query")
    need(shards[0]["high"] is None or low < shards[0]["high"], "query")
    for a, b in zip(shards, shards[1:]):
        need(b["index"] == a["index"] + 1 and a["high"] == b["low"] and (high is None or b["low"] < high), "query")
    need(all(s["high"] is None or s["low"] < s["high"] for s in shards), "query")
    end = shards[-1]["high"]
    need(end is None or high is not None and end >= high, "query")
    records = []
    for shard in shards:
        bounds = [b for b in (high, shard["high"]) if b is not None]
        start, stop, youngest = max(low, shard["low"]), min(bounds) if bounds else None, {}
        for tree in shard["trees"]:
            need(empty(tree) or complete(tree[2], start, stop), "query")
            for record in shown(tree[2]):
                if start <= record[0] and (stop is None or record[0] < stop):
                    youngest.setdefault(record[0], record)
        records += [youngest[key] for key in sorted(youngest) if youngest[key][2] is not None]
    return records


def check_query(r, log):
    part, epoch = (r.str16(), r.hashes()), read_epoch(r)
    span, keys = read_query(r)
    shards = []
    for _ in range(r.u16()):
        shard = {"index": r.u32(), "id": r.u32(), "low": r.str16(), "high": r.opt16(), "version": r.u64()}
        shard["trees"] = read_trees(r)
        shards.append(shard)
    hashes = r.hashes()
    values = [r.str32() for _ in range(r.u32())] if r.flag() else None
    r.end()
    log.check()
    header = log.header(part, "header")
    need(header.kind in (0, 1), "header")
    check_epoch(epoch, log.newest, header.stamp)
    leaves = []
    for s in shards:
        need(s["version"] <= header.stamp[1], "state")
        digests = [tree_digest(t[0], t[1], part_hash(t[2], None, None, header.stamp)) for t in s["trees"]]
        name = H(b"\x16", u32(s["id"]), str16(s["low"]), opt16(s["high"]), u64(s["version"]), shard_digest(digests))
        leaves.append((s["index"], name))
    need(list_root(header.state_leaves, leaves, hashes, "state") == header.state_root, "state")
    if keys is not None:
        answers = answer_keys(keys, shards)
        found = [record for _, record in answers if record and record[2] is not None]
    else:
        found = answer_range(*span, shards)
    if values is not None:
        need([(len(v), H(v)) for v in values] == [(record[2], record[3]) for record in found], "value")

    def show(key, record):
        if record is None or record[2] is None:
            return {"key": key.hex(), "found": None}
        value = values[found.index(record)].hex() if values is not None else None
        fields = {"stamp": list(record[1]), "value_sha256": record[3].hex(), "length": record[2], "value": value}
        return {"key": key.hex(), "found": fields}

    claim = {"version": list(header.stamp)}
    if keys is not None:
        return header.stamp, claim | {"kind": "keys", "keys": [show(*answer) for answer in answers]}
    low, high = span[0].hex(), span[1].hex() if span[1] is not None else None
    return header.stamp, claim | {"kind": "range", "low": low, "high": high, "records": [show(f[0], f) for f in found]}


def check_receipt(r, log):
    part, epoch, index, entry, hashes = (r.str16(), r.hashes()), read_epoch(r), r.u32(), r.str16(), r.hashes()
    r.end()
    log.check()
    header = log.header(part, "header")
    need(header.kind == 1, "header")
    check_epoch(epoch, log.newest, header.stamp)
    root = list_root(header.journal_leaves, [(index, H(b"\x19", entry))], hashes, "journal")
    need(root == header.journal_root and entry[0] == 0, "journal")
    return header.stamp, {"kind": "receipt", "version": list(header.stamp), "index": index, "entry": entry.hex()}


def check_standing(r, log):
    old, root, path = r.u64(), r.take(32), r.hashes()
    pairs = [(r.u64(), r.u64()) for _ in range(r.u16())]
    r.end()
    log.check()
    consistent(old, log.size, root, log.root, path, "standing")
    need(len(pairs) == log.newest.epoch_pairs, "standing")
    need(mth([epoch_leaf(pair) for pair in pairs]) == log.newest.epochs_root, "standing")
    return None, {"kind": "standing", "old size": old, "old root": root.hex(), "pairs": [list(p) for p in pairs]}


def verify(data, keys, joined=False):
    """(log, stamp, claim) of a proof file."""
    need(len(data) > 8 and H(b"\x1e", data[:-8])[:8] == data[-8:], "format")
    r = Reader(data[:-8])
    need(r.take(13) == b"coppice-proof", "format")
    need(r.u8() == 3, "format")
    kind, cluster = r.u8(), r.take(16)
    need(kind < 3, "format")
    log = Log(r, cluster, keys, joined)
    stamp, claim = (check_query, check_receipt, check_standing)[kind](r, log)
    return log, stamp, claim


def verify_both(data, newer, key):
    """As verify, with a newer checkpoint, which comes first: it may tell of key changes."""
    keys, later = Keys([key], [], 0), None
    if newer is not None and newer.startswith(b"coppice-proof"):
        try:
            later = verify(newer, keys)
        except Failed as error:
            raise Failed("standing") from error
        keys = later[0].keys
    log, stamp, claim = verify(data, keys, later is not None)
    if newer is not None:
        check_newer(log, stamp, newer, later)
    return log, stamp, claim


def check_newer(log, stamp, newer, later):
    try:
        if later is None:
            need(open_checkpoint(newer, log.keys, "standing") == (log.size, log.root), "standing")
            return
        later, _, claim = later
        need(claim["kind"] == "standing" and later.cluster == log.cluster, "standing")
        need((claim["old size"], claim["old root"]) == (log.size, log.root.hex()), "standing")
        pairs = claim["pairs"]
        following = dict(zip((pair[0] for pair in pairs), pairs[1:] + [None]))
        pair = next((pair for pair in pairs if stamp is not None and pair[0] == stamp[0]), None)
        need(stamp is None or pair and stands(stamp[1], pair, following[pair[0]]), "standing")
    except Failed as error:
        raise Failed("standing") from error


# The vectors.
def run_list_proofs():
    vectors = load("list-proofs.json")
    leaves = [bytes.fromhex(leaf) for leaf in vectors["leaves"]]

    def root(case):
        revealed = [(i, leaves[i % 7]) for i in case["revealed"]]
        return list_root(case["size"], revealed, [bytes.fromhex(h) for h in case["hashes"]], "list")

    for case in vectors["valid"]:
        assert root(case).hex() == case["root"], case
    for case in vectors["invalid"]:
        try:
            root(case)
        except Failed:
            continue
        raise AssertionError(case)
    return len(vectors["valid"]) + len(vectors["invalid"])


def run_replay():
    vectors = load("replay.json")
    forest = Forest(Rules(vectors["parameters"]))
    for prepare in vectors["prepares"]:
        operations = [(key.encode(), None if n is None else b"v" * n) for key, n in prepare["operations"]]
        forest.prepare(tuple(prepare["stamp"]), prepare["merges"], operations)
        digests = [digest_of(tree) for tree in forest.trees()]
        assert [d.hex() for d in digests] == [tree["digest"] for tree in prepare["trees"]], prepare["stamp"]
        assert shard_digest(digests).hex() == prepare["shard digest"], prepare["stamp"]
    return len(vectors["prepares"])


def run_log():
    vectors = load("log.json")
    headers = [Header(bytes.fromhex(entry["bytes"]), "header") for entry in vectors["entries"]]
    versions = {tuple(version["stamp"]): version for version in vectors["versions"]}
    assert headers[0].previous == bytes(32)
    for before, header in zip(headers, headers[1:]):
        assert header.previous == before.hash and header.sequence == before.sequence + 1
    for header, entry in zip(headers, vectors["entries"]):
        assert header.hash.hex() == entry["entry hash"] and list(header.stamp) == entry["stamp"]
        if header.kind in (0, 1):
            version = versions[header.stamp]
            journal = [bytes.fromhex(item) for item in version["journal"]]
            assert mth([bytes.fromhex(leaf) for leaf in version["state leaves"]]) == header.state_root
            assert mth([H(b"\x19", item) for item in journal]) == header.journal_root
    for checkpoint in vectors["checkpoints"]:
        assert mth([header.hash for header in headers[: checkpoint["size"]]]).hex() == checkpoint["root"]
    pairs = [(0, 0)]
    for step in vectors["epochs"]:
        pairs = [pair for pair in pairs if pair[0] == 0 or pair[1] < step["target"]] + [(step["epoch"], step["target"])]
        assert [list(pair) for pair in pairs] == step["pairs"]
        assert mth([epoch_leaf(pair) for pair in pairs]).hex() == step["root"]
    assert H(b"\x17", bytes.fromhex(vectors["shard map"])).hex() == vectors["shard map hash"]
    return len(headers)


def run_proofs():
    vectors = load("proofs.json")
    key = parse_key(vectors["vkey"])
    for case in vectors["cases"]:
        newer = None if case["newer"] is None else bytes.fromhex(case["newer"])
        try:
            log, stamp, claim = verify_both(bytes.fromhex(case["file"]), newer, key)
        except Failed as failed:
            assert not case["valid"] and str(failed) == case["failed step"], (case["name"], str(failed))
            continue
        assert case["valid"], case["name"]
        head = {"cluster": log.cluster.hex(), "size": log.size, "root": log.root.hex(), "head": list(log.newest.stamp)}
        assert head | {"what": claim} == case["claim"], case["name"]
    return len(vectors["cases"])


def run_rotation():
    vectors = load("rotation.json")
    for case in vectors["cases"]:
        newer = None if case["newer"] is None else bytes.fromhex(case["newer"])
        for result in case["results"]:
            name = (case["name"], result["key"])
            try:
                log, _, _ = verify_both(bytes.fromhex(case["file"]), newer, parse_key(result["key"]))
            except Failed as failed:
                assert not result["valid"] and str(failed) == result["failed step"], (name, str(failed))
                continue
            signer = log.keys.keys[log.keys.in_force(log.size)].vkey()
            assert result["valid"] and signer == result["signed by"], name
    return len(vectors["cases"])


if __name__ == "__main__":
    for run in (run_list_proofs, run_replay, run_log, run_proofs, run_rotation):
        print(run.__name__[4:].replace("_", " ") + ":", run(), "agree")
