#!/usr/bin/env python3
"""A second implementation of docs/verification.md, written from the text of the page.

It is slow and plain, and needs Python 3.11 without packages. Without arguments it checks the
vectors in its own folder, and fails at the first value that differs. `second.py FILE --key KEY` (or
`--policy FILE`) judges a proof file: it exits with 0 if the file is valid, with 1 if it is refused,
and with 2 if the arguments make no sense. `second.py --evidence FILE --key KEY` judges an evidence
file.

Below, `step` is the step of section 13, 18 or 20 (in an audit, the rule of section 8) that fails if
a condition does not hold. A stamp is a pair (epoch, version), and None stands for an absent value.
"""

import base64
import hashlib
import json
import math
import os
import struct
import sys

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
    """The step that failed, and the rule that does not hold."""

    def __init__(self, step, rule=""):
        super().__init__(step)
        self.step, self.rule = step, rule

    def at(self, step):
        """This failure, moved to a different step."""
        return Failed(step, self.rule or self.step)


def need(holds, step, rule=""):
    """Fails at this step unless the rule holds."""
    if not holds:
        raise Failed(step, rule)


class Reader:
    """Decodes bytes from the front. Every decoded value has only one encoding."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        need(self.at + n <= len(self.data), "format", "it ends too early")
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
        """An integer of seven bits to a byte, lowest first, in its only spelling."""
        x = shift = 0
        while True:
            byte = self.u8()
            x |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                need(x < 2**64 and (byte > 0 or shift == 7), "format", "a short integer in another spelling")
                return x

    def less(self, bits):
        """A short integer of at most this many bits."""
        x = self.short()
        need(x < 2**bits, "format", f"an integer of more than {bits} bits")
        return x

    def flag(self):
        x = self.u8()
        need(x < 2, "format", "a flag that is neither 0 nor 1")
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
        """Checks that no bytes are left."""
        need(self.at == len(self.data), "format", "bytes behind the end")


# Section 2: Merkle lists.
def half(n):
    """The largest power of two below n."""
    k = 1
    while k * 2 < n:
        k *= 2
    return k


def mth(leaves):
    """The root of a list of leaf hashes."""
    if not leaves:
        return H(b"")
    if len(leaves) == 1:
        return leaves[0]
    k = half(len(leaves))
    return H(b"\1", mth(leaves[:k]), mth(leaves[k:]))


def list_root(n, revealed, hashes, step):
    """The root to which a list proof leads; `revealed` has pairs (index, leaf hash)."""
    indices = [i for i, _ in revealed]
    if n == 0:
        need(not revealed and not hashes, step, "a list proof of an empty list")
        return H(b"")
    ascending = all(a < b for a, b in zip(indices, indices[1:]))
    need(indices and ascending and indices[-1] < n, step, "the indices of a list proof")
    leaves, rest = dict(revealed), list(hashes)

    def root(start, size):
        if not any(start <= i < start + size for i in indices):
            need(rest, step, "a list proof has too few hashes")
            return rest.pop(0)
        if size == 1:
            return leaves[start]
        k = half(size)
        left = root(start, k)
        return H(b"\1", left, root(start + k, size - k))

    result = root(0, n)
    need(not rest, step, "a list proof has too many hashes")
    return result


def included(index, size, leaf, path, root, step):
    """Checks an inclusion path (RFC 9162, 2.1.3.2)."""
    need(index < size, step, "an entry beyond the end of the log")
    fn, sn, r = index, size - 1, leaf
    for p in path:
        need(sn != 0, step, "a path that is too long")
        if fn & 1 or fn == sn:
            r = H(b"\1", p, r)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            r = H(b"\1", r, p)
        fn, sn = fn >> 1, sn >> 1
    need(sn == 0 and r == root, step, "the inclusion path does not lead to the checkpoint's root")


def consistent(old, new, old_root, new_root, path, step):
    """Checks a consistency path (RFC 9162, 2.1.4.2)."""
    need(old <= new, step, "an older checkpoint that is larger")
    if old in (0, new):
        need(not path and old_root == (new_root if old == new else H(b"")), step, "the consistency path")
        return
    path = ([old_root] if old & (old - 1) == 0 else []) + path
    need(path, step, "the consistency path is empty")
    fn, sn = old - 1, new - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = path[0]
    for c in path[1:]:
        need(sn != 0, step, "a path that is too long")
        if fn & 1 or fn == sn:
            fr, sr = H(b"\1", c, fr), H(b"\1", c, sr)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = H(b"\1", sr, c)
        fn, sn = fn >> 1, sn >> 1
    need(sn == 0 and fr == old_root and sr == new_root, step, "the consistency path does not join the two roots")


# Section 3: records and nodes. A put is (key, stamp, length, hash), a tombstone (key, stamp, None,
# None).
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


# Section 4: trees. A tree is its root node. A leaf is (0, records), an inner node (level,
# [(separator, node)]).
class Rules:
    """Weights, splits, packings and filters under the parameters of a genesis header."""

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
        """The pieces of a list by the split rule."""
        total, before, pieces = sum(map(weigh, entries)), 0, {}
        if total <= self.p["node_bytes"]:
            return [entries] if entries else []
        n = -(-total // self.p["node_bytes"])
        for entry in entries:
            pieces.setdefault(before * n // total, []).append(entry)
            before += weigh(entry)
        return [pieces[i] for i in sorted(pieces)]

    def pack(self, entries, weigh):
        """The pieces of a list by the packing of merges."""
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
        """[(separator, leaf)] over records, by split or pack. The first separator is empty."""
        pieces = cut(records, self.weigh_record)
        bounds = [b""] + [separator(a[-1][0], b[0][0]) for a, b in zip(pieces, pieces[1:])]
        return [(bound, (0, piece)) for bound, piece in zip(bounds, pieces)]

    def inner(self, level, entries, cut):
        """[(separator, inner node)] over entries; the first separator is empty."""
        entries = [(b"", node) for _, node in entries[:1]] + entries[1:]
        pieces = cut(entries, self.weigh_entry)
        return [(piece[0][0], (level, [(b"", piece[0][1])] + piece[1:])) for piece in pieces]

    def above(self, nodes, cut):
        """The root above nodes of one level."""
        while len(nodes) > 1:
            nodes = self.inner(nodes[0][1][0] + 1, nodes, cut)
        return nodes[0][1] if nodes else (0, [])

    def apply(self, node, changes):
        """[(separator, node)] in place of a node.

        A change is (key, record), or (key, None) for a removal.
        """
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
        """The tree after changes."""
        root = self.above(self.apply(tree, changes), self.split)
        while root[0] > 0 and len(root[1]) == 1:
            root = root[1][0][1]
        return root

    def packed(self, records):
        """The packing of records as a tree."""
        return self.above(self.leaves(records, self.pack), self.pack)

    # Section 5: filters.
    def filter(self, keys):
        """The filter over keys: a function that says whether it admits a key."""
        blocks = max(1, -(-len(keys) * self.p["filter_bits"] // 512))
        bits = set().union(*(filter_bits(key, blocks) for key in keys)) if keys else set()
        return lambda key: filter_bits(key, blocks) <= bits


def filter_bits(key, blocks):
    """The bits of a key as (block, bit)."""
    a, x = struct.unpack("<QQ", H(b"\x15", key)[:16])
    return {(a * blocks >> 64, (x >> 9 * i) % 512) for i in range(7)}


def separator(left, right):
    """The shortest prefix of the key right that is above the key left."""
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


# Section 6: the forest of a shard.
class Forest:
    """The state of a shard: the active tree, and frozen trees with filters, youngest first."""

    def __init__(self, rules):
        self.rules, self.active, self.frozen = rules, (0, []), []

    def freeze(self, tree):
        return (tree, self.rules.filter([r[0] for r in records_of(tree)]))

    def trees(self):
        return [self.active] + [tree for tree, _ in self.frozen]

    def prepare(self, stamp, merges, operations):
        """Applies a Prepare.

        A merge is (input digests, output digest). An operation is (key, (length, hash)) for a put,
        and (key, None) for a delete.
        """
        for inputs, merged in merges:
            digests, n = [digest_of(tree) for tree, _ in self.frozen], len(inputs)
            at = next((i for i in range(len(digests)) if digests[i : i + n] == inputs), None)
            need(n >= 2 and at is not None, 13, "the merged trees are not neighbouring frozen trees")
            youngest = {}
            for tree, _ in self.frozen[at : at + n]:
                for record in records_of(tree):
                    youngest.setdefault(record[0], record)
            older = self.frozen[at + n :]
            kept = [youngest[key] for key in sorted(youngest)]
            kept = [r for r in kept if r[2] is not None or any(admits(r[0]) for _, admits in older)]
            output = self.rules.packed(kept)
            need(digest_of(output) == merged, 13, "a merge gives a different tree than was recorded")
            self.frozen[at : at + n] = [self.freeze(output)]
        if operations and len(records_of(self.active)) >= self.rules.p["capacity"]:
            self.frozen.insert(0, self.freeze(self.active))
            self.active = (0, [])
        changes = []
        for key, value in sorted(dict(operations).items()):
            if value is not None:
                changes.append((key, (key, stamp, *value)))
                continue
            newest = [r for tree in self.trees() for r in records_of(tree) if r[0] == key][:1]
            if not newest or newest[0][2] is None:
                continue
            held = any(r[0] == key for r in records_of(self.active))
            excluded = not any(admits(key) for _, admits in self.frozen)
            changes.append((key, None if held and excluded else (key, stamp, None, None)))
        self.active = self.rules.change(self.active, changes)


def tier(parameters, entries):
    """The number of the youngest frozen trees that the tier rule merges; None for none."""
    if len(entries) < 2:
        return None
    ratio = 1 + math.isqrt(entries[-1] // (2 * parameters["capacity"]))
    ratio = min(max(ratio, 4), parameters["tier_ratio"])
    crowded = len(entries) >= parameters["tree_limit"] - 1
    if not crowded and entries[0] * ratio < entries[1]:
        return None
    return next((j for j in range(2, len(entries)) if sum(entries[:j]) * ratio < entries[j]), len(entries))


# Section 7: state root and shard map.
KEY_MAX = 512
NO_SHARD = 2**32 - 1


def read_map(data):
    """The shards of a map: [(id, low, high)]."""
    r, shards = Reader(data), []
    need(r.u8() == 1, "format", "the format of a shard map")
    for _ in range(r.u32()):
        shard, _parent = r.u32(), r.u32()
        shards.append((shard, r.str16(), r.opt16()))
    r.end()
    need(shards and shards[0][1] == b"" and shards[-1][2] is None, "format", "the ends of a shard map")
    joined = all(a[2] == b[1] and a[1] < b[1] for a, b in zip(shards, shards[1:]))
    need(joined and all(len(low) <= KEY_MAX for _, low, _ in shards), "format", "the bounds of a shard map")
    ids = {shard for shard, _, _ in shards}
    need(len(ids) == len(shards) and NO_SHARD not in ids, "format", "the ids of a shard map")
    return shards


def state_leaf(shard, version, digest):
    number, low, high = shard
    return H(b"\x16", u32(number), str16(low), opt16(high), u64(version), digest)


EMPTY_SHARD = shard_digest([tree_digest(0, 0, EMPTY_ROOT)])

# Keys below this one are reserved in version 3: appends and heads write them, and no batch does.
FREE = b"\1"

# Section 9: headers. Each parameter of genesis has a name, a width in bytes, and its least and
# largest value. The least may be the value of another parameter.
PARAMETERS = [
    ("key_bytes_max", 4, 1, 512),
    ("value_bytes_max", 4, 1, 16 << 20),
    ("batch_bytes_max", 4, "value_bytes_max", 64 << 20),
    ("message_bytes_max", 4, "batch_bytes_max", 96 << 20),
    ("session_window", 4, 1, 65536),
    ("capacity", 4, 8, 1 << 28),
    ("fanout", 2, 4, 1024),
    ("node_bytes", 4, "four_records", 8192),
    ("inline_bytes", 4, 0, 1024),
    ("filter_bits", 2, 4, 32),
    ("tree_limit", 1, 3, 16),
    ("tier_ratio", 1, 2, 64),
    ("journals_kept", 1, 0, 1),
]
# The narrower ranges of some parameters in version 3.
RANGES_3 = {
    "key_bytes_max": (256, 512),
    "value_bytes_max": (65536, 16 << 20),
    "inline_bytes": (0, 128),
    "journals_kept": (1, 1),
}


def read_parameters(r):
    found = {"version": r.u8() + 1}
    need(found["version"] in (2, 3), "format", "parameters of another format")
    need(r.u32() == found["version"], "format", "parameters of another protocol version")
    for name, width, least, most in PARAMETERS:
        if found["version"] == 3:
            least, most = RANGES_3.get(name, (least, most))
        found[name] = int.from_bytes(r.take(width), "little")
        found["four_records"] = 4 * (72 + found["key_bytes_max"])
        least = found[least] if isinstance(least, str) else least
        need(least <= found[name] <= most, "format", f"{name} of genesis is out of its range")
    return found


def read_text(r, most):
    text = r.str16()
    need(len(text) <= most, "format", "a text that is too long")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failed("format", "a text that is not UTF-8") from error


class Header:
    """A header that keeps the rules that concern it alone.

    `what` is its body: (prefix, key, parameters, shards) of genesis, (target, head before) of a
    rollback, the boundary of a prune, (number, old key, new key) of a key change, (size, root,
    tokens) of an anchor with stamps. `changes` counts the key changes so far, in format 2 alone.
    """

    def __init__(self, data, step):
        try:
            self.read(data)
        except Failed as failed:
            raise failed.at(step) from failed

    def read(self, data):
        r = Reader(data)
        self.data = data
        need(len(data) < 65535, "format", "a header that is too long")
        self.format = r.u8()
        need(self.format in (1, 2), "format", "the format of a header")
        self.kind, self.cluster, self.sequence = r.u8(), r.take(16), r.u64()
        self.stamp, self.time = r.stamp(), r.u64()
        self.state_root, self.state_leaves, self.map = r.take(32), r.u32(), r.take(32)
        self.journal_root, self.journal_leaves = r.take(32), r.u32()
        self.epochs_root, self.epoch_pairs = r.take(32), r.u32()
        self.admin = r.u64()
        self.changes = r.u32() if self.format == 2 else None
        self.previous, self.body = r.take(32), r.str16()
        r.end()
        self.hash = H(b"\0", data)
        self.check_alone()

    def check_alone(self):
        """Checks the rules that concern a header alone, and decodes its body into `what`."""
        need(self.state_leaves > 0 and self.epoch_pairs > 0, "format", "no state leaves or epoch pairs")
        journal = (self.journal_root, self.journal_leaves)
        need(self.kind == 1 or journal == (H(b""), 0), "format", "a journal of a header that is not a commit")
        need((self.kind == 0) == (self.sequence == 0), "format", "genesis comes first")
        need(self.kind not in (2, 3) or self.admin > 0, "format", "admin sequence 0 of a rollback or prune")
        need((self.changes or 0) <= 256, "format", "more than 256 key changes")
        r, (epoch, version) = Reader(self.body), self.stamp
        self.what = None
        if self.kind == 0:
            self.check_genesis(r)
        elif self.kind == 1:
            need(version > 0, "format", "a commit of version 0")
        elif self.kind == 2:
            target, before = self.what = r.stamp(), r.stamp()
            read_text(r, 256), read_text(r, 4096)
            need(target[1] == version, "format", "a rollback to a different version than its target")
            need(before[0] + 1 == epoch, "format", "the epoch of a rollback")
            need(target[0] <= before[0] and target[1] <= before[1], "format", "a rollback to a target above the head")
        elif self.kind == 3:
            self.what = r.u64()
            read_text(r, 256), read_text(r, 4096)
            need(self.what <= version, "format", "a prune above the head")
        elif self.kind == 6:
            self.what = self.check_change(r)
        elif self.kind == 7:
            self.what = self.check_anchor(r)
        else:
            return
        r.end()

    def check_genesis(self, r):
        prefix, key = read_text(r, 256), r.str16()
        need(len(key) == 32, "format", "the length of a key")
        parameters, data = read_parameters(r), r.str16()
        shards = read_map(data)
        self.what = (prefix, key, parameters, shards)
        need(parameters["version"] == self.format + 1, "format", "parameters of another version than the header's")
        need(not self.changes, "format", "key changes before genesis")
        if self.format == 2:
            short = all(low >= FREE or len(low) <= 2 for _, low, _ in shards)
            need(short, "format", "a bound of a shard among reserved keys that is longer than 2 bytes")
        numbers = (self.stamp, self.previous, self.admin)
        need(numbers == ((0, 0), bytes(32), 0), "format", "the numbers of genesis")
        need(self.map == H(b"\x17", data) and self.state_leaves == len(shards), "format", "the shard map of genesis")
        leaves = [state_leaf(shard, 0, EMPTY_SHARD) for shard in shards]
        need(self.state_root == mth(leaves), "format", "the state of genesis")
        epochs = (self.epochs_root, self.epoch_pairs)
        need(epochs == (mth([epoch_leaf((0, 0))]), 1), "format", "the epochs of genesis")

    def check_anchor(self, r):
        form = r.u8()
        need(form in (0, 1), "format", "the form of an anchor")
        if form == 0:
            count = r.u16()
            need(1 <= count <= 32, "format", "the number of certificates")
            need(all([r.str16() for _ in range(count)]), "format", "an empty certificate")
            return None
        size, root, count = r.u64(), r.take(32), r.u16()
        need(1 <= size <= self.sequence, "format", "an anchor that stamps nothing, or itself")
        need(1 <= count <= 32, "format", "the number of tokens")
        tokens = [(r.u8(), r.u8(), r.str32()) for _ in range(count)]
        need(all(1 <= len(token[2]) <= 16384 for token in tokens), "format", "the length of a token")
        need(sum(len(token[2]) for token in tokens) <= 64000, "format", "the length of all tokens")
        return size, root, tokens

    def check_change(self, r):
        change = read_change_of_key(r)
        check_change_of_key(change, self.cluster, "format")
        need(self.changes in (None, change[0]), "format", "a key change that counts others than its number")
        return change[:3]


def read_change_of_key(r):
    """The body of a key change: (number, old key, new key, signature by the old, by the new)."""
    change = r.u32(), r.take(32), r.take(32), r.take(64), r.take(64)
    read_text(r, 256), read_text(r, 4096)
    return change


def check_change_of_key(change, cluster, step):
    """Checks the rules that concern a key change alone."""
    number, old, new, by_old, by_new = change
    message = b"\x1fcoppice-key-change" + cluster + u32(number) + old + new
    need(number > 0 and old != new, step, "the number or keys of a key change")
    need(ed_verify(old, message, by_old), step, "the old key has not signed its change")
    need(ed_verify(new, message, by_new), step, "the new key has not signed its change")


# Ed25519 (RFC 8032), with the strict check of section 10.
P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def ed_sum(a, b):
    """Adds points (x, y, z, t), which stand for (x / z, y / z); t is x * y / z."""
    (x1, y1, z1, t1), (x2, y2, z2, t2) = a, b
    low, high = (y1 - x1) * (y2 - x2), (y1 + x1) * (y2 + x2)
    c, d = 2 * D * t1 * t2, 2 * z1 * z2
    e, f, g, h = high - low, d - c, d + c, high + low
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def ed_wide(point):
    x, y = point
    return (x, y, 1, x * y % P)


def ed_plain(point):
    x, y, z, _ = point
    inverse = pow(z, -1, P)
    return (x * inverse % P, y * inverse % P)


def ed_add(a, b):
    return ed_plain(ed_sum(ed_wide(a), ed_wide(b)))


def ed_times(n, point):
    result, point = (0, 1, 1, 0), ed_wide(point)
    while n:
        if n & 1:
            result = ed_sum(result, point)
        point, n = ed_sum(point, point), n >> 1
    return ed_plain(result)


def ed_point(data):
    """The point with this encoding; None if there is none."""
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
    """Whether the signature is the key's; small-order keys and points are refused."""
    case = (key, message, signature)
    if case not in VERIFIED:
        a, r, s = ed_point(key), ed_point(signature[:32]), int.from_bytes(signature[32:], "little")
        k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
        good = a and r and s < L and (0, 1) not in (ed_times(8, a), ed_times(8, r))
        VERIFIED[case] = bool(good) and ed_times(s, BASE) == ed_add(r, ed_times(k, a))
    return VERIFIED[case]


# Section 10: checkpoints. In parsers of text, a failed assertion refuses the text.
def canonical(text):
    """Decodes canonical base64."""
    data = base64.b64decode(text, validate=True)
    assert base64.b64encode(data).decode() == text
    return data


class Key:
    """A key that signs notes, under its name."""

    def __init__(self, name, key):
        self.name, self.key, self.id = name, key, H(name.encode(), b"\n\1", key)[:4]

    def vkey(self):
        return "+".join([self.name, self.id.hex(), base64.b64encode(b"\1" + self.key).decode()])


def parse_key(vkey):
    """Parses the vkey of a log."""
    name, key_id, key = vkey.split("+", 2)
    key = canonical(key)
    assert sound_name(name) and key[0] == 1 and len(key) == 33
    point = ed_point(key[1:])
    assert point and ed_times(8, point) != (0, 1)
    result = Key(name, key[1:])
    assert result.id.hex() == key_id
    return result


class Keys:
    """The known keys of a ledger, and the sequences of the changes between them.

    If changes are known, the first key is that of genesis. The key with index `trusted` and later
    ones are trusted; a checkpoint that an earlier one signed needs a newer checkpoint.
    """

    def __init__(self, keys, changes, trusted):
        self.keys, self.changes, self.trusted = keys, changes, trusted

    def in_force(self, size):
        """The index of the key in force at this size."""
        return sum(sequence < size for sequence in self.changes)

    def follow(self, headers):
        """The keys that are known after these key changes. Their inclusion is checked elsewhere."""
        if not headers:
            return self
        name, keys, changes = self.keys[0].name, [], []
        need(len(headers) <= 256, "format", "more than 256 key changes")
        for number, header in enumerate(headers, 1):
            need(header.kind == 6, "keys", "a header that is not a key change")
            n, old, new = header.what
            need(n == number, "keys", "the key changes are not numbered from 1 on")
            keys = keys or [old]
            need(keys[-1] == old, "keys", "a change from a different key than the one before")
            need(new not in keys, "keys", "a change to an earlier key")
            need(not changes or changes[-1] < header.sequence, "keys", "key changes that are not in order")
            keys.append(new)
            changes.append(header.sequence)
        keys = [Key(name, key) for key in keys]
        known = [key.key for key in self.keys]
        if not self.changes:
            need(known[0] in [key.key for key in keys], "keys", "the key changes do not lead to or from the trusted key")
            return Keys(keys, changes, [key.key for key in keys].index(known[0]))
        common = min(len(changes), len(self.changes))
        need(changes[:common] == self.changes[:common], "keys", "different key changes than known")
        need([key.key for key in keys][: common + 1] == known[: common + 1], "keys", "different key changes than known")
        return self if len(self.changes) >= len(changes) else Keys(keys, changes, self.trusted)


def split_note(note, step):
    """Splits a note into (text, [(key name, key id, signature)])."""
    try:
        need(len(note) <= 65536, step, "a note that is too long")
        need(all(c >= 32 or c == 10 for c in note), step, "a control character in a note")
        text, found, rest = note.decode().rpartition("\n\n")
        need(found and rest.endswith("\n"), step, "a note without signature lines, or with one that does not end")
        lines = []
        for line in rest.split("\n")[:-1]:
            dash, name, payload = line.split(" ")
            payload = canonical(payload)
            need(dash == "\u2014" and name and "+" not in name and len(payload) > 4, step, "a signature line")
            lines.append((name, payload[:4], payload[4:]))
        need(len(lines) <= 100, step, "more than 100 signature lines")
        return text + "\n", lines
    except (ValueError, AssertionError) as error:
        raise Failed(step, "it is not a signed note") from error


def parse_checkpoint(text, step):
    """Parses the three lines into (origin, size, root)."""
    try:
        origin, size, root, rest = text.split("\n")
        number, root = int(size), canonical(root)
    except (ValueError, AssertionError) as error:
        raise Failed(step, "it is not a checkpoint") from error
    sound = origin and rest == "" and str(number) == size and 0 <= number < 2**63 and len(root) == 32
    need(sound and (number > 0 or root == H(b"")), step, "it is not a checkpoint")
    return origin, number, root


def open_checkpoint(note, keys, step, joined=False):
    """(size, root) of a checkpoint that is signed by the key in force at its size.

    With `joined`, that key may be older than the trusted one.
    """
    text, lines = split_note(note, step)
    origin, size, root = parse_checkpoint(text, step)
    at = keys.in_force(size)
    key = keys.keys[at]
    own = [signature for name, number, signature in lines if (name, number) == (key.name, key.id)]
    need(own, step, "the key in force has not signed the checkpoint")
    need(all(ed_verify(key.key, text.encode(), s) for s in own), step, "a signature that does not verify")
    need(origin == key.name, step, "the origin is not the key's name")
    need(joined or at >= keys.trusted, step, "signed by a key that was replaced before the trusted one")
    return size, root


# ML-DSA-44 (FIPS 204): the check of a signature with the empty context. Numbers of algorithms are
# those of the standard. A polynomial is a list of 256 numbers modulo Q.
Q = 8380417
GAMMA1, GAMMA2, BETA, OMEGA, TAU = 2**17, (Q - 1) // 88, 78, 80, 39
# Powers of 1753, a 512th root of unity, at the indices with their eight bits reversed.
ZETAS = [pow(1753, int(f"{k:08b}"[::-1], 2), Q) for k in range(256)]


def unpack(data, bits):
    """256 integers of so many bits, the lowest bit first."""
    number = int.from_bytes(data, "little")
    return [number >> bits * i & (1 << bits) - 1 for i in range(256)]


def ntt(w):
    """Algorithm 41."""
    w, m, length = list(w), 0, 128
    while length:
        for start in range(0, 256, 2 * length):
            m += 1
            for j in range(start, start + length):
                t = ZETAS[m] * w[j + length] % Q
                w[j], w[j + length] = (w[j] + t) % Q, (w[j] - t) % Q
        length //= 2
    return w


def ntt_inverse(w):
    """Algorithm 42."""
    w, m, length = list(w), 256, 1
    while length < 256:
        for start in range(0, 256, 2 * length):
            m -= 1
            for j in range(start, start + length):
                a, b = w[j], w[j + length]
                w[j], w[j + length] = (a + b) % Q, ZETAS[m] * (b - a) % Q
        length *= 2
    return [x * pow(256, -1, Q) % Q for x in w]


def sample_uniform(seed):
    """Algorithm 30: a polynomial from a hash. Three bytes below Q give a coefficient."""
    length = 1024
    while True:
        stream = hashlib.shake_128(seed).digest(length)
        triples = (stream[i : i + 3] for i in range(0, length - 2, 3))
        numbers = (int.from_bytes(triple, "little") & 0x7FFFFF for triple in triples)
        found = [number for number in numbers if number < Q]
        if len(found) >= 256:
            return found[:256]
        length *= 2


def sample_in_ball(seed):
    """Algorithm 29: a polynomial of TAU coefficients 1 or -1, and zeros."""
    stream = iter(hashlib.shake_256(seed).digest(4096))
    signs = int.from_bytes(bytes(next(stream) for _ in range(8)), "little")
    c = [0] * 256
    for number, i in enumerate(range(256 - TAU, 256)):
        j = next(byte for byte in stream if byte <= i)
        c[i] = c[j]
        c[j] = -1 if signs >> number & 1 else 1
    return c


def unpack_hint(data):
    """Algorithm 21: the places with a hint in each of four polynomials; None if wrong."""
    hints, index = [], 0
    for end in data[OMEGA:]:
        places = list(data[index:end])
        if not index <= end <= OMEGA or any(a >= b for a, b in zip(places, places[1:])):
            return None
        hints.append(set(places))
        index = end
    return None if any(data[index:OMEGA]) else hints


def use_hint(hint, r):
    """Algorithms 36 and 40: the high bits of r, moved by one if there is a hint."""
    low = r % (2 * GAMMA2)
    low = low - 2 * GAMMA2 if low > GAMMA2 else low
    high, low = (0, low - 1) if r - low == Q - 1 else ((r - low) // (2 * GAMMA2), low)
    return (high + (1 if low > 0 else -1)) % 44 if hint else high


def shake256(data, length):
    return hashlib.shake_256(data).digest(length)


def mldsa_verify(key, message, signature):
    """Whether the signature is the key's (algorithms 3 and 8)."""
    if (len(key), len(signature)) != (1312, 2420):
        return False
    rho, t1 = key[:32], [unpack(key[32 + 320 * i : 352 + 320 * i], 10) for i in range(4)]
    z = [[GAMMA1 - x for x in unpack(signature[32 + 576 * i : 608 + 576 * i], 18)] for i in range(4)]
    hints = unpack_hint(signature[2336:])
    if hints is None or any(abs(x) >= GAMMA1 - BETA for polynomial in z for x in polynomial):
        return False
    mu = shake256(shake256(key, 64) + b"\0\0" + message, 64)
    c, z = ntt(sample_in_ball(signature[:32])), [ntt(polynomial) for polynomial in z]
    packed = b""
    for r in range(4):
        row = [sample_uniform(rho + bytes([s, r])) for s in range(4)]
        shifted = ntt([x << 13 for x in t1[r]])
        w = [sum(row[s][i] * z[s][i] for s in range(4)) - c[i] * shifted[i] for i in range(256)]
        high = [use_hint(i in hints[r], x) for i, x in enumerate(ntt_inverse(w))]
        packed += sum(x << 6 * i for i, x in enumerate(high)).to_bytes(192, "little")
    return shake256(mu + packed, 32) == signature[:32]


# Section 10: policies.
def sound_name(name):
    return name and not any(c == "+" or c.isspace() or ord(c) < 32 for c in name)


def parse_witness(vkey):
    """Parses the vkey of a witness into (key name, key id, key with its type)."""
    name, number, key = vkey.split("+", 2)
    key = canonical(key)
    assert sound_name(name) and (key[0], len(key)) in ((4, 33), (6, 1313))
    assert H(name.encode(), b"\n", key)[:4].hex() == number
    return name, bytes.fromhex(number), key


def cosigned_at(witness, text, signature):
    """The time of a witness's line on a checkpoint; None if it does not verify."""
    name, _, key = witness
    time, signature = int.from_bytes(signature[:8], "big"), signature[8:]
    if key[0] == 4:
        message = f"cosignature/v1\ntime {time}\n{text}".encode()
        good = len(signature) == 64 and ed_verify(key[1:], message, signature)
    else:
        origin, size, root = parse_checkpoint(text, "checkpoint")
        names = [name.encode(), origin.encode()]
        good = all(len(name) < 256 for name in names)
        if good:
            own, log = (bytes([len(name)]) + name for name in names)
            message = b"subtree/v1\n\0" + own + be64(time) + log + be64(0) + be64(size) + root
            good = mldsa_verify(key[1:], message, signature)
    return time if good and time < 2**63 else None


class Policy:
    """A policy: `logs` has keys, `named` has (name, witness or None, threshold, members).

    Members are indices in `named`, and come before their group.
    """

    def __init__(self, data):
        assert len(data) <= 256 << 10
        self.logs, self.named, self.taken, self.quorum = [], [], set(), None
        closed = False
        for line in data.split(b"\n"):
            assert all(c >= 32 and c != 127 or c == 9 for c in line)
            words = line.replace(b"\t", b" ").split(b" ")
            words = [word for word in words if word]
            if not words or words[0].startswith(b"#"):
                continue
            kind, rest = words[0], words[1:]
            if kind == b"quorum":
                assert len(rest) == 1 and not closed
                closed = True
                self.quorum = None if rest[0] == b"none" else self.find(rest[0])
            else:
                {b"log": self.log, b"witness": self.witness, b"group": self.group}[kind](rest)
        assert closed and len(self.logs) <= 256 and len(self.named) <= 256

    def find(self, name):
        return next(i for i, named in enumerate(self.named) if named[0] == name)

    def known(self):
        """The raw keys of all logs and witnesses."""
        return [log.key for log in self.logs] + [named[1][2][1:] for named in self.named if named[1]]

    def log(self, words):
        assert len(words) in (1, 2)
        key = parse_key(words[0].decode())
        assert key.key not in self.known()
        self.logs.append(key)

    def define(self, name, *what):
        assert name != b"none" and name not in [named[0] for named in self.named]
        self.named.append((name, *what))

    def witness(self, words):
        assert len(words) in (2, 3)
        witness = parse_witness(words[1].decode())
        assert witness[2][1:] not in self.known()
        self.define(words[0], witness, 0, [])

    def group(self, words):
        name, threshold, members = words[0], words[1], [self.find(word) for word in words[2:]]
        assert len(set(members)) == len(members) and not self.taken & set(members)
        self.taken |= set(members)
        count = {b"all": len(members), b"any": 1}.get(threshold)
        if count is None:
            count = int(threshold)
            assert str(count).encode() == threshold
        assert 1 <= count <= len(members)
        self.define(name, None, count, members)

    def with_successors(self, log):
        """The keys of the logs, and the later keys that key changes in a file prove from them."""
        logs, known = list(self.logs), self.known()
        for key in self.logs:
            try:
                newest = log.follow(Keys([key], [], 0)).keys[-1]
            except Failed:
                continue
            if newest.key not in known:
                logs.append(newest)
        return logs

    def examine(self, note, logs, step):
        """(key of the log that signed, names of witnesses that cosigned, whether enough did)."""
        text, lines = split_note(note, step)
        origin, _, _ = parse_checkpoint(text, step)
        signer, times = None, [None] * len(self.named)
        for name, number, signature in lines:
            for key in logs:
                if (name, number) == (key.name, key.id):
                    need(ed_verify(key.key, text.encode(), signature), step, "a log's signature does not verify")
                    signer = signer or (key if key.name == origin else None)
            for i, (_, witness, _, _) in enumerate(self.named):
                if witness and witness[:2] == (name, number):
                    time = cosigned_at(witness, text, signature)
                    need(time is not None, step, "a cosignature of the policy does not verify")
                    times[i] = True if time > 0 else times[i]
        need(signer, step, "no log of the policy, nor a key that one changed to, has signed the checkpoint")
        reached = []
        for (_, witness, threshold, members), time in zip(self.named, times):
            reached.append(bool(time) if witness else sum(reached[i] for i in members) >= threshold)
        names = [named[0].decode(errors="replace") for named, time in zip(self.named, times) if time]
        return signer, names, self.quorum is None or reached[self.quorum]


# Section 11: epochs. A pair is (epoch, base).
def stands(version, pair, following):
    """Whether a version of the pair's epoch stands; `following` is the next pair."""
    epoch, base = pair
    return (epoch, version) == (0, 0) or base < version and (following is None or version <= following[1])


def epoch_leaf(pair):
    return H(b"\x18", u64(pair[0]), u64(pair[1]))


def check_pairs(first, pairs, count, newest, step):
    """Checks that rollbacks can leave these pairs in the newest header's list of `count` pairs.

    The first of them has the index `first`.
    """
    for index, (epoch, base) in enumerate(pairs, first):
        sound = (epoch, base) == (0, 0) if index == 0 else epoch >= index and base >= index - 1
        need(sound, step, "epoch pairs that no rollbacks leave")
        behind = count - 1 - index
        fits = epoch + behind <= newest.stamp[0] if behind else epoch == newest.stamp[0]
        need(fits and base <= newest.stamp[1], step, "epoch pairs of a different head than the newest header's")
    for index, (a, b) in enumerate(zip(pairs, pairs[1:]), first):
        need(a[0] < b[0] and (index == 0 or a[1] < b[1]), step, "epoch pairs that no rollbacks leave")


# Sections 12 and 13: proof files and how to verify them.
class Log:
    """The log part of a file. After `check`, `size`, `root` and `newest` can be believed."""

    def __init__(self, r, cluster, keys, joined):
        self.note, newest, path = r.str32(), r.str16(), r.hashes()
        count = r.u16()
        need(count <= 256, "format", "more than 256 key changes")
        self.changes = [(r.str16(), r.hashes()) for _ in range(count)]
        self.parts, self.cluster, self.keys, self.joined = (newest, path), cluster, keys, joined

    def follow(self, keys):
        headers = [Header(part[0], "keys") for part in self.changes]
        need(all(header.cluster == self.cluster for header in headers), "keys", "a header of another cluster")
        return keys.follow(headers)

    def check(self):
        self.keys = self.follow(self.keys)
        self.size, self.root = open_checkpoint(self.note, self.keys, "checkpoint", self.joined)
        own = self.keys.keys[0].name.endswith("/" + self.cluster.hex())
        need(own, "checkpoint", "a checkpoint of another cluster")
        for part in self.changes:
            self.header(part, "keys")
        self.newest = self.header(self.parts, "newest_header")
        need(self.newest.sequence == self.size - 1, "newest_header", "it is not the last entry of the log")

    def header(self, part, step):
        header = Header(part[0], step)
        need(header.cluster == self.cluster, step, "a header of another cluster")
        included(header.sequence, self.size, header.hash, part[1], self.root, step)
        if header.kind == 6:
            known = zip(self.keys.changes, (key.key for key in self.keys.keys[1:]))
            rule = "it changes the key, and is not among the key changes"
            need((header.sequence, header.what[2]) in list(known), step, rule)
        if header.changes is not None:
            counted = sum(sequence <= header.sequence for sequence in self.keys.changes)
            need(header.changes == counted, step, "it counts other key changes than those that are known")
        if header.kind == 0:
            first = self.keys.keys[0]
            named = header.what[0] + "/" + self.cluster.hex() == first.name and header.what[1] == first.key
            need(named, step, "genesis names a different origin or key than the checkpoint's")
        return header


def read_epoch(r):
    index, pair = r.u32(), (r.u64(), r.u64())
    return index, pair, (r.u64(), r.u64()) if r.flag() else None, r.hashes()


def check_epoch(part, newest, stamp):
    index, pair, following, hashes = part
    revealed = [(index, epoch_leaf(pair))] + ([(index + 1, epoch_leaf(following))] if following else [])
    root = list_root(newest.epoch_pairs, revealed, hashes, "epoch")
    need(root == newest.epochs_root, "epoch", "another epochs root")
    need(following or index + 1 == newest.epoch_pairs, "epoch", "the next pair is not shown")
    check_pairs(index, [pair] + ([following] if following else []), newest.epoch_pairs, newest, "epoch")
    need(pair[0] == stamp[0] and stands(stamp[1], pair, following), "epoch", "the version was rolled back")
    need(stamp[1] <= newest.stamp[1], "epoch", "the version is above the newest header's")


def read_key(r, least):
    size = r.less(16)
    need(least <= size <= KEY_MAX, "format", "the length of a key")
    return r.take(size)


def read_node(r, level):
    """Decodes a node part into (level, n, [(index, key, content)], hashes).

    The content is a record, a child's node part, or a child's hash.
    """
    n, entries = r.less(16), []
    for _ in range(r.less(16)):
        index = r.less(16)
        if level == 0:
            tombstone, stamp, key = r.flag(), (r.short(), r.short()), read_key(r, 1)
            record = (key, stamp, None, None) if tombstone else (key, stamp, r.less(32), r.take(32))
            entries.append((index, key, record))
        else:
            bound = read_key(r, 0)
            entries.append((index, bound, read_node(r, level - 1) if r.flag() else r.take(32)))
    return (level, n, entries, [r.take(32) for _ in range(r.less(16))])


def read_trees(r):
    count, trees = r.u8(), []
    need(1 <= count <= 16, "format", "the number of trees of a shard")
    for _ in range(count):
        level, entries = r.u8(), r.short()
        need(level <= 32, "format", "the level of a tree")
        trees.append((level, entries, read_node(r, level) if r.flag() else r.take(32)))
    return trees


def part_hash(node, low, high, stamp):
    """The hash of a node from its revealed part, whose shape is checked.

    Its keys are at or above low and below high. Only the root has no low.
    """
    if isinstance(node, bytes):
        return node
    level, n, entries, hashes = node
    need(n > 0 or level == 0 and low is None, "tree", "a node without entries")
    keys, revealed = [key for _, key, _ in entries], []
    need(all(a < b for a, b in zip(keys, keys[1:])), "tree", "keys do not ascend")
    for place, (index, key, content) in enumerate(entries):
        first, least = level > 0 and index == 0, low or b""
        above = key == b"" if first else key > least or level == 0 and key == least
        need(above, "tree", "a key below its node's separator")
        need(high is None or key < high, "tree", "a key above its child's neighbour")
        if level == 0:
            past = content[1][0] <= stamp[0] and content[1][1] <= stamp[1]
            need(past, "tree", "a record from after the version")
            revealed.append((index, record_hash(content)))
        else:
            following = keys[place + 1] if place + 1 < len(keys) else high
            revealed.append((index, entry_hash(key, part_hash(content, least if first else key, following, stamp))))
    root = list_root(n, revealed, hashes, "tree")
    return leaf_hash(n, root) if level == 0 else inner_hash(level, n, root)


def records_below(node):
    """The least number of records below a node, and whether it is exact."""
    if isinstance(node, bytes):
        return 1, False
    level, n, entries, _ = node
    if level == 0:
        return n, True
    below = [records_below(child) for _, _, child in entries]
    hidden = n - len(entries)
    return hidden + sum(least for least, _ in below), hidden == 0 and all(whole for _, whole in below)


def check_count(tree):
    """Checks that the tree's number of records fits its revealed part."""
    level, entries, root = tree
    none = level == 0 and root == EMPTY_ROOT if isinstance(root, bytes) else root[1] == 0
    least, whole = (0, True) if none else records_below(root)
    fits = entries == least if whole else entries >= least
    need(fits, "tree", "a different number of records than the tree is said to have")


def empty(tree):
    """Whether the tree is shown to be empty by its hash alone."""
    return tree[0] == 0 and tree[1] == 0 and tree[2] == EMPTY_ROOT


def shown(node):
    """All revealed records below a node."""
    if isinstance(node, bytes):
        return []
    level, _, entries, _ = node
    return [c for _, _, c in entries] if level == 0 else [r for _, _, c in entries for r in shown(c)]


def complete(node, low, high):
    """Whether all records of the node with low <= key < high are revealed."""
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
    """Whether the part of a node shows that the tree has no record of a key.

    `ends` says that everything behind the node is shown to be above the key.
    """
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
    """The record of the youngest tree that has the key; None if no tree has it."""
    for tree in trees:
        found = [record for record in shown(tree[2]) if record[0] == key]
        if found:
            return found[0]
        need(empty(tree) or absent(tree[2], key), "query", "it is not shown whether a tree has the key")
    return None


def read_query(r):
    if r.flag():
        low, high = r.str16(), r.opt16()
        need(max(len(low), len(high or b"")) <= KEY_MAX + 1, "format", "the length of a range's bound")
        need(high is None or low < high, "format", "the order of a range's bounds")
        return (low, high), None
    keys = [r.str16() for _ in range(r.u16())]
    need(keys and all(1 <= len(key) <= KEY_MAX for key in keys), "format", "the number or length of queried keys")
    need(all(a < b for a, b in zip(keys, keys[1:])), "format", "the order of queried keys")
    return None, keys


def read_shard(r):
    shard = {"index": r.u32(), "id": r.u32(), "low": r.str16(), "high": r.opt16(), "version": r.u64()}
    low, high = shard["low"], shard["high"]
    need(shard["id"] != NO_SHARD, "format", "the id of a shard")
    need(max(len(low), len(high or b"")) <= KEY_MAX, "format", "the length of a shard's bound")
    need(high is None or low < high, "format", "the order of a shard's bounds")
    shard["trees"] = read_trees(r)
    return shard


def answer_keys(keys, shards):
    answers, unused = [], set(range(len(shards)))
    for key in keys:
        at = [i for i, s in enumerate(shards) if s["low"] <= key and (s["high"] is None or key < s["high"])]
        need(at, "query", "the shard that holds a key is not shown")
        unused -= set(at)
        answers.append((key, find(shards[at[0]]["trees"], key)))
    need(not unused, "query", "a shard that holds none of the keys")
    return answers


def answer_range(low, high, shards):
    need(shards and shards[0]["low"] <= low, "query", "the shard of the low bound is not shown")
    need(shards[0]["high"] is None or low < shards[0]["high"], "query", "the shard of the low bound is not shown")
    for a, b in zip(shards, shards[1:]):
        joined = b["index"] == a["index"] + 1 and a["high"] == b["low"] and (high is None or b["low"] < high)
        need(joined, "query", "the shards do not cover the range")
    end = shards[-1]["high"]
    need(end is None or high is not None and end >= high, "query", "the shards do not cover the range")
    records = []
    for shard in shards:
        bounds = [b for b in (high, shard["high"]) if b is not None]
        start, stop, youngest = max(low, shard["low"]), min(bounds) if bounds else None, {}
        for tree in shard["trees"]:
            need(empty(tree) or complete(tree[2], start, stop), "query", "it is not shown that a range is complete")
            for record in shown(tree[2]):
                if start <= record[0] and (stop is None or record[0] < stop):
                    youngest.setdefault(record[0], record)
        records += [youngest[key] for key in sorted(youngest) if youngest[key][2] is not None]
    return records


def check_state(header, shards, hashes):
    leaves = []
    for s in shards:
        need(s["version"] <= header.stamp[1], "state", "a shard version above the version")
        digests = [tree_digest(t[0], t[1], part_hash(t[2], None, None, header.stamp)) for t in s["trees"]]
        leaves.append((s["index"], state_leaf((s["id"], s["low"], s["high"]), s["version"], shard_digest(digests))))
    root = list_root(header.state_leaves, leaves, hashes, "state")
    need(root == header.state_root, "state", "another state root")
    for s in shards:
        first, last = s["index"] == 0, s["index"] + 1 == header.state_leaves
        ends = first == (s["low"] == b"") and last == (s["high"] is None)
        need(ends, "state", "shards that are not those of one map")
    for a, b in zip(shards, shards[1:]):
        joined = a["high"] == b["low"] if a["index"] + 1 == b["index"] else a["high"] < b["low"]
        need(joined, "state", "shards that are not those of one map")
    need(len({s["id"] for s in shards}) == len(shards), "state", "two shards of one id")
    for s in shards:
        for tree in s["trees"]:
            check_count(tree)


class Query:
    """The payload of a query. After `check`, `answers`, `found` and the header can be believed."""

    def __init__(self, r):
        self.part, self.epoch = (r.str16(), r.hashes()), read_epoch(r)
        self.span, self.keys = read_query(r)
        self.shards = [read_shard(r) for _ in range(r.u16())]
        self.hashes = r.hashes()
        self.values = [r.str32() for _ in range(r.u32())] if r.flag() else None

    def check(self, log, kinds):
        """Steps 1 to 9; the header is of one of these kinds."""
        log.check()
        self.header = log.header(self.part, "header")
        need(self.header.kind in kinds, "header", "a header of another kind")
        check_epoch(self.epoch, log.newest, self.header.stamp)
        check_state(self.header, self.shards, self.hashes)
        if self.keys is not None:
            self.answers = answer_keys(self.keys, self.shards)
            self.found = [record for _, record in self.answers if record and record[2] is not None]
        else:
            self.found = answer_range(*self.span, self.shards)
        if self.values is not None:
            need(len(self.values) == len(self.found), "value", "a different number of values than of records")
            for value, record in zip(self.values, self.found):
                need((len(value), H(value)) == (record[2], record[3]), "value", "another value")

    def show(self, key, record):
        if record is None or record[2] is None:
            return {"key": key.hex(), "found": None}
        value = self.values[self.found.index(record)].hex() if self.values is not None else None
        fields = {"stamp": list(record[1]), "value_sha256": record[3].hex(), "length": record[2], "value": value}
        return {"key": key.hex(), "found": fields}

    def claim(self):
        claim = {"version": list(self.header.stamp)}
        if self.keys is not None:
            return claim | {"kind": "keys", "keys": [self.show(*answer) for answer in self.answers]}
        low, high = self.span[0].hex(), self.span[1].hex() if self.span[1] is not None else None
        records = [self.show(record[0], record) for record in self.found]
        return claim | {"kind": "range", "low": low, "high": high, "records": records}


def check_query(r, log):
    query = Query(r)
    r.end()
    query.check(log, (0, 1))
    return query.header.stamp, query.claim()


def read_touched(r):
    """The shards that a journal entry touches: [(shard, list hash)]."""
    shards = [(r.u32(), r.take(32)) for _ in range(r.u32())]
    need(all(a[0] < b[0] for a, b in zip(shards, shards[1:])), "format", "the order of touched shards")
    return shards


def read_batch(r):
    session = (r.take(16), r.u64()) if r.flag() else None
    r.take(32)
    need(r.take(2) == bytes(2), "format", "a client signature or clues")
    return ("batch", session, read_touched(r))


def read_merge(r):
    shard, inputs = r.u32(), r.hashes()
    need(len(inputs) >= 2, "format", "a merge of fewer than two trees")
    return ("merge", shard, inputs, r.take(32))


def read_append(r):
    ledger, request, signature = r.take(16), Request(r.str16()), r.take(64)
    first, journals, root = r.u64(), r.u32(), r.take(32)
    need(journals == request.n, "format", "the number of appended journals")
    need(first + journals < 2**64, "format", "the numbers of appended journals")
    need(request.founds or request.ledger == ledger, "format", "an append to another ledger than the request's")
    return ("append", (ledger, request, signature, first, journals, root), read_touched(r))


def read_head_entry(r):
    ledger, before, size, root = r.take(16), r.u64(), r.u64(), r.take(32)
    need(before < size, "format", "a head of a ledger that has not grown")
    return ("head", (ledger, before, size, root), read_touched(r))


def read_entry(data, step):
    """Decodes a journal entry.

    It is ("batch", session, touched), ("append", what, touched), ("head", what, touched) or
    ("merge", shard, inputs, output).
    """
    try:
        r = Reader(data)
        kind = r.u8()
        need(kind < 4, "format", "the kind of a journal entry")
        entry = (read_batch, read_merge, read_append, read_head_entry)[kind](r)
        r.end()
        return entry
    except Failed as failed:
        raise failed.at(step) from failed


def check_receipt(r, log):
    part, epoch, index, entry, hashes = (r.str16(), r.hashes()), read_epoch(r), r.u32(), r.str16(), r.hashes()
    r.end()
    log.check()
    header = log.header(part, "header")
    need(header.kind == 1, "header", "not a commit")
    check_epoch(epoch, log.newest, header.stamp)
    read = read_entry(entry, "journal")
    root = list_root(header.journal_leaves, [(index, H(b"\x19", entry))], hashes, "journal")
    need(root == header.journal_root, "journal", "another journal root")
    need(read[0] == "batch", "journal", "not a batch")
    return header.stamp, {"kind": "receipt", "version": list(header.stamp), "index": index, "entry": entry.hex()}


def check_standing(r, log):
    old, root, path = r.u64(), r.take(32), r.hashes()
    pairs = [(r.u64(), r.u64()) for _ in range(r.u16())]
    r.end()
    log.check()
    consistent(old, log.size, root, log.root, path, "standing")
    need(len(pairs) == log.newest.epoch_pairs, "standing", "another number of epoch pairs")
    check_pairs(0, pairs, len(pairs), log.newest, "standing")
    need(mth([epoch_leaf(pair) for pair in pairs]) == log.newest.epochs_root, "standing", "other epoch pairs")
    return None, {"kind": "standing", "old size": old, "old root": root.hex(), "pairs": [list(p) for p in pairs]}


def check_time(r, log):
    part, epoch, time = (r.str16(), r.hashes()), read_epoch(r), r.u64()
    after = (r.str16(), r.hashes()) if r.flag() else None
    r.end()
    log.check()
    header = log.header(part, "header")
    need(header.kind in (0, 1), "header", "neither a commit nor genesis")
    following = log.header(after, "header") if after else None
    need(following is None or following.kind == 1, "header", "the next header is not a commit")
    check_epoch(epoch, log.newest, header.stamp)
    need(header.time <= time, "time", "the version is later than the time")
    if following is None:
        need(header.stamp[1] == log.newest.stamp[1], "time", "the next version is not shown")
    else:
        _, pair, later, _ = epoch
        begins = later if later and later[1] == header.stamp[1] else pair
        need(following.stamp[1] == header.stamp[1] + 1, "time", "not the version after it")
        need(following.stamp[0] == begins[0], "time", "the next version was rolled back")
        need(following.sequence > header.sequence, "time", "the next version lies before it in the log")
        need(following.stamp[1] <= log.newest.stamp[1], "time", "the next version is above the newest header's")
        need(following.time > time, "time", "the next version is not later than the time")
    need((following or header).time <= log.newest.time, "time", "times that decrease along the log")
    claim = {"kind": "time", "version": list(header.stamp), "time": time, "committed": header.time}
    claim["next"] = [list(following.stamp), following.time] if following else None
    return header.stamp, claim | {"final": log.newest.time > time}


# Section 19: anchors around an entry.
def check_interval(r, log):
    part = (r.str16(), r.hashes())
    below = r.u16()
    need(below <= 16, "format", "the number of anchors")
    below = [((r.str16(), r.hashes()), None) for _ in range(below)]
    above = r.u16()
    need(above <= 16, "format", "the number of anchors")
    above = [((r.str16(), r.hashes()), r.hashes()) for _ in range(above)]
    r.end()
    log.check()
    header = log.header(part, "header")
    anchors = [(log.header(anchor, "anchors"), path) for anchor, path in below + above]
    stamped = all(anchor.kind == 7 and anchor.what is not None for anchor, _ in anchors)
    need(stamped, "anchors", "not an anchor with stamps")
    for anchor, path in anchors[: len(below)]:
        need(anchor.sequence < header.sequence, "anchors", "an anchor that does not come before the entry")
    for anchor, path in anchors[len(below) :]:
        size, root, _ = anchor.what
        need(header.sequence < size, "anchors", "an anchor of a log that does not hold the entry")
        included(header.sequence, size, header.hash, path, root, "anchors")
    places = [(anchor.sequence, anchor.what[0]) for anchor, _ in anchors]
    ordered = all(a[0] < b[0] and a[1] < b[1] for a, b in zip(places, places[1:]))
    need(ordered, "anchors", "anchors out of order")
    claims = [claim_anchor(log, anchor) for anchor, _ in anchors]
    # An entry of the log stays, whether or not its version stands.
    return None, {
        "kind": "interval",
        "version": list(header.stamp),
        "sequence": header.sequence,
        "below": claims[: len(below)],
        "above": claims[len(below) :],
    }


def claim_anchor(log, anchor):
    size, root, tokens = anchor.what
    lines = f"{log.keys.keys[0].name}\n{size}\n{base64.b64encode(root).decode()}\n"
    return {
        "sequence": anchor.sequence,
        "size": size,
        "root": root.hex(),
        "imprint": H(lines.encode()).hex(),
        "tokens": [[kind, chain, token.hex()] for kind, chain, token in tokens],
    }


# The kinds of proof files by their format.
KINDS = {3: (0, 1, 2), 4: (3, 4, 5, 6)}


def open_file(data):
    """Opens a proof file and returns (reader of its payload, kind, cluster)."""
    need(len(data) <= 64 << 20, "format", "a file that is too large")
    need(len(data) > 8, "format", "it ends too early")
    r = Reader(data[:-8])
    need(r.take(13) == b"coppice-proof", "format", "it is not a proof file")
    format = r.u8()
    need(format in KINDS, "format", "another format of proof files")
    need(H(b"\x1e", data[:-8])[:8] == data[-8:], "format", "the checksum")
    kind, cluster = r.u8(), r.take(16)
    need(kind in KINDS[format], "format", "the kind of a proof file")
    return r, kind, cluster


def verify(data, keys, joined=False):
    """Verifies a proof file and returns (log, stamp, claim)."""
    r, kind, cluster = open_file(data)
    log = Log(r, cluster, keys, joined)
    checks = {
        0: check_query,
        1: check_receipt,
        2: check_standing,
        3: check_journals,
        4: check_time,
        5: check_lineage,
        6: check_interval,
    }
    stamp, claim = checks[kind](r, log)
    return log, stamp, claim


def is_file(newer):
    return newer is not None and newer.startswith(b"coppice-proof")


def verify_both(data, newer, key):
    """Like verify, with a newer checkpoint, which is verified first: it may have key changes."""
    keys, later = Keys([key], [], 0), None
    if is_file(newer):
        try:
            later = verify(newer, keys)
        except Failed as failed:
            raise failed.at("standing") from failed
        keys = later[0].keys
    log, stamp, claim = verify(data, keys, later is not None)
    if newer is not None:
        check_newer(log, stamp, newer, later)
        larger = later is not None and later[0].size > log.size
        need(not larger or claim.get("final", True), "standing", "a later version may have the time, too")
    return log, stamp, claim


def check_newer(log, stamp, newer, later):
    try:
        if later is None:
            same = open_checkpoint(newer, log.keys, "standing") == (log.size, log.root)
            need(same, "standing", "a note of another checkpoint")
            return
        later, _, claim = later
        need(claim["kind"] == "standing" and later.cluster == log.cluster, "standing", "not a standing proof of this")
        signers = [of.keys.keys[of.keys.in_force(later.size)].key for of in (later, log)]
        need(signers[0] == signers[1], "standing", "it is signed by a key that the proof shows to be replaced")
        joined = (claim["old size"], claim["old root"]) == (log.size, log.root.hex())
        need(joined, "standing", "it extends a different checkpoint than the proof's")
        pairs = claim["pairs"]
        following = dict(zip((pair[0] for pair in pairs), pairs[1:] + [None]))
        pair = next((pair for pair in pairs if stamp is not None and pair[0] == stamp[0]), None)
        stood = stamp is None or pair and stands(stamp[1], pair, following[pair[0]])
        need(stood, "standing", "the version was rolled back")
        above = stamp is not None and stamp[1] > later.newest.stamp[1]
        need(not above, "standing", "the version is above the newest header's")
    except Failed as failed:
        raise failed.at("standing") from failed


def verify_under(data, newer, policy):
    """Verifies a proof file under a policy and returns (log, stamp, claim, names of witnesses)."""
    r, _, cluster = open_file(data)
    log, step, note = Log(r, cluster, None, False), "checkpoint", None
    if newer is not None:
        step = "standing"
        if is_file(newer):
            try:
                r, _, cluster = open_file(newer)
                log = Log(r, cluster, None, False)
            except Failed as failed:
                raise failed.at(step) from failed
        else:
            note = newer
    signer, names, enough = policy.examine(log.note if note is None else note, policy.with_successors(log), step)
    result = verify_both(data, newer, signer)
    need(enough, "cosignatures", "too few witnesses of the policy have cosigned the checkpoint")
    return *result, names


# Section 20: evidence.
class Evidence:
    """An evidence file, as its text tells it."""

    def __init__(self, data):
        need(len(data) <= 256 << 10, "format", "a file that is too long")
        self.data = data
        need(self.line() == "coppice-evidence/v1", "format", "not an evidence file of this format")
        self.kind = self.line()
        need(self.kind in ("contradiction", "late"), "format", "another kind of evidence")
        self.changes = [self.change(body) for body in self.all("key", 256)]
        if self.kind == "contradiction":
            self.size, self.root = self.decimal("size", 2**63 - 1), self.decoded(self.word("root"), 32)
        else:
            self.index, self.entry = self.decimal("index", 2**63 - 1), self.decoded(self.word("entry"))
            need(len(self.entry) <= 65534, "format", "an entry that is too long")
        self.path = [self.decoded(word, 32) for word in self.all("proof", 64)]
        self.a, self.b = self.note("a"), self.note("b")
        need(not self.data, "format", "bytes behind note b")

    def line(self):
        line, end, self.data = self.data.partition(b"\n")
        try:
            need(end, "format", "it ends too early")
            return line.decode()
        except UnicodeDecodeError as error:
            raise Failed("format", "a line that is not text") from error

    def word(self, name):
        found, space, word = self.line().partition(" ")
        need((found, space) == (name, " "), "format", f"no {name}")
        return word

    def all(self, name, most):
        words = []
        while self.data.startswith(name.encode() + b" "):
            words.append(self.word(name))
        need(len(words) <= most, "format", f"too many lines of {name}")
        return words

    def decoded(self, word, length=None):
        try:
            data = canonical(word)
        except (ValueError, AssertionError) as error:
            raise Failed("format", "base64 that is not canonical") from error
        need(length in (None, len(data)), "format", "a value of another length")
        return data

    def decimal(self, name, most):
        word = self.word(name)
        digits = word.isascii() and word.isdigit() and len(word) < 20
        need(digits and str(int(word)) == word and int(word) <= most, "format", f"the {name}")
        return int(word)

    def change(self, word):
        r = Reader(self.decoded(word))
        change = read_change_of_key(r)
        r.end()
        return change

    def note(self, name):
        length = self.decimal(name, 65536)
        need(length <= len(self.data), "format", f"note {name} ends too early")
        note, self.data = self.data[:length], self.data[length:]
        return note


def cluster_of(origin):
    """The cluster id at the end of an origin; None if there is none."""
    prefix, slash, digits = origin.rpartition("/")
    plain = slash and len(digits) == 32 and all(c in "0123456789abcdef" for c in digits)
    return bytes.fromhex(digits) if plain else None


def signers(note, keys):
    """(origin, size, root) of a note, its text and lines, and the known keys that signed it."""
    text, lines = split_note(note, "notes")
    checkpoint = parse_checkpoint(text, "notes")
    need(checkpoint[0] == keys[0].name, "notes", "a checkpoint of another log")
    by = []
    for key in keys:
        own = [signature for name, number, signature in lines if (name, number) == (key.name, key.id)]
        need(all(ed_verify(key.key, text.encode(), s) for s in own), "notes", "a signature that does not verify")
        by += [key] if own else []
    need(by, "notes", "no known key has signed")
    return checkpoint, text, lines, by


def judge_evidence(data, trusted, policy=None):
    """Judges an evidence file and returns what it proves, in the words of section 20."""
    file = Evidence(data)
    found, cluster = [], cluster_of(trusted.name)
    for change in file.changes:
        need(cluster, "keys", "the trusted key's name ends in no cluster id")
        check_change_of_key(change, cluster, "keys")
        joined = not found or change[1] in found or change[2] in found
        need(joined, "keys", "a key change that has no key of those before it")
        found += [key for key in change[1:3] if key not in found]
    need(not found or trusted.key in found, "keys", "the key changes do not lead from the trusted key")
    keys = [trusted] + [Key(trusted.name, key) for key in found if key != trusted.key]
    (a, text_a, lines_a, by_a), (b, text_b, lines_b, by_b) = signers(file.a, keys), signers(file.b, keys)
    shown = {}
    if file.kind == "contradiction":
        need(file.size == a[1] <= b[1], "notes", "another size than that of note a, or note b is smaller")
        consistent(file.size, b[1], file.root, b[2], file.path, "proof")
        need(file.root != a[2], "conflict", "the log of note b goes on from that of note a")
        key_a = next((key for key in by_a if key in by_b), by_a[0])
        shown["root_in_b"] = file.root.hex()
    else:
        header = Header(file.entry, "proof")
        need(cluster and header.cluster == cluster and header.sequence == file.index, "proof", "another entry")
        need(header.kind == 6, "proof", "the entry is not a key change")
        included(file.index, b[1], header.hash, file.path, b[2], "proof")
        need(a[1] > file.index, "conflict", "note a is from before the key change")
        key_a = next((key for key in by_a if key.key == header.what[1]), None)
        need(key_a, "conflict", "the key change does not replace the key of note a")
        shown = {"index": file.index, "replaced_by": Key(trusted.name, header.what[2]).vkey()}
    key_b = key_a if key_a in by_b else by_b[0]
    witnesses = [named for named in policy.named if named[1]] if policy else []
    cosigners = []
    for name, witness, _, _ in witnesses if file.kind == "contradiction" else []:
        times = [newest_line(witness, *note) for note in ((text_a, lines_a), (text_b, lines_b))]
        if all(times):
            name = name.decode(errors="replace")
            cosigners.append({"witness": name, "key_name": witness[0], "time_a": times[0], "time_b": times[1]})
    known = [(key.name, key.id) for key in keys] + [witness[:2] for _, witness, _, _ in witnesses]
    both = [line[:2] for line in lines_a if line[:2] in [other[:2] for other in lines_b] and line[:2] not in known]
    return {
        "valid": True,
        "failed_step": None,
        "kind": file.kind,
        "origin": trusted.name,
        "a": {"size": a[1], "root": a[2].hex(), "signed_by": key_a.vkey()},
        "b": {"size": b[1], "root": b[2].hex(), "signed_by": key_b.vkey()},
        "one_key": key_a.key == key_b.key,
        **shown,
        "cosigners": cosigners,
        "unknown_cosigners": [{"key_name": name, "key_id": number.hex()} for name, number in dict.fromkeys(both)],
    }


def newest_line(witness, text, lines):
    """The largest time of a witness's lines that verify; None or 0 if none counts."""
    times = [cosigned_at(witness, text, line[2]) for line in lines if line[:2] == witness[:2]]
    return max((time for time in times if time), default=None)


# Section 8: an audit. Each step is the number of a rule.
class Auditor:
    """Follows a log, header by header, then replays the versions that stand."""

    def __init__(self):
        self.before, self.standing, self.pairs, self.boundary, self.keys = None, [], [(0, 0)], 0, []
        self.stamped = 0

    def take(self, data):
        header, before = Header(data, 1), self.before
        if before is None:
            need(header.kind == 0, 1, "the log does not begin with genesis")
        else:
            self.check_follows(header, before)
        if header.kind == 0:
            self.keys.append(header.what[1])
            self.standing.append(header)
        elif header.kind == 1:
            self.standing.append(header)
        elif header.kind == 2:
            self.roll_back(header)
        elif header.kind == 3:
            need(header.what > self.boundary, 4, "the boundary of a prune does not rise")
            self.boundary = header.what
        elif header.kind == 6:
            number, old, new = header.what
            need(number == len(self.keys) <= 256, 5, "the number of a key change")
            need(old == self.keys[-1], 5, "a key change from another key")
            need(new not in self.keys, 5, "a key change to an earlier key")
            self.keys.append(new)
        elif header.kind == 7 and header.what is not None:
            need(header.what[0] > self.stamped, 2, "an anchor of a log that is no larger than the one before")
            self.stamped = header.what[0]
        root = mth([epoch_leaf(pair) for pair in self.pairs])
        need((len(self.pairs), root) == (header.epoch_pairs, header.epochs_root), 6, "epochs that rollbacks do not give")
        self.before = header

    def check_follows(self, header, before):
        need(header.kind != 0 and header.cluster == before.cluster, 2, "genesis twice, or another cluster")
        need(header.format == before.format, 2, "another format than that of genesis")
        if header.format == 2:
            need(header.changes == before.changes + (header.kind == 6), 2, "the number of key changes")
        need(header.sequence == before.sequence + 1 and header.previous == before.hash, 2, "the entry before")
        need(header.time >= before.time, 2, "a time that falls")
        need(header.admin == before.admin + (header.kind in (2, 3)), 2, "the admin sequence")
        need((header.map, header.state_leaves) == (before.map, before.state_leaves), 2, "other shards")
        if header.kind == 2:
            need(header.what[1] == before.stamp, 2, "the head before a rollback")
            return
        epochs = (header.epochs_root, header.epoch_pairs)
        need(epochs == (before.epochs_root, before.epoch_pairs), 2, "other epochs")
        epoch, version = before.stamp
        if header.kind == 1:
            need(header.stamp == (epoch, version + 1), 2, "a commit that is not the next version")
        else:
            need(header.stamp == before.stamp, 2, "it moves the head, and is not a commit or rollback")
            need(header.state_root == before.state_root, 2, "it changes the state, and is not a commit or rollback")

    def roll_back(self, header):
        target = header.what[0]
        need(target[1] >= self.boundary, 4, "a rollback to below the boundary of a prune")
        need(target in [it.stamp for it in self.standing], 3, "a rollback to a version that does not stand")
        self.standing = [it for it in self.standing if it.stamp[1] <= target[1]]
        need(self.standing[-1].state_root == header.state_root, 3, "a rollback to another state root")
        kept = [pair for pair in self.pairs if pair[0] == 0 or pair[1] < target[1]]
        self.pairs = kept + [(header.stamp[0], target[1])]


# The order of a journal: batches and appends, then heads, then events.
PLACES_OF_ENTRIES = {"batch": 0, "append": 0, "head": 1, "merge": 2}


class Replay:
    """The state of the shards, version by version."""

    def __init__(self, genesis):
        _, _, self.parameters, self.shards = genesis.what
        rules = Rules(self.parameters)
        self.forests = {shard[0]: Forest(rules) for shard in self.shards}
        self.versions = {shard[0]: 0 for shard in self.shards}

    def apply(self, header, journal, lists):
        hashes = [H(b"\x19", entry) for entry in journal]
        need((mth(hashes), len(hashes)) == (header.journal_root, header.journal_leaves), 7, "another journal")
        version = self.parameters["version"]
        entries = [read_entry(entry, 7) for entry in journal]
        self.check_entries(entries)
        next_list, operations, merges = dict.fromkeys(self.forests, 0), {}, {}
        for entry in entries:
            if entry[0] == "merge":
                merges.setdefault(entry[1], []).append((entry[2], entry[3]))
                continue
            size = 0
            for shard, wanted in entry[2]:
                at, next_list[shard] = next_list[shard], next_list[shard] + 1
                need(at < len(lists.get(shard, [])), 10, "an operation list that is not kept")
                found = self.read_list(lists[shard][at])
                need(H(b"\x1a", lists[shard][at]) == wanted, 10, "a different operation list than was committed")
                size += self.check_operations(shard, found, entry[0])
                operations.setdefault(shard, []).extend(found)
            within = entry[0] != "batch" or size <= self.parameters["batch_bytes_max"]
            need(within, 12, "a batch over the limit")
        leaves = []
        for shard in self.shards:
            number, forest = shard[0], self.forests[shard[0]]
            if number in operations or number in merges:
                forest.prepare(header.stamp, merges.get(number, []), operations.get(number, []))
                self.versions[number] = header.stamp[1]
            trees = forest.trees()
            need(len(trees) <= self.parameters["tree_limit"], 14, "more trees than the limit")
            digest = shard_digest([digest_of(tree) for tree in trees])
            leaves.append(state_leaf(shard, self.versions[number], digest))
        need(mth(leaves) == header.state_root, 15, "a different state root than the batches give")

    def check_entries(self, entries):
        plain = all(entry[0] in ("batch", "merge") for entry in entries)
        need(plain or self.parameters["version"] == 3, 8, "an entry of a ledger in version 2")
        places = [PLACES_OF_ENTRIES[entry[0]] for entry in entries]
        need(places == sorted(places), 8, "an entry of the journal that stands too late")
        heads = [entry[1][0] for entry in entries if entry[0] == "head"]
        need(all(a < b for a, b in zip(heads, heads[1:])), 8, "the order of heads")
        numbers = [entry[1] for entry in entries if entry[0] == "batch" and entry[1] is not None]
        need(all(number > 0 for _, number in numbers), 8, "number 0 of a session")
        need(len(set(numbers)) == len(numbers), 8, "a number of a session twice")
        for entry in entries:
            touched = [entry[1]] if entry[0] == "merge" else [shard for shard, _ in entry[2]]
            need(all(shard in self.forests for shard in touched), 9, "an unknown shard")

    def read_list(self, data):
        """Decodes an operation list into [(key, (length, hash) or None)]."""
        try:
            r, found = Reader(data), []
            for _ in range(r.u32()):
                kind, key = r.u8(), r.str16()
                need(kind < 2, "format", "the kind of an operation")
                found.append((key, (r.u32(), r.take(32)) if kind == 0 else None))
            r.end()
            return found
        except Failed as failed:
            raise failed.at(10) from failed

    def check_operations(self, shard, operations, kind):
        """Checks the operations of an entry on a shard; returns the bytes of keys and values."""
        low, high = next((low, high) for number, low, high in self.shards if number == shard)
        need(operations, 11, "an empty operation list")
        size = 0
        for key, value in operations:
            need(low <= key and (high is None or key < high), 11, "a key that is not in the range of its shard")
            fits = (key >= FREE) == (kind == "batch") or self.parameters["version"] == 2
            need(fits, 11, "a batch that writes a reserved key, or another entry that writes a free one")
            need(1 <= len(key) <= self.parameters["key_bytes_max"], 12, "a key over the limit")
            length = 0 if value is None else value[0]
            need(length <= self.parameters["value_bytes_max"], 12, "a value over the limit")
            size += len(key) + length
        return size


def audit(log):
    """The first broken rule as (entry, rule, what is wrong); None if the log is sound.

    The log is a list of (header, journal, {shard: operation lists}).
    """
    auditor, sequence = Auditor(), 0
    try:
        for sequence, (header, _, _) in enumerate(log):
            auditor.take(header)
        replay = None
        for header in auditor.standing:
            sequence = header.sequence
            if replay is None:
                replay = Replay(header)
            else:
                replay.apply(header, *log[sequence][1:])
    except Failed as failed:
        return sequence, failed.step, failed.rule
    return None


# Section 18: names and reserved keys of ledgers.
NAME = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")


def read_name(r):
    name = r.str16()
    need(1 <= len(name) <= 64 and NAME.issuperset(name), "format", "a name of other bytes, or too long")
    return name


def ledger_id(cluster, signed, spread):
    start = H(b"\5", cluster, H(signed))[:16]
    return start[:15] + u8(start[15] & 254 | spread)


def member_id(name):
    return H(b"\x09", str16(name))[:16]


def clue_hash(ledger, clue):
    return H(b"\x08", ledger, str16(clue))


def be64(x):
    return struct.pack(">Q", x)


def name_key(name):
    return bytes(2) + name


class Places:
    """The reserved keys of one ledger."""

    def __init__(self, ledger):
        self.ledger, self.spread = ledger, ledger[15] & 1

    def key(self, tail, unit=b""):
        place = H(b"\x0a", self.ledger, unit if self.spread else b"")[:8]
        s = 1 + struct.unpack("<Q", place)[0] % 255
        return b"\0" + u8(s) + self.ledger + tail

    def head(self):
        return self.key(b"\0")

    def leaf(self, jsn):
        return self.key(b"\1" + be64(jsn), be64(jsn // 256))

    def envelope(self, jsn):
        return self.key(b"\2" + be64(jsn), be64(jsn // 256))

    def mark(self, jsn):
        return self.key(b"\3" + be64(jsn), be64(jsn // 256))

    def tile(self, level, index):
        first = index * 16 ** (level + 1)
        return self.key(b"\4" + u8(level) + be64(index), be64(first // 256))

    def clue(self, clue):
        return self.key(b"\5" + clue, clue)

    def cell(self, clue, ordinal):
        return self.key(b"\5" + clue + be64(2**64 - 1 - ordinal), clue)

    def member(self, member):
        return self.key(b"\6" + member)

    def founding(self):
        return self.key(b"\x08")

    def purge(self):
        return self.key(b"\7")

    def public_key(self, key):
        return self.key(b"\x09" + key)

    def retained(self, jsn):
        return self.key(b"\x0a" + be64(jsn))

    def retains(self, member):
        return self.key(b"\x0b" + member)

    def author(self, number):
        return self.key(b"\x0c" + be64(number))


# Section 18: what members send. Decoders fail at the step "format".
def some(present, encoded):
    """An optional value: its bytes behind a flag."""
    return b"\1" + encoded if present else b"\0"


def read_list(r, least, most, what, read):
    """Reads a list16 that holds from `least` to `most` things."""
    count = r.u16()
    need(least <= count <= most, "format", f"the number of {what}")
    return [read(r) for _ in range(count)]


def read_clue(r):
    clue = r.str16()
    need(1 <= len(clue) <= 256, "format", "the length of a clue")
    return clue


ENVELOPE_BYTES = 129


def read_envelope(data):
    """Decodes an envelope into (clues, payload)."""
    r = Reader(data)
    r.take(32)
    clues = read_list(r, 0, 16, "clues", read_clue)
    need(len(set(clues)) == len(clues), "format", "a clue twice")
    payload = r.str32()
    zeros = max(ENVELOPE_BYTES - r.at, 0)
    need(r.take(zeros) == bytes(zeros), "format", "an envelope that is filled with other bytes than zeros")
    r.end()
    return clues, payload


def read_condition(r):
    """(None, size of the ledger) or (clue hash, count of the clue)."""
    return (r.take(32), r.u64()) if r.flag() else (None, r.u64())


class Request:
    """What a member signs."""

    def __init__(self, data):
        r = Reader(data)
        need(r.take(16) == b"\2coppice-journal", "format", "it is not the request of a member")
        self.data, self.cluster, self.ledger, self.member = data, r.take(16), r.take(16), r.take(16)
        self.agent = r.take(16) if r.flag() else None
        self.lane, self.number, self.epoch = r.u8(), r.u64(), r.u64()
        self.seen = (r.u64(), r.take(32))
        self.conditions = read_list(r, 0, 64, "conditions", read_condition)
        self.n, self.root = r.u32(), r.take(32)
        r.end()
        need(self.lane < 16 and self.number > 0, "format", "the lane or number of a request")
        need(self.seen[0] > 0, "format", "a seen root log without entries")
        need(1 <= self.n <= 1024, "format", "the number of items")
        self.founds = self.ledger == bytes(16)


def item_hash(kind, commitment, size, clues):
    return H(b"\6", u8(kind), commitment, u32(size), u16(len(clues)), *clues)


DATA, FOUNDING, MEMBERS, ORDER = 0, 1, 2, 3
OWNER, REGULATOR, WRITER, ALL_ROLES = 1, 2, 4, 31


def read_roles(r):
    roles = r.u8()
    both = roles & OWNER and roles & REGULATOR
    need(roles <= ALL_ROLES and not both, "format", "roles without a name, or an owner who is regulator")
    return roles


def read_certificate(r):
    certificate = r.str16()
    need(len(certificate) <= 8192, "format", "a certificate that is too long")
    return certificate


def read_grant(r):
    """(name, roles, public key)."""
    grant = (read_name(r), read_roles(r), r.take(32))
    read_certificate(r)
    return grant


class LedgerRules:
    """The rules of a ledger: times in seconds and days, and who may occult."""

    def __init__(self, r):
        self.notice, self.absent_days, self.retain_max, self.occult = r.u32(), r.u32(), r.u32(), r.u8()
        r.u32()


def read_founding(payload):
    """Decodes the payload of a founding into (name, spread, grants, policy)."""
    r = Reader(payload)
    need(r.u8() == 1, "format", "the format of a founding")
    name, spread = read_name(r), r.flag()
    policy = LedgerRules(r)
    grants = read_list(r, 1, 256, "grants", read_grant)
    for what in ("authorities", "time authorities"):
        read_list(r, 0, 8, what, read_certificate)
    r.end()
    names, keys = {grant[0] for grant in grants}, {grant[2] for grant in grants}
    need(len(names) == len(keys) == len(grants), "format", "a name or key twice")
    need(any(grant[1] & OWNER for grant in grants), "format", "a founding without an owner")
    alone = policy.occult == 2 and len(grants) == 1
    need(policy.occult < 2 or alone, "format", "who may make journals occult")
    return name, spread, grants, policy


def read_agent(r):
    """(name, public key, clue prefix, until)."""
    name, key, prefix = read_name(r), r.take(32), r.str16()
    need(len(prefix) <= 256, "format", "a clue prefix that is too long")
    return name, key, prefix, r.u64() if r.flag() else None


def read_new_key(r):
    """(member, public key, consent)."""
    member, key = r.take(16), r.take(32)
    read_certificate(r)
    return member, key, r.take(64)


# The changes of members: a name, and what it reads.
CHANGES = [
    ("join", read_grant),
    ("roles", lambda r: (r.take(16), read_roles(r))),
    ("key", read_new_key),
    ("revoke", lambda r: (r.take(16),)),
    ("dispute", lambda r: (r.take(16), r.u64())),
    ("agent", read_agent),
]


def read_change(r):
    kind = r.u8()
    need(kind < len(CHANGES), "format", "the kind of a change")
    name, read = CHANGES[kind]
    return name, read(r)


def read_changes(payload):
    r = Reader(payload)
    need(r.u8() == 1, "format", "the format of changes of members")
    changes = read_list(r, 1, 256, "changes", read_change)
    r.end()
    return changes


def ascending(values):
    return all(a < b for a, b in zip(values, values[1:]))


def read_occult(r):
    """[(jsn, leaf hash)]"""
    targets = read_list(r, 1, 1024, "journals", lambda r: (r.u64(), r.take(32)))
    need(ascending([jsn for jsn, _ in targets]), "format", "the order of journals")
    return targets


def read_purge_order(r):
    """(before, closes, size, root, authors, [(absent member, revocation)])"""
    before, closes, size, root, authors = r.u64(), r.flag(), r.u64(), r.take(32), r.u32()
    absent = read_list(r, 0, 256, "absent members", lambda r: (r.take(16), r.u64()))
    need(0 < before <= size, "format", "the journals of a purge")
    need(ascending([member for member, _ in absent]), "format", "the order of absent members")
    need(authors <= 513, "format", "the number of authors")
    return before, closes, size, root, authors, absent


def read_retain(r):
    """(purge, [jsn])"""
    purge, journals = r.u64(), read_list(r, 1, 1024, "journals", lambda r: r.u64())
    need(ascending(journals), "format", "the order of journals")
    return purge, journals


def read_sweep(r):
    """(purge, from, to)"""
    purge, start, end = r.u64(), r.u64(), r.u64()
    need(0 < end - start <= 1024, "format", "the journals of a sweep")
    return purge, start, end


# What orders do: a name, and what it reads.
ACTIONS = [
    ("occult", read_occult),
    ("purge", read_purge_order),
    ("retain", read_retain),
    ("recall", lambda r: r.u64()),
    ("sweep", read_sweep),
]


class Order:
    """An order: `until`, what it does (`action`, `what`), and `approvals` (member, signature)."""

    def __init__(self, payload):
        r = Reader(payload)
        need(r.u8() == 1, "format", "the format of an order")
        self.until, kind = r.u64(), r.u8()
        need(kind < len(ACTIONS), "format", "the kind of an order")
        self.action, read = ACTIONS[kind]
        self.what = read(r)
        self.data = payload[: r.at]
        most = 256 if self.action in ("occult", "purge") else 0
        self.approvals = read_list(r, 0, most, "approvals", lambda r: (r.take(16), r.take(64)))
        r.end()
        need(ascending([member for member, _ in self.approvals]), "format", "the order of approvals")

    def message(self, cluster, ledger):
        """What a member signs to approve it."""
        return b"\2coppice-order" + cluster + ledger + self.data


def mark_record(order):
    return u8(1) + u64(order)


# Section 18: records of ledgers.
class Leaf:
    """A leaf of a ledger's list. `clues` has pairs (clue hash, ordinal)."""

    def __init__(self, data):
        r = Reader(data)
        need(r.u8() == 1, "format", "the format of a leaf")
        self.data, self.hash, self.kind = data, journal_hash(data), r.u8()
        self.ledger, self.jsn, self.stamp, self.member = r.take(16), r.u64(), r.stamp(), r.take(16)
        self.agent = r.take(16) if r.flag() else None
        self.key, self.lane, self.number, self.index, self.of = r.take(32), r.u8(), r.u64(), r.u32(), r.u32()
        self.request, self.signature, self.commitment, self.size = r.take(32), r.take(64), r.take(32), r.u32()
        self.clues = read_list(r, 0, 16, "clues", lambda r: (r.take(32), r.u64()))
        r.end()
        self.check()

    def check(self):
        need(self.lane < 16 and self.number > 0, "format", "the lane or number of a leaf")
        need(self.index < self.of <= 1024, "format", "the index of an item")
        need(self.size >= ENVELOPE_BYTES, "format", "the length of an envelope")
        hashes = {clue for clue, _ in self.clues}
        need(len(hashes) == len(self.clues), "format", "a clue twice")
        need(all(ordinal > 0 for _, ordinal in self.clues), "format", "ordinal 0 of a clue")
        need(self.kind <= ORDER, "format", "the kind of a journal")
        need((self.kind == FOUNDING) == (self.jsn == 0), "format", "a founding that is not journal 0")
        need(self.kind == DATA or self.of == 1 and self.agent is None, "format", "the items or agent of a leaf")
        need(self.kind != FOUNDING or not self.clues, "format", "a founding with clues")


def journal_hash(leaf):
    return H(b"\4", leaf)


def chain_of(before, jsn, leaf):
    """The chain of a clue behind one more journal."""
    return H(b"\7", before, u64(jsn), leaf)


class Leaves:
    """The list of a ledger: its size, and for each level the hashes that are in no full tile."""

    def __init__(self, size=0, levels=None):
        self.size, self.levels = size, levels or []

    def append(self, leaf):
        """Appends a leaf hash and returns the tiles that became full: [(level, index, hashes)]."""
        self.size += 1
        level, hash, full = 0, leaf, []
        while True:
            if level == len(self.levels):
                self.levels.append([])
            self.levels[level].append(hash)
            if len(self.levels[level]) < 16:
                return full
            tile, self.levels[level] = self.levels[level], []
            full.append((level, (self.size >> 4 * (level + 1)) - 1, tile))
            level, hash = level + 1, mth(tile)

    def root(self):
        right = []
        for hashes in self.levels:
            right = [mth(hashes + right)] if hashes else right
        return mth(right)

    def before(self, size, tile):
        """The list as it was at a smaller size; `tile` gives the hashes of a full one."""
        levels = []
        while size >> 4 * len(levels):
            level = len(levels)
            index, count = size >> 4 * (level + 1), (size >> 4 * level) % 16
            here = self.size >> 4 * (level + 1) == index
            levels.append((self.levels[level] if here else tile(level, index))[:count])
        return Leaves(size, levels)


class Head:
    """The record head: closed, purged, the number of authors, and the list."""

    def __init__(self, closed=False, purged=0, authors=0, list=None):
        self.closed, self.purged, self.authors, self.list = closed, purged, authors, list or Leaves()

    @staticmethod
    def read(data):
        r = Reader(data)
        need(r.u8() == 1, "format", "the format of a head")
        head = Head(r.flag(), r.u64(), r.u64())
        size, levels = r.u64(), []
        while size >> 4 * len(levels):
            levels.append([r.take(32) for _ in range((size >> 4 * len(levels)) % 16)])
        r.end()
        head.list = Leaves(size, levels)
        return head

    def encode(self):
        parts = [u8(1), u8(self.closed), u64(self.purged), u64(self.authors), u64(self.list.size)]
        return b"".join(parts + [hash for hashes in self.list.levels for hash in hashes])


class Clue:
    """The record of a clue."""

    def __init__(self, count=0, last=0, chain=bytes(32), gone=0, chain_gone=bytes(32)):
        self.count, self.last, self.chain, self.gone, self.chain_gone = count, last, chain, gone, chain_gone

    @staticmethod
    def read(data):
        r = Reader(data)
        need(r.u8() == 1, "format", "the format of a clue's record")
        clue = Clue(r.u64(), r.u64(), r.take(32), r.u64(), r.take(32))
        r.end()
        need(clue.gone <= clue.count, "format", "more journals that are gone than there were")
        need(clue.gone or clue.chain_gone == bytes(32), "format", "a chain over no journals")
        return clue

    def encode(self):
        return u8(1) + u64(self.count) + u64(self.last) + self.chain + u64(self.gone) + self.chain_gone


def cell_record(jsn, leaf):
    return u8(1) + u64(jsn) + leaf


def read_cell(data):
    """Decodes a cell into (jsn, leaf hash)."""
    r = Reader(data)
    need(r.u8() == 1, "format", "the format of a cell")
    cell = (r.u64(), r.take(32))
    r.end()
    return cell


PENDING, SWEEPING, SWEPT, RECALLED = range(4)


class Purge:
    """The record of the newest purge."""

    def __init__(self, order, stamp, before, closes, state, swept):
        self.order, self.stamp, self.before = order, stamp, before
        self.closes, self.state, self.swept = closes, state, swept

    @staticmethod
    def read(data):
        r = Reader(data)
        need(r.u8() == 1, "format", "the format of a purge")
        purge = Purge(r.u64(), r.stamp(), r.u64(), r.flag(), r.u8(), r.u64())
        r.end()
        need(purge.state <= RECALLED, "format", "the state of a purge")
        return purge

    def encode(self):
        epoch, version = self.stamp
        parts = [u8(1), u64(self.order), u64(epoch), u64(version), u64(self.before), u8(self.closes), u8(self.state)]
        return b"".join(parts) + u64(self.swept)


def retained_record(order, member):
    return u8(1) + u64(order) + member


def retains_record(order, count):
    return u8(1) + u64(order) + u32(count)


def author_record(member, first):
    return u8(1) + member + u64(first)


def read_small(data, *fields):
    """Decodes a small record of integers and bytes, whose fields `fields` read."""
    r = Reader(data)
    need(r.u8() == 1, "format", "the format of a record")
    values = [field(r) for field in fields]
    r.end()
    return values


class Member:
    """The record of a member or agent.

    `agent` is None, or (principal, clue prefix, until). `keys` has (public key, from, until),
    `lanes` the newest number of each lane with its first jsn, `journals` is None or (first jsn,
    last jsn, count).
    """

    def __init__(self, name, roles, agent, keys):
        self.name, self.roles, self.agent, self.keys = name, roles, agent, keys
        self.lanes, self.journals, self.disputed = {}, None, None

    @staticmethod
    def read(data):
        r = Reader(data)
        need(r.u8() == 1, "format", "the format of a member")
        name, roles = read_name(r), read_roles(r)
        agent = (r.take(16), r.str16(), r.u64() if r.flag() else None) if r.flag() else None
        member = Member(name, roles, agent, read_list(r, 0, 64, "keys", read_key_record))
        lanes = read_list(r, 0, 16, "lanes", lambda r: (r.u8(), r.u64(), r.u64()))
        need(all(a[0] < b[0] for a, b in zip(lanes, lanes[1:])), "format", "the order of lanes")
        need(all(lane < 16 for lane, _, _ in lanes), "format", "a lane")
        member.lanes = {lane: (number, first) for lane, number, first in lanes}
        member.journals = (r.u64(), r.u64(), r.u64()) if r.flag() else None
        member.disputed = r.u64() if r.flag() else None
        r.end()
        return member

    def encode(self):
        agent = b""
        if self.agent is not None:
            principal, prefix, until = self.agent
            agent = principal + str16(prefix) + opt64(until)
        keys = [key + u64(start) + opt64(until) for key, start, until in self.keys]
        lanes = [u8(lane) + u64(number) + u64(first) for lane, (number, first) in sorted(self.lanes.items())]
        journals = b"".join(u64(x) for x in self.journals or ())
        parts = [u8(1), str16(self.name), u8(self.roles), some(self.agent is not None, agent)]
        parts += [u16(len(keys)), *keys, u16(len(lanes)), *lanes]
        return b"".join(parts) + some(self.journals, journals) + opt64(self.disputed)

    def key_at(self, size):
        """The key that the member has at this size of the ledger; None if it has none."""
        for key, start, until in self.keys:
            if start <= size and (until is None or size < until):
                return key
        return None

    def end_key(self, size):
        """Ends the key that is not ended yet."""
        self.keys = [(k, start, size if until is None else until) for k, start, until in self.keys]

    def count(self, first, n):
        """Counts n journals from the number `first` on."""
        start, _, count = self.journals or (first, 0, 0)
        self.journals = (start, first + n - 1, count + n)


def opt64(x):
    return b"\0" if x is None else b"\1" + u64(x)


def read_key_record(r):
    return r.take(32), r.u64(), r.u64() if r.flag() else None


# Section 18: judging and appending. The step of a failure is the word for why a request is refused.
class Posted:
    """A request as it was sent: what is signed, its signature and its items (kind, envelope)."""

    def __init__(self, cluster, signed, signature, items):
        try:
            self.request, self.signature = Request(signed), signature
            self.read_items(items)
            self.check_form(cluster)
        except Failed as failed:
            raise failed.at("form") from failed

    def read_items(self, items):
        """Decodes the items into `items`, each (kind, envelope, clues)."""
        self.items, self.payload = [], None
        need(len(items) == self.request.n, "format", "another number of items than was signed")
        for kind, envelope in items:
            clues, self.payload = read_envelope(envelope)
            self.items.append((kind, envelope, clues))
        self.kind = items[0][0]

    def check_form(self, cluster):
        request, kinds = self.request, [item[0] for item in self.items]
        need(request.cluster == cluster, "format", "a request for another cluster")
        need(self.kind <= ORDER, "format", "a kind without a name")
        same = len(kinds) == 1 or all(kind == DATA for kind in kinds)
        need(same, "format", "more than one item, of a kind that is not data")
        need((self.kind == FOUNDING) == request.founds, "format", "a founding that names a ledger, or names none")
        need(self.kind == DATA or request.agent is None, "format", "an agent that appends more than data")
        need(self.kind != FOUNDING or not self.items[0][2], "format", "a founding with clues")
        hashes = []
        for kind, envelope, clues in self.items:
            clues = [clue_hash(request.ledger, clue) for clue in clues]
            hashes.append(item_hash(kind, H(envelope), len(envelope), clues))
        need(mth(hashes) == request.root, "format", "other items than were signed")
        self.founding = read_founding(self.payload) if self.kind == FOUNDING else None
        self.changes = read_changes(self.payload) if self.kind == MEMBERS else []
        self.order, self.effect = Order(self.payload) if self.kind == ORDER else None, None
        own = self.order and request.member in (member for member, _ in self.order.approvals)
        need(not own, "format", "an order that its author approves")


def may_change(ledger, author_id, author, change):
    """Whether the roles of the author allow a change."""
    kind, (about, *_) = change
    if kind in ("join", "roles"):
        return author.roles & OWNER
    if kind == "agent":
        return author.roles & WRITER
    target = ledger.member(about)
    principal = target.agent[0] if target and target.agent else None
    return author.roles & OWNER or author_id in (about, principal)


def check_agent(agent, posted, last):
    """Checks that the agent may append these items, of which the last has the number `last`."""
    need(agent and agent.agent, "member", "no agent")
    principal, prefix, until = agent.agent
    need(principal == posted.request.member, "member", "the agent of another member")
    need(until is None or until > last, "role", "an agent whose time is over")
    for _, _, clues in posted.items:
        fits = all(clue.startswith(prefix) for clue in clues) and (clues or prefix == b"")
        need(fits, "role", "clues that are not the agent's")


class Ledger:
    """A ledger in a round, over the records of the round.

    `members` has those that changed, `keys` the new public keys of the request at hand, and `tiles`
    those that became full.
    """

    def __init__(self, number, records, head):
        self.id, self.records, self.head, self.list = number, records, head, head.list
        self.places, self.before = Places(number), head.list.size
        self.members, self.keys, self.tiles, self.occulted = {}, {}, [], set()

    def member(self, member):
        """A member or agent; None if there is none with this id."""
        record = self.records.get(self.places.member(member))
        if member in self.members or record is None:
            return self.members.get(member)
        return Member.read(record)

    def change(self, member):
        """The same, of a member that is about to change."""
        return self.members.setdefault(member, self.member(member))

    def clue(self, clue):
        """The record of a clue hash."""
        record = self.records.get(self.places.clue(clue))
        return Clue() if record is None else Clue.read(record)

    def policy(self):
        """The rules of journal 0."""
        return read_founding(self.records[self.places.founding()])[3]

    def leaf(self, jsn):
        """A leaf; None if there is none."""
        record = self.records.get(self.places.leaf(jsn))
        return None if record is None else Leaf(record)

    def leaf_before(self, jsn):
        """A leaf that was there before this version; None if it was not."""
        return self.leaf(jsn) if jsn < self.before else None

    def retained(self, jsn):
        return self.places.retained(jsn) in self.records

    def purge(self):
        record = self.records.get(self.places.purge())
        return None if record is None else Purge.read(record)

    def author(self, number):
        """(member, first jsn) of an author; None if there are fewer."""
        record = self.records.get(self.places.author(number))
        return record and read_small(record, lambda r: r.take(16), Reader.u64)

    def root_at(self, size):
        """The root of the list when it had `size` leaves; None if it has fewer."""
        if size > self.list.size:
            return None
        new = dict(self.tiles)

        def tile(level, index):
            place = self.places.tile(level, index)
            hashes = new[place] if place in new else self.records[place]
            return [hashes[at : at + 32] for at in range(0, 512, 32)]

        return self.list.before(size, tile).root()

    def add(self, leaf):
        for level, index, hashes in self.list.append(leaf):
            self.tiles.append((self.places.tile(level, index), b"".join(hashes)))

    def close(self):
        """The operations of the entry head."""
        members = [(self.places.member(id), self.members[id].encode()) for id in sorted(self.members)]
        return self.tiles + members + [(self.places.head(), self.head.encode())]


class Changing:
    """Changes of members by one request, of which all take place or none."""

    def __init__(self, ledger, request):
        self.ledger, self.request, self.since = ledger, request, ledger.list.size + 1
        self.members, self.keys = {}, {}

    def make(self, changes):
        for kind, what in changes:
            getattr(self, kind)(*what)
        self.ledger.members.update(self.members)
        self.ledger.keys.update(self.keys)

    def known(self, member):
        if member not in self.members:
            found = self.ledger.member(member)
            need(found, "change", "a change of nobody")
            self.members[member] = Member.read(found.encode())
        return self.members[member]

    def own(self, member, key):
        """Notes a public key that nobody had in the ledger."""
        used = key in self.keys or self.ledger.places.public_key(key) in self.ledger.records
        need(not used, "change", "a key that was somebody's")
        self.keys[key] = member

    def add(self, name, roles, agent, key):
        member = member_id(name)
        there = member in self.members or self.ledger.member(member)
        need(not there, "change", "a name that is somebody's")
        self.own(member, key)
        self.members[member] = Member(name, roles, agent, [(key, self.since, None)])

    def join(self, name, roles, key):
        need(self.ledger.policy().occult != 2, "change", "a member beside an owner who occults alone")
        self.add(name, roles, None, key)

    def roles(self, member, roles):
        known = self.known(member)
        need(known.agent is None, "change", "an agent with roles")
        known.roles = roles

    def key(self, member, key, consent):
        known, request = self.known(member), self.request
        self.own(member, key)
        message = b"\2coppice-member-key" + request.cluster + request.ledger + member + key
        need(ed_verify(key, message, consent), "change", "a key that has not consented")
        need(len(known.keys) < 64, "change", "more than 64 keys")
        known.end_key(self.since)
        known.keys.append((key, self.since, None))

    def revoke(self, member):
        self.known(member).end_key(self.since)

    def dispute(self, member, start):
        known = self.known(member)
        known.disputed = start if known.disputed is None else min(start, known.disputed)

    def agent(self, name, key, prefix, until):
        self.add(name, WRITER, (self.request.member, prefix, until), key)


DAY_MS = 86_400_000


class Effect:
    """What an order does, judged over a ledger. Nothing is changed before the order is appended.

    `now` is the time of the version with this stamp, and `times` has those of the versions so far.
    """

    def __init__(self, ledger, request, order, now, stamp, times):
        self.ledger, self.request, self.order = ledger, request, order
        self.now, self.stamp, self.times = now, stamp, times
        head = ledger.head
        self.closed, self.purged, self.size = head.closed, head.purged, ledger.list.size
        self.operations, self.clues, self.occulted = [], {}, []

    def judge(self, author):
        ledger, order = self.ledger, self.order
        self.author, roles = author, author.roles
        self.signers, message = [self.request.member], order.message(self.request.cluster, self.request.ledger)
        for id, signature in order.approvals:
            member = ledger.member(id)
            need(member and member.agent is None, "approval", "an approval by no member")
            key = member.key_at(self.size)
            need(key and ed_verify(key, message, signature), "approval", "an approval that its member did not sign")
            roles |= member.roles
            self.signers.append(id)
        self.roles = roles
        if order.action != "occult":
            self.in_time()
        getattr(self, order.action)(order.what)

    def in_time(self):
        need(self.size <= self.order.until, "order", "an order that came too late")

    def put(self, key, value):
        self.operations.append((key, value))

    def occult(self, targets):
        occult = self.ledger.policy().occult
        need(occult != 0, "order", "an order in a ledger where nobody may occult")
        need(self.roles & OWNER, "approval", "an order without an owner")
        need(occult == 2 or self.roles & REGULATOR, "approval", "an order without a regulator")
        self.in_time()
        for jsn, hash in targets:
            self.target(jsn, hash)
            self.put(self.ledger.places.mark(jsn), mark_record(self.size))
            self.occulted.append(jsn)

    def target(self, jsn, hash):
        ledger = self.ledger
        need(ledger.places.mark(jsn) not in ledger.records, "order", "a journal that is occulted")
        need(jsn >= self.purged or ledger.retained(jsn), "order", "a journal that was purged")
        leaf = ledger.leaf_before(jsn)
        need(leaf, "order", "a journal that was not there")
        need(leaf.hash == hash, "order", "another leaf")
        need(leaf.kind == DATA, "order", "a journal that holds no data")

    def purge(self, what):
        before, closes, size, root, authors, absent = what
        ledger, old = self.ledger, self.ledger.purge()
        need(old is None or old.state in (SWEPT, RECALLED), "order", "a purge beside another one")
        need(before > self.purged, "order", "journals that are purged")
        need(ledger.root_at(size) == root, "order", "a root that the list never had")
        need(not (closes and self.closed), "order", "a ledger that is closed already")
        whole = before == self.size
        need(whole or not closes, "order", "a ledger that is closed with journals that stay")
        leaf = ledger.leaf_before(before)
        need(whole or leaf and leaf.index == 0, "order", "a purge that ends within a request")
        self.affected(before, authors, absent)
        self.closed = self.closed or closes
        swept = old.swept if old else 0
        purge = Purge(self.size, self.stamp, before, closes, PENDING, swept)
        self.put(ledger.places.purge(), purge.encode())

    def affected(self, before, count, absent):
        """Checks that those have signed whose journals go, or are absent."""
        ledger, away = self.ledger, {member for member, _ in absent}
        for number in range(1, count + 1):
            author = ledger.author(number)
            need(author, "approval", "more authors than there are")
            need(author[0] in self.signers or author[0] in away, "approval", "an author who has not signed")
        rest = ledger.author(count + 1)
        need(rest is None or rest[1] >= before, "approval", "an author who is left out")
        days = ledger.policy().absent_days
        for id, revocation in absent:
            member, leaf = ledger.member(id), ledger.leaf_before(revocation)
            ended = member and member.keys[-1][2]
            need(ended == revocation + 1 and days and leaf, "approval", "a member who is not absent")
            since = self.times.get(leaf.stamp[1])
            long = since is not None and since + days * DAY_MS <= self.now
            need(long, "approval", "a member who is not absent for long")
        need(not absent or self.roles & REGULATOR, "approval", "absent members without a regulator")

    def named(self, number, *states):
        """The purge with this number, in one of these states."""
        purge = self.ledger.purge()
        need(purge and purge.order == number and purge.state in states, "order", "another purge")
        return purge

    def retain(self, what):
        (number, journals), ledger, member = what, self.ledger, self.request.member
        purge, among = self.named(number, PENDING), set(journals)
        for jsn in journals:
            need(self.purged <= jsn < purge.before, "order", "a journal that the purge does not take")
            need(not ledger.retained(jsn), "order", "a journal that is retained")
            leaf = ledger.leaf_before(jsn)
            need(leaf and leaf.kind == DATA, "order", "a journal that needs no retaining")
            first, last = leaf.index == 0, leaf.index + 1 == leaf.of
            need((first or jsn - 1 in among) and (last or jsn + 1 in among), "order", "a part of a request")
        record = ledger.records.get(ledger.places.retains(member))
        old, count = read_small(record, Reader.u64, Reader.u32) if record else (None, 0)
        count = len(journals) + (count if old == number else 0)
        need(count <= ledger.policy().retain_max, "order", "more journals than a member may retain")
        for jsn in journals:
            self.put(ledger.places.retained(jsn), retained_record(self.size, member))
        self.put(ledger.places.retains(member), retains_record(number, count))

    def recall(self, number):
        purge, author = self.named(number, PENDING), self.author
        affected = author.journals and author.journals[0] < purge.before
        need(author.roles & (OWNER | REGULATOR) or affected, "role", "a member whom the purge does not affect")
        self.closed = self.closed and not purge.closes
        purge.state = RECALLED
        self.put(self.ledger.places.purge(), purge.encode())

    def sweep(self, what):
        (number, start, end), ledger = what, self.ledger
        purge = self.named(number, PENDING, SWEEPING)
        need(start == self.purged and end <= purge.before, "order", "other journals than the next ones")
        if purge.state == PENDING:
            since = self.times.get(purge.stamp[1]) if purge.stamp[1] < self.stamp[1] else None
            over = since is not None and since + ledger.policy().notice * 1000 <= self.now
            need(over, "order", "a time of notice that is not over")
        fresh = any(start <= jsn < end for jsn in ledger.occulted)
        need(not fresh, "order", "a journal that was occulted in this version")
        for jsn in range(start, end):
            self.sweep_journal(ledger.leaf(jsn))
        self.purged = end
        purge.state, purge.swept = SWEPT if end == purge.before else SWEEPING, self.stamp[1]
        self.put(ledger.places.purge(), purge.encode())
        if purge.state == SWEPT and purge.closes:
            self.put(name_key(read_founding(ledger.records[ledger.places.founding()])[0]), None)

    def sweep_journal(self, leaf):
        ledger, places = self.ledger, self.ledger.places
        for clue, ordinal in leaf.clues:
            record = self.clues.setdefault(clue, ledger.clue(clue))
            record.gone, record.chain_gone = ordinal, chain_of(record.chain_gone, leaf.jsn, leaf.hash)
        if leaf.kind != DATA or ledger.retained(leaf.jsn):
            return
        keys = [places.leaf(leaf.jsn), places.envelope(leaf.jsn)]
        keys += [places.cell(clue, ordinal) for clue, ordinal in leaf.clues]
        for key in keys:
            self.put(key, None)

    def apply(self):
        """Takes over the head's part."""
        head = self.ledger.head
        head.closed, head.purged = self.closed, self.purged
        self.ledger.occulted.update(self.occulted)


class Round:
    """The requests of one version, judged in their order over the records before it.

    `roots` gives the root of the root log at a size; without it, the seen root is not checked.
    Keys and values in `records` are those of the state and of all appends so far. `now` is the time
    of this version, and `times` has those of earlier ones by their numbers. `open` has the ledgers
    with an append.
    """

    def __init__(self, cluster, stamp, records, roots=None, now=0, times=None):
        self.cluster, self.stamp, self.records, self.roots = cluster, stamp, dict(records), roots
        self.now, self.times, self.open = now, dict(times or {}), {}

    def take(self, signed, signature, items):
        """Judges a request and returns (failure, None), or (None, what is appended).

        That is (ledger, first jsn, root of the leaf hashes, operations).
        """
        try:
            posted = Posted(self.cluster, signed, signature, items)
            if posted.founding is not None:
                ledger = self.judge_founding(posted)
            else:
                ledger = self.judge(posted)
        except Failed as failed:
            return failed, None
        self.open[ledger.id] = ledger
        return None, self.append(ledger, posted)

    def ledger(self, number):
        """The ledger with this id; None if there is none."""
        head = self.records.get(Places(number).head())
        if number in self.open or head is None:
            return self.open.get(number)
        return Ledger(number, self.records, Head.read(head))

    def check_seen(self, request):
        """Rule 1."""
        need(request.epoch == self.stamp[0], "epoch", "another epoch")
        size, root = request.seen
        need(self.roots is None or self.roots(size) == root, "epoch", "a root that the log never had")

    def judge_founding(self, posted):
        request, (name, spread, grants, _) = posted.request, posted.founding
        self.check_seen(request)
        need(name_key(name) not in self.records, "name", "the name of another ledger")
        number = ledger_id(self.cluster, request.data, spread)
        need(self.ledger(number) is None, "name", "the id of another ledger")
        author = next((grant for grant in grants if member_id(grant[0]) == request.member), None)
        need(author, "member", "an author without a grant")
        need(ed_verify(author[2], request.data, posted.signature), "signature", "the author has not signed")
        need(author[1] & OWNER, "role", "an author who is no owner")
        need(request.number == 1, "lane", "a founding that is not number 1 of its lane")
        for clue, wanted in request.conditions:
            need(wanted == 0, "size" if clue is None else "count", "a condition that does not hold")
        ledger = Ledger(number, self.records, Head())
        for name, roles, key in grants:
            ledger.members[member_id(name)] = Member(name, roles, None, [(key, 0, None)])
            ledger.keys[key] = member_id(name)
        posted.key = author[2]
        return ledger

    def judge(self, posted):
        request = posted.request
        self.check_seen(request)
        ledger = self.ledger(request.ledger)
        need(ledger is not None, "ledger", "no ledger")
        need(posted.kind == ORDER or not ledger.head.closed, "closed", "a ledger that takes orders only")
        author = ledger.member(request.member)
        need(author and author.agent is None, "member", "not a member")
        signer = author
        if request.agent is not None:
            signer = ledger.member(request.agent)
            check_agent(signer, posted, ledger.list.size + request.n - 1)
        posted.key = signer.key_at(ledger.list.size)
        signed = posted.key and ed_verify(posted.key, request.data, posted.signature)
        need(signed, "signature", "the signer has no key that has signed")
        if posted.kind == DATA:
            need(author.roles & WRITER, "role", "not a writer")
        if posted.kind == ORDER:
            roles = {"occult": OWNER | REGULATOR, "purge": OWNER, "sweep": OWNER}.get(posted.order.action)
            need(roles is None or author.roles & roles, "role", "an order that needs another role")
        for change in posted.changes:
            need(may_change(ledger, request.member, author, change), "role", "a change that needs another role")
        number = signer.lanes.get(request.lane, (0, 0))[0] + 1
        need(request.number == number, "lane", "not the next number of the lane")
        for clue, wanted in request.conditions:
            found = ledger.list.size if clue is None else ledger.clue(clue).count
            need(found == wanted, "size" if clue is None else "count", "a condition that does not hold")
        Changing(ledger, request).make(posted.changes)
        if posted.order is not None:
            effect = Effect(ledger, request, posted.order, self.now, self.stamp, self.times)
            effect.judge(author)
            posted.effect = effect
        return ledger

    def append(self, ledger, posted):
        """Appends a request that was judged, and returns what `take` does."""
        request, first, effect = posted.request, ledger.list.size, posted.effect
        clues = effect.clues if effect else {}
        operations, hashes = self.append_items(ledger, posted, clues)
        places = ledger.places
        operations += [(places.clue(clue), clues[clue].encode()) for clue in sorted(clues)]
        if posted.founding is not None:
            operations.append((name_key(posted.founding[0]), ledger.id))
            operations.append((places.founding(), posted.payload))
        operations += [(places.public_key(key), ledger.keys[key]) for key in sorted(ledger.keys)]
        ledger.keys = {}
        if ledger.change(request.member).journals is None:
            ledger.head.authors += 1
            operations.append((places.author(ledger.head.authors), author_record(request.member, first)))
        if effect:
            effect.apply()
            operations += effect.operations
        ledger.change(request.member).count(first, request.n)
        ledger.change(request.agent or request.member).lanes[request.lane] = (request.number, first)
        self.write(operations)
        return ledger.id, first, mth(hashes), operations

    def write(self, operations):
        for key, value in operations:
            self.records[key] = value
            if value is None:
                del self.records[key]

    def append_items(self, ledger, posted, clues):
        """The operations and leaf hashes of the items. `clues` gets the records of their clues."""
        operations, hashes, places = [], [], ledger.places
        for index, (_, envelope, words) in enumerate(posted.items):
            jsn, named = ledger.list.size, [clue_hash(ledger.id, word) for word in words]
            for clue in named:
                clues.setdefault(clue, ledger.clue(clue))
            leaf = self.leaf(ledger.id, jsn, posted, index, [(c, clues[c].count + 1) for c in named])
            hash = journal_hash(leaf)
            operations += [(places.leaf(jsn), leaf), (places.envelope(jsn), envelope)]
            for clue in named:
                record = clues[clue]
                record.count, record.last, record.chain = record.count + 1, jsn, chain_of(record.chain, jsn, hash)
                operations.append((places.cell(clue, record.count), cell_record(jsn, hash)))
            hashes.append(hash)
            ledger.add(hash)
        return operations, hashes

    def leaf(self, ledger, jsn, posted, index, clues):
        """The leaf of one item. Its clues have their ordinals."""
        request, (kind, envelope, _) = posted.request, posted.items[index]
        return b"".join(
            [u8(1), u8(kind), ledger, u64(jsn), u64(self.stamp[0]), u64(self.stamp[1]), request.member]
            + [some(request.agent, request.agent), posted.key, u8(request.lane), u64(request.number)]
            + [u32(index), u32(request.n), H(request.data), posted.signature, H(envelope), u32(len(envelope))]
            + [u16(len(clues)), *(clue + u64(ordinal) for clue, ordinal in clues)]
        )

    def heads(self):
        """Ends the round. Returns its heads: [(ledger, size before, size, root, operations)]."""
        heads = []
        for number, ledger in sorted(self.open.items()):
            operations = ledger.close()
            self.write(operations)
            heads.append((number, ledger.before, ledger.list.size, ledger.list.root(), operations))
        return heads


# Section 18: proofs.
LEAF_BYTES = 242  # those of a leaf without agent and clues


class Part:
    """A journal part: a leaf, and what is shown of its request and its envelope."""

    def __init__(self, r):
        self.data = r.str16()
        need(len(self.data) >= LEAF_BYTES, "format", "a leaf that is too short")
        self.request = (r.str16(), r.hashes()) if r.flag() else None
        self.envelope = r.str32() if r.flag() else None
        self.leaf = self.payload = None

    def check_leaf(self, ledger, stamp):
        try:
            leaf = self.leaf = Leaf(self.data)
        except Failed as failed:
            raise failed.at("leaf") from failed
        need(leaf.ledger == ledger, "leaf", "the leaf of another ledger")
        past = leaf.stamp[0] <= stamp[0] and leaf.stamp[1] <= stamp[1]
        need(past, "leaf", "a leaf from after the version")

    def check_request(self, cluster):
        if self.request is None:
            return
        leaf, (signed, path) = self.leaf, self.request
        try:
            request = Request(signed)
        except Failed as failed:
            raise failed.at("request") from failed
        need(H(signed) == leaf.request, "request", "another request than the leaf's")
        need(request.cluster == cluster, "request", "a request for another cluster")
        if request.founds:
            same = ledger_id(cluster, signed, 0) == leaf.ledger[:15] + u8(leaf.ledger[15] & 254)
            need(same and leaf.jsn == 0, "request", "a founding of another ledger")
        else:
            need(request.ledger == leaf.ledger and leaf.jsn > 0, "request", "a request for another ledger")
        author = (request.member, request.agent, request.lane, request.number, request.n, request.epoch)
        same = author == (leaf.member, leaf.agent, leaf.lane, leaf.number, leaf.of, leaf.stamp[0])
        need(same, "request", "another author, lane, number, number of items or epoch than the leaf's")
        item = item_hash(leaf.kind, leaf.commitment, leaf.size, [clue for clue, _ in leaf.clues])
        included(leaf.index, leaf.of, item, path, request.root, "request")
        need(ed_verify(leaf.key, signed, leaf.signature), "request", "the leaf's key has not signed")

    def check_envelope(self):
        if self.envelope is None:
            return
        leaf, envelope = self.leaf, self.envelope
        need((len(envelope), H(envelope)) == (leaf.size, leaf.commitment), "envelope", "another envelope")
        try:
            clues, self.payload = read_envelope(envelope)
        except Failed as failed:
            raise failed.at("envelope") from failed
        same = [clue_hash(leaf.ledger, clue) for clue in clues] == [clue for clue, _ in leaf.clues]
        need(same, "envelope", "other clues than the leaf's")

    def claim(self):
        payload = self.payload.hex() if self.payload is not None else None
        return {"jsn": self.leaf.jsn, "leaf": self.data.hex(), "signed": self.request is not None, "payload": payload}


def check_leaves(parts, ledger, header):
    """The step leaf of journal parts."""
    for part in parts:
        part.check_leaf(ledger, header.stamp)


def check_parts(parts, header):
    """The steps request and envelope of journal parts."""
    for part in parts:
        part.check_request(header.cluster)
    for part in parts:
        part.check_envelope()


def read_known(r):
    """The known size and root of a ledger's list, and the consistency path from there."""
    return (r.u64(), r.take(32), r.hashes()) if r.flag() else None


def check_journals(r, log):
    part, epoch, index, entry, hashes = (r.str16(), r.hashes()), read_epoch(r), r.u32(), r.str16(), r.hashes()
    known = read_known(r)
    shown = [(Part(r), r.hashes()) for _ in range(r.u16())]
    r.end()
    log.check()
    header = log.header(part, "header")
    need(header.kind == 1, "header", "not a commit")
    check_epoch(epoch, log.newest, header.stamp)
    read = read_entry(entry, "journal")
    need(read[0] == "head", "journal", "not a head")
    root = list_root(header.journal_leaves, [(index, H(b"\x19", entry))], hashes, "journal")
    need(root == header.journal_root, "journal", "another journal root")
    ledger, _, size, root = read[1]
    parts = [part for part, _ in shown]
    check_leaves(parts, ledger, header)
    numbers = [part.leaf.jsn for part in parts]
    need(all(a < b for a, b in zip(numbers, numbers[1:])), "leaf", "journals that do not ascend")
    need(parts, "list", "no journal is shown")
    for part, path in shown:
        included(part.leaf.jsn, size, part.leaf.hash, path, root, "list")
    if known is not None:
        consistent(known[0], size, known[1], root, known[2], "list")
    check_parts(parts, header)
    claim = {"kind": "journals", "version": list(header.stamp), "ledger": ledger.hex(), "size": size}
    claim |= {"root": root.hex(), "known": None if known is None else [known[0], known[1].hex()]}
    return header.stamp, claim | {"journals": [part.claim() for part in parts]}


def ordinal_behind(span, places, clue):
    """The ordinal `o` of a lineage's range, which ends before the cell with this ordinal."""
    low, high = span
    need(low == places.clue(clue), "lineage", "a range that does not begin with the clue")
    need(high is not None and len(high) == len(low) + 8, "lineage", "a range that does not end with a cell")
    after = 2**64 - 1 - struct.unpack(">Q", high[-8:])[0]
    need(high == places.cell(clue, after), "lineage", "a range that ends with the cell of another clue")
    return after


def check_cells(records, after, places, clue, parts):
    """Checks that records and parts are all of a clue behind an ordinal; returns its record."""
    if not records:
        need(not parts and after == 0, "lineage", "journals of a clue without a record")
        return Clue()
    try:
        (key, value), cells = records[0], [(key, read_cell(value)) for key, value in records[1:]]
        record = Clue.read(value)
    except Failed as failed:
        raise failed.at("lineage") from failed
    need(key == places.clue(clue), "lineage", "the record of the clue is missing")
    need(after <= record.count and len(parts) == len(cells), "lineage", "another number of cells or journals")
    ordinals = [dict(part.leaf.clues).get(clue, 0) for part in parts]
    whole = list(range(record.count, max(after, record.gone), -1))
    kept = ordinals[len(whole) :]
    need(ordinals[: len(whole)] == whole, "lineage", "a cell that is missing")
    need(ascending(kept[::-1]), "lineage", "journals that were kept, out of order")
    need(all(after < ordinal <= record.gone for ordinal in kept), "lineage", "another ordinal than a kept one")
    for ordinal, (key, cell), part in zip(ordinals, cells, parts):
        need(key == places.cell(clue, ordinal), "lineage", "a cell with another ordinal")
        need((part.leaf.jsn, part.leaf.hash) == cell, "lineage", "another journal than the cell's")
    numbers = [jsn for _, (jsn, _) in cells]
    need(ascending(numbers[::-1]), "lineage", "journals that do not descend")
    need(not whole or numbers[0] == record.last, "lineage", "another last journal than the clue's")
    check_chain([cell for _, cell in cells[: len(whole)]], after, record)
    return record


def check_chain(cells, after, record):
    """Checks the chain over the cells above those that are gone."""
    chain = record.chain_gone
    for jsn, hash in reversed(cells):
        chain = chain_of(chain, jsn, hash)
    need(after > record.gone or chain == record.chain, "lineage", "another chain than the clue's")


def check_lineage(r, log):
    query, ledger, clue = Query(r), r.take(16), r.take(32)
    parts = [Part(r) for _ in range(r.u16())]
    r.end()
    query.check(log, (1,))
    need(query.span and query.values is not None, "lineage", "not a range with its values")
    places = Places(ledger)
    after = ordinal_behind(query.span, places, clue)
    check_leaves(parts, ledger, query.header)
    check_parts(parts, query.header)
    records = [(record[0], value) for record, value in zip(query.found, query.values)]
    record = check_cells(records, after, places, clue, parts)
    claim = {"kind": "lineage", "version": list(query.header.stamp), "ledger": ledger.hex(), "clue": clue.hex()}
    claim |= {"count": record.count, "after": after, "gone": record.gone, "journals": [part.claim() for part in parts]}
    return query.header.stamp, claim


# The vectors. Each function returns the number of cases.
def run_hashes():
    vectors = load("hashes.json")
    a, b, c = (H(letter) for letter in (b"a", b"b", b"c"))
    stamp, value = (1, 258), H(b"value")
    put = b"\0" + str16(b"key") + u32(5) + value
    operations = u32(2) + put + b"\1" + str16(b"other")
    preconditions = [str16(b"key") + b"\1", str16(b"x") + b"\0" + u64(1) + u64(258), str16(b"y") + b"\2" + a]
    metadata = u32(8) + b"metadata"
    shard = u32(3) + str16(b"low")
    expected = {
        "a": a,
        "b": b,
        "c": c,
        "root of no leaves": mth([]),
        "log entry 'entry'": H(b"\0", b"entry"),
        "list node of a, b": mth([a, b]),
        "list of a, b, c": mth([a, b, c]),
        "put of 'key' = 'value' at the stamp": record_hash((b"key", stamp, 5, value)),
        "tombstone of 'key' at the stamp": record_hash((b"key", stamp, None, None)),
        "leaf node of records with hashes a, b, c": leaf_hash(3, mth([a, b, c])),
        "leaf node without records": EMPTY_ROOT,
        "inner entry 'key' with child a": entry_hash(b"key", a),
        "inner node at level 2 of entries with hashes a, b": inner_hash(2, 2, mth([a, b])),
        "tree with root a at level 2 of 1000 entries": tree_digest(2, 1000, a),
        "empty tree": tree_digest(0, 0, EMPTY_ROOT),
        "forest of trees a, b": shard_digest([a, b]),
        "forest of an empty tree": EMPTY_SHARD,
        "state leaf of shard 3, 'low' to 'top', version 77, digest a": state_leaf((3, b"low", b"top"), 77, a),
        "state leaf of shard 3, 'low' to the end, version 77, digest a": H(b"\x16", shard, b"\0", u64(77), a),
        "epoch leaf of epoch 2, base 7": epoch_leaf((2, 7)),
        "journal leaf of 'entry'": H(b"\x19", b"entry"),
        "operation list: put of 'key' = 'value', delete of 'other'": H(b"\x1a", operations),
        "metadata 'metadata'": H(b"\x1b", metadata),
        "batch: these operations; 'key' absent, 'x' last changed at the stamp, 'y' has value hash a; this metadata": H(
            b"\x1d", operations, u32(3), *preconditions, metadata
        ),
    }
    found = {name: hash.hex() for name, hash in expected.items()}
    first, second = struct.unpack("<QQ", H(b"\x15", b"key")[:16])
    found["filter hash of 'key': first and second u64"] = [str(first), str(second)]
    found["checksum of 'file' as u64"] = str(struct.unpack("<Q", H(b"\x1e", b"file")[:8])[0])
    about = vectors.pop("about")
    assert about and found.keys() == vectors.keys(), found.keys() ^ vectors.keys()
    for name, hash in vectors.items():
        assert found[name] == hash, name
    return len(vectors)


def run_rules():
    vectors = load("rules.json")
    parameters = vectors["parameters"]
    rules = Rules(parameters)
    encoded = Reader(bytes.fromhex(parameters["encoded"]))
    known = read_parameters(encoded)
    encoded.end()
    assert all(known[name] == parameters[name] for name in parameters if name != "encoded")
    for case in vectors["weights"]:
        key, length = b"k" * case["key length"], case["value length"]
        assert rules.weigh_record((key, (0, 0), length, None)) == case["record"], case
        assert rules.weigh_entry((key, None)) == case["inner entry"], case

    def ranges(pieces):
        ends = [0]
        for piece in pieces:
            ends.append(ends[-1] + len(piece))
        return [list(pair) for pair in zip(ends, ends[1:])]

    for case in vectors["lists"]:
        assert ranges(rules.split(case["weights"], int)) == case["split"], case
        assert ranges(rules.pack(case["weights"], int)) == case["packing"], case
    for case in vectors["separators"]:
        assert separator(case["left"].encode(), case["right"].encode()).decode() == case["separator"], case
    for case in vectors["filters"]:
        blocks = max(1, -(-case["entries"] * parameters["filter_bits"] // 512))
        bits = {(case["block of 'key'"], bit) for bit in case["bits of 'key'"]}
        assert blocks == case["blocks"] and filter_bits(b"key", blocks) == bits, case
    admits = rules.filter([b"key-%d" % i for i in range(60)])
    admitted = [f"key-{i}" for i in range(60, 400) if admits(b"key-%d" % i)]
    name = "false positives of a filter of key-0 .. key-59 among key-60 .. key-399"
    assert admitted == vectors[name]
    for case in vectors["tiers"]:
        assert tier(parameters, case["entries, youngest first"]) == case["merged"], case
    return sum(len(vectors[name]) for name in ("weights", "lists", "separators", "filters", "tiers"))


def run_notes():
    vectors = load("notes.json")
    keys = Keys([parse_key(vectors["vkey"])], [], 0)
    for case in vectors["notes"]:
        try:
            open_checkpoint(case["note"].encode(), keys, "checkpoint")
        except Failed:
            assert not case["valid"], case["name"]
            continue
        assert case["valid"], case["name"]
    for case in vectors["keys"]:
        try:
            parse_key(case["vkey"])
        except (ValueError, AssertionError):
            assert not case["valid"], case["name"]
            continue
        assert case["valid"], case["name"]
    return len(vectors["notes"]) + len(vectors["keys"])


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
        operations = [(key.encode(), None if n is None else (n, H(b"v" * n))) for key, n in prepare["operations"]]
        merges = [([bytes.fromhex(i) for i in m["inputs"]], bytes.fromhex(m["output"])) for m in prepare["merges"]]
        forest.prepare(tuple(prepare["stamp"]), merges, operations)
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


def run_anchors():
    vectors = load("anchors.json")
    key, auditor = parse_key(vectors["vkey"]), Auditor()
    for entry in vectors["entries"]:
        auditor.take(bytes.fromhex(entry))
    for case in vectors["invalid headers"]:
        try:
            Header(bytes.fromhex(case["bytes"]), "header")
        except Failed:
            continue
        raise AssertionError(case["why"])
    for case in vectors["proofs"]:
        assert verify_both(bytes.fromhex(case["file"]), None, key)[2] == case["claim"], case["name"]
    for case in vectors["lies"]:
        try:
            verify_both(bytes.fromhex(case["file"]), None, key)
        except Failed as failed:
            assert str(failed) == case["failed step"], (case["name"], str(failed))
            continue
        raise AssertionError(case["name"])
    return sum(len(vectors[name]) for name in ("entries", "invalid headers", "proofs", "lies"))


def run_cases():
    cases = load("cases.json")["cases"]
    for case in cases:
        data, step = bytes.fromhex(case["file"]), None
        try:
            if case["vkey"] is not None:
                verify_both(data, None, parse_key(case["vkey"]))
            else:
                verify_under(data, None, Policy(case["policy"].encode()))
        except Failed as failed:
            step = failed.step
        assert step == case["failed step"] and case["valid"] == (step is None), (case["name"], step)
    return len(cases)


def run_lies():
    cases = load("lies.json")["cases"]
    for case in cases:
        newer, step = None if case["newer"] is None else bytes.fromhex(case["newer"]), None
        try:
            verify_both(bytes.fromhex(case["file"]), newer, parse_key(case["vkey"]))
        except Failed as failed:
            step = failed.step
        assert step == case["failed step"] and case["valid"] == (step is None), (case["name"], step)
    return len(cases)


def run_times():
    vectors = load("times.json")
    key = parse_key(vectors["vkey"])
    for case in vectors["cases"]:
        newer, step, claim = None if case["newer"] is None else bytes.fromhex(case["newer"]), None, None
        try:
            _, _, claim = verify_both(bytes.fromhex(case["file"]), newer, key)
        except Failed as failed:
            step = failed.step
        assert (step, claim) == (case["failed step"], case["claim"]), (case["name"], step)
    return len(vectors["cases"])


def run_packing():
    vectors = load("packing.json")
    keys = [b"p" * 300 + b"%04d" % (7 * i) + b"q" * 100 for i in range(400)]
    parameters = {"node_bytes": 4032, "fanout": 64, "inline_bytes": 128}
    tree = Rules(parameters).packed([(key, (0, 1), 1, H(b"x")) for key in keys])
    assert tree[0] == vectors["level"] and digest_of(tree).hex() == vectors["tree digest"]
    return 1


def run_audits():
    cases = load("audits.json")["cases"] + load("ledger-audits.json")["cases"]
    for case in cases:
        log = []
        for entry in case["log"]:
            lists = {int(shard): [bytes.fromhex(x) for x in lists] for shard, lists in entry["lists"].items()}
            log.append((bytes.fromhex(entry["header"]), [bytes.fromhex(x) for x in entry["journal"]], lists))
        found = audit(log)
        expected = None if case["sound"] else (case["sequence"], case["rule"])
        assert (found and found[:2]) == expected, (case["name"], found)
    return len(cases)


def run_evidence():
    cases = load("evidence.json")["cases"]
    for case in cases:
        policy, step, verdict = case["policy"] and Policy(case["policy"].encode()), None, None
        try:
            verdict = judge_evidence(case["file"].encode(), parse_key(case["vkey"]), policy)
        except Failed as failed:
            step = failed.step
        assert (step, verdict) == (case["failed step"], case["verdict"]), (case["name"], step, verdict)
    return len(cases)


def unhex(x):
    return None if x is None else bytes.fromhex(x)


def check_lists(cases):
    for case in cases:
        leaves = Leaves()
        for i in range(case["leaves"]):
            leaves.append(H(u64(i)))
        assert leaves.root().hex() == case["root"], case["leaves"]
        head = Head(list=leaves).encode()
        assert head.hex() == case["head"], case["leaves"]
        again = Head.read(head)
        assert again.list.root() == leaves.root() and again.encode() == head


def shown_operations(operations):
    return [[key.hex(), value if value is None else value.hex()] for key, value in operations]


def check_round(cluster, case, records, times, name):
    """Judges the requests of a round, notes its time, and returns the records after it."""
    now = case.get("now_ms", 0)
    round = Round(cluster, tuple(case["stamp"]), records, now=now, times=times)
    for place, request in enumerate(case["requests"]):
        signed, signature = unhex(request["signed"]), unhex(request["signature"])
        items = [(item["kind"], unhex(item["envelope"])) for item in request["items"]]
        refused, append = round.take(signed, signature, items)
        assert (refused and refused.step) == request["refused"], (name, place, refused and refused.rule)
        key = unhex(request["key"])
        assert key is None or ed_verify(key, signed, signature), (name, place)
        if append is not None:
            ledger, first, root, operations = append
            shown = {"ledger": ledger.hex(), "first_jsn": first, "leaves_root": root.hex()}
            append = shown | {"operations": shown_operations(operations)}
        assert append == request["append"], (name, place)
    heads = []
    for ledger, before, size, root, operations in round.heads():
        shown = {"ledger": ledger.hex(), "before": before, "size": size, "root": root.hex()}
        heads.append(shown | {"operations": shown_operations(operations)})
    assert heads == case["heads"], name
    times[round.stamp[1]] = now
    return round.records


def check_rounds(vectors):
    """Checks rounds that follow each other; returns the number of requests."""
    records, times, cluster = {}, {}, unhex(vectors["cluster"])
    for number, case in enumerate(vectors["rounds"]):
        records = check_round(cluster, case, records, times, f"round {number}")
    return sum(len(case["requests"]) for case in vectors["rounds"])


def run_ledgers():
    vectors = load("ledgers.json")
    check_lists(vectors["lists"])
    requests = check_rounds(vectors) + check_rounds(load("appends.json"))
    key = parse_key(vectors["vkey"])
    for case in vectors["cases"]:
        step = claim = None
        try:
            _, _, claim = verify(unhex(case["file"]), Keys([key], [], 0))
        except Failed as failed:
            step = failed.step
        assert (step, claim) == (case["failed step"], case["claim"]), (case["name"], step)
    return len(vectors["lists"]) + requests + len(vectors["cases"])


# The command line.
USAGE = """usage: second.py [FILE (--key KEY | --policy FILE) [--newer FILE]]
       second.py --evidence FILE --key KEY [--policy FILE]
KEY is a vkey, or @ and a file with one."""


class Usage(Exception):
    """A command line that makes no sense."""


def text(data):
    """A key or value as text if it is printable ASCII, else as hex."""
    plain = data.isascii() and data.decode("ascii").isprintable()
    return repr(data.decode("ascii")) if plain else "0x" + data.hex()


def say_journals(claim):
    """Describes a claim about the journals of a ledger in lines."""
    if claim["kind"] == "lineage":
        yield f"clue {claim['clue']} of ledger {claim['ledger']} has {claim['count']} journals"
        if claim["gone"]:
            yield f"the {claim['gone']} oldest of them are behind a purge: what it did not keep is gone"
        yield f"those with an ordinal above {claim['after']}, the newest first:"
    else:
        yield f"ledger {claim['ledger']} has {claim['size']} journals with root {claim['root']}"
        if claim["known"] is not None:
            yield f"it goes on from that of {claim['known'][0]} journals with root {claim['known'][1]}"
    for journal in claim["journals"]:
        leaf, payload = Leaf(bytes.fromhex(journal["leaf"])), journal["payload"]
        signed = "which has signed it" if journal["signed"] else "its signature is not shown"
        agent = f", by agent {leaf.agent.hex()}" if leaf.agent else ""
        kind = ("data", "the founding", "changes of members", "an order")[leaf.kind]
        yield f"journal {leaf.jsn} is {kind} of member {leaf.member.hex()}{agent}"
        yield f"  at version {leaf.stamp[1]} of epoch {leaf.stamp[0]}, with key {leaf.key.hex()}, {signed}"
        shown = f"SHA-256 of the envelope {leaf.commitment.hex()}"
        yield "  " + (shown if payload is None else f"payload {text(bytes.fromhex(payload))}")


def say(log, claim):
    """Describes a claim in lines."""
    if claim["kind"] in ("keys", "range"):
        records = claim.get("keys", claim.get("records"))
        if claim["kind"] == "range":
            high = "the end" if claim["high"] is None else text(bytes.fromhex(claim["high"]))
            low = text(bytes.fromhex(claim["low"]))
            yield f"from {low} to before {high} there are {len(records)} records and no others"
        for record in records:
            key, found = text(bytes.fromhex(record["key"])), record["found"]
            if found is None:
                yield f"{key} has no value"
            else:
                value = found["value"]
                value = f"SHA-256 {found['value_sha256']}" if value is None else text(bytes.fromhex(value))
                yield f"{key} has a value of {found['length']} bytes, changed last at {found['stamp']}: {value}"
    elif claim["kind"] in ("journals", "lineage"):
        yield from say_journals(claim)
    elif claim["kind"] == "time":
        yield f"the newest version at {claim['time']} ms since 1970 was committed at {claim['committed']}"
        if claim["next"]:
            yield f"the one after it, {claim['next'][0]}, at {claim['next'][1]}"
        yield "no later commit changes that" if claim["final"] else "it is head: a later version may have that time, too"
    elif claim["kind"] == "interval":
        yield f"entry {claim['sequence']} of the log has these anchors around it, whose tokens are not judged here:"
        for side in ("below", "above"):
            for anchor in claim[side]:
                yield f"{side}: entry {anchor['sequence']} stamps {anchor['size']} entries, imprint {anchor['imprint']}"
    elif claim["kind"] == "receipt":
        yield f"batch {claim['index']} of the version's journal was committed: {claim['entry']}"
    else:
        yield f"the log goes on from that of {claim['old size']} entries with root {claim['old root']}"
        yield f"pairs of epoch and base: {claim['pairs']}"
    if "version" in claim:
        yield f"at version {claim['version'][1]} of epoch {claim['version'][0]}"
    yield f"under the checkpoint of {log.keys.keys[0].name} at {log.size} entries"


def read_bytes(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Usage(f"{path}: {error.strerror}") from error


def read_key_argument(argument):
    try:
        vkey = read_bytes(argument[1:]).decode() if argument.startswith("@") else argument
        return parse_key(vkey.strip())
    except (ValueError, AssertionError) as error:
        raise Usage("--key is not a public key of a ledger") from error


def read_policy_argument(path):
    try:
        return Policy(read_bytes(path))
    except (ValueError, AssertionError, KeyError, StopIteration) as error:
        raise Usage(f"{path} is not a policy") from error


def say_evidence(verdict):
    """Describes what an evidence file proves in lines."""
    sizes = {note: f"note {note} of {verdict[note]['size']} entries" for note in "ab"}
    if verdict["kind"] == "contradiction":
        yield f"{sizes['a']} contradicts {sizes['b']}, whose log has another root at that size"
    else:
        yield f"{sizes['a']} is signed by a key that entry {verdict['index']} of the log of {sizes['b']} replaces"
    signers = [verdict[note]["signed_by"] for note in "ab"]
    if verdict["one_key"]:
        yield f"both are signed by {signers[0]}, whose holder is convicted"
    else:
        yield f"they are signed by {signers[0]} and {signers[1]}: at least one of the two holders is convicted"
    for it in verdict["cosigners"]:
        yield f"cosigned both, and is convicted: {ascii(it['witness'])}, key {ascii(it['key_name'])}"
    for it in verdict["unknown_cosigners"]:
        yield f"lines on both that nobody has verified: {ascii(it['key_name'])}, key id {it['key_id']}"


def evidence_command(path, options):
    """Judges an evidence file; its policy names witnesses alone."""
    if "--key" not in options or "--newer" in options:
        raise Usage("an evidence file is judged by --key, and perhaps a --policy with witnesses")
    policy = read_policy_argument(options["--policy"]) if "--policy" in options else None
    try:
        verdict = judge_evidence(read_bytes(path), read_key_argument(options["--key"]), policy)
    except Failed as failed:
        print(f"refused, at step {failed.step}" + (f": {failed.rule}" if failed.rule else ""))
        return 1
    print("valid evidence:")
    for line in say_evidence(verdict):
        print("  " + line)
    return 0


def command(arguments):
    """Judges a proof file and returns the exit code: 0 if it is valid, 1 if it is refused."""
    options, files = {}, []
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--key", "--policy", "--newer", "--evidence"):
            options[argument] = next(rest, None)
        elif argument.startswith("--"):
            raise Usage(f"{argument} is not an option")
        else:
            files.append(argument)
    if None not in options.values() and "--evidence" in options and not files:
        return evidence_command(options.pop("--evidence"), options)
    one_trust = ("--key" in options) != ("--policy" in options)
    if len(files) != 1 or None in options.values() or "--evidence" in options or not one_trust:
        raise Usage("one file, and one of --key and --policy")
    data = read_bytes(files[0])
    newer = read_bytes(options["--newer"]) if "--newer" in options else None
    names = []
    try:
        if "--key" in options:
            log, _, claim = verify_both(data, newer, read_key_argument(options["--key"]))
        else:
            log, _, claim, names = verify_under(data, newer, read_policy_argument(options["--policy"]))
    except Failed as failed:
        print(f"refused, at step {failed.step}" + (f": {failed.rule}" if failed.rule else ""))
        return 1
    print("valid:")
    for line in say(log, claim):
        print("  " + line)
    if newer is not None:
        print("  and it still stands at the newer checkpoint")
    if names:
        print("  cosigned by " + ", ".join(names))
    return 0


def run_all():
    lists = (run_hashes, run_list_proofs, run_rules, run_packing, run_replay)
    files = (run_log, run_notes, run_proofs, run_rotation, run_cases, run_lies, run_times)
    files += (run_audits, run_ledgers, run_anchors, run_evidence)
    for run in lists + files:
        print(run.__name__[4:].replace("_", " ") + ":", run(), "agree")
    return 0


if __name__ == "__main__":
    if not __debug__:
        print("second.py checks by assertions: run it without -O and PYTHONOPTIMIZE", file=sys.stderr)
        sys.exit(2)
    try:
        sys.exit(command(sys.argv[1:]) if sys.argv[1:] else run_all())
    except Usage as usage:
        print(f"{usage}\n{USAGE}", file=sys.stderr)
        sys.exit(2)
