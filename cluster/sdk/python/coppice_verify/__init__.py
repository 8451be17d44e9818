"""Checks proof files and evidence of a Coppice ledger, offline.

    verifier = Verifier()
    result = verifier.verify(file, keys=[vkey], expect_keys=["alice"])
    assert result["valid"], (result["failed_step"], result["error"])

The verifier is the WebAssembly module beside this file, and runs in wasmtime. It has no imports, so
it can neither read nor send anything. `docs/proof-files.md` describes the results.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import wasmtime

__all__ = ["Verifier"]

ABI = 1
# Kinds of the fields of a request (docs/proof-files.md).
FILE, KEY, POLICY, NEWER, EXPECT_KEY, LOW, HIGH, BATCH, VERSION, ENCODING = range(1, 11)
# An instance whose memory has grown beyond this is not kept for the next file.
KEPT_BYTES_MAX = 16 << 20

Data = str | bytes | bytearray
Few = Data | Iterable[Data]


class Verifier:
    """Judges proof files. Threads need one each."""

    def __init__(self, module: str | Path | None = None) -> None:
        """`module` is the path of `verify.wasm`; without it, the one beside this file."""
        self._engine = wasmtime.Engine()
        path = Path(module or Path(__file__).with_name("verify.wasm"))
        self._module = wasmtime.Module(self._engine, path.read_bytes())
        self._instance = self._start()

    def verify(
        self,
        file: Data,
        *,
        keys: Few = (),
        policy: Data | None = None,
        newer: Data | None = None,
        expect_keys: Few = (),
        expect_range: tuple[Data | None, Data | None] | None = None,
        expect_batch: str | None = None,
        expect_version: int | None = None,
        encoding: str | None = None,
    ) -> dict[str, Any]:
        """Judges a proof file, and returns what `coppice verify --json` prints.

        `keys` are texts of public keys; with several, one must do. `policy` is the text of a
        policy, and `newer` a newer checkpoint. The proof must answer what is expected, else it
        fails at step `question`: keys, or a range `(low, high)` whose `high` may be None, or the
        hash of a batch; and a version. `encoding` is "utf8" or "hex".

        Raises ValueError if the call makes no sense, and RuntimeError if memory runs out.
        """
        fields: list[tuple[int, Data | None]] = [(FILE, file), *((KEY, key) for key in _list(keys)), (POLICY, policy), (NEWER, newer)]
        fields += ((EXPECT_KEY, key) for key in _list(expect_keys))
        if expect_range is not None:
            # A range that is expected is always asked for, even if it has no bounds.
            low, high = expect_range
            fields += [(LOW, low or b""), (HIGH, high)]
        fields += [(BATCH, expect_batch), (VERSION, None if expect_version is None else str(expect_version))]
        fields.append((ENCODING, encoding))
        return self._judge("verify", fields)

    def evidence(self, file: Data, *, keys: Few = (), policy: Data | None = None) -> dict[str, Any]:
        """Judges an evidence file, and returns what `coppice evidence verify --json` prints.

        `keys` are texts of public keys; with several, one must do. `policy` is the text of a policy
        that names the witnesses to be judged, and may name the key.

        Raises ValueError if the call makes no sense, and RuntimeError if memory runs out.
        """
        return self._judge("evidence", [(FILE, file), *((KEY, key) for key in _list(keys)), (POLICY, policy)])

    def _judge(self, call: str, fields: Sequence[tuple[int, Data | None]]) -> dict[str, Any]:
        request = b"".join(_field(kind, value) for kind, value in fields if value is not None)
        answer: dict[str, Any] = json.loads(self._call(call, request))
        if "error" in answer and "valid" not in answer:
            raise ValueError(answer["error"]["message"])
        return answer

    def _start(self) -> Any:
        store = wasmtime.Store(self._engine)
        # Its exports have no types that a checker of Python knows.
        exports: Any = wasmtime.Instance(store, self._module, []).exports(store)
        if exports["abi"](store) != ABI:
            raise RuntimeError("the module is not the verifier that belongs to this package")
        return store, exports

    def _call(self, call: str, request: bytes) -> bytes:
        store, exports = self._instance or self._start()
        # After a trap, the instance can't be used again.
        self._instance = None
        memory = exports["memory"]
        try:
            at = exports["alloc"](store, len(request)) & 0xFFFF_FFFF
            if at == 0:
                raise ValueError("the files are too long: a proof file has at most 64 MiB")
            memory.write(store, request, at)
            answer = exports[call](store, at, len(request)) & 0xFFFF_FFFF_FFFF_FFFF
            start, length = answer & 0xFFFF_FFFF, answer >> 32
            text = bytes(memory.read(store, start, start + length))
            exports["free"](store, at, len(request))
            exports["free"](store, start, length)
        except wasmtime.Trap as trap:
            raise RuntimeError("the verifier ended early: nothing is known about the file") from trap
        if memory.data_len(store) <= KEPT_BYTES_MAX:
            self._instance = store, exports
        return text


def _list(value: Few) -> Sequence[Data]:
    return [value] if isinstance(value, str | bytes | bytearray) else list(value)


def _field(kind: int, value: Data) -> bytes:
    data = value.encode() if isinstance(value, str) else bytes(value)
    return bytes([kind]) + len(data).to_bytes(4, "little") + data
