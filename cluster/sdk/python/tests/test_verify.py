"""The Python package judges the stored proof files as the vectors say."""

import json
import unittest
from pathlib import Path

from coppice_verify import Verifier

VECTORS = Path(__file__).parents[3] / "verify" / "vectors"


def stored(name):
    return json.loads((VECTORS / f"{name}.json").read_text())


def cases():
    """Yields name, file, options, and the step that must fail, or None."""
    for name in ("proofs", "ledgers", "times", "cases"):
        vectors = stored(name)
        for case in vectors["cases"]:
            vkey = case.get("vkey") or vectors.get("vkey")
            trust = {"policy": case["policy"]} if case.get("policy") else {"keys": vkey}
            newer = bytes.fromhex(case["newer"]) if case.get("newer") else None
            yield case["name"], bytes.fromhex(case["file"]), {**trust, "newer": newer}, case.get("failed step")
    for case in stored("rotation")["cases"]:
        newer = bytes.fromhex(case["newer"]) if case["newer"] else None
        for result in case["results"]:
            options = {"keys": [result["key"]], "newer": newer}
            yield case["name"], bytes.fromhex(case["file"]), options, result["failed step"]


def named(name):
    return next((file, options) for found, file, options, _ in cases() if found == name)


class Verify(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.verifier = Verifier()

    def test_every_stored_proof_file_gets_its_verdict(self):
        judged = 0
        for name, file, options, step in cases():
            result = self.verifier.verify(file, **options)
            self.assertEqual((result["valid"], result["failed_step"]), (step is None, step), name)
            judged += 1
        self.assertGreater(judged, 300)

    def test_every_stored_evidence_file_gets_its_verdict(self):
        for case in stored("evidence")["cases"]:
            result = self.verifier.evidence(case["file"].encode(), keys=case["vkey"], policy=case["policy"])
            self.assertEqual(result["failed_step"], case["failed step"], case["name"])
            if case["valid"]:
                self.assertEqual(result, case["verdict"], case["name"])
        with self.assertRaises(ValueError):
            self.verifier.evidence(b"")

    def test_what_is_expected_must_be_what_is_proven(self):
        file, options = named("a tree of two leaves")
        receipt, under = named("a batch that wrote `z`, as its receipt says: see also the next")
        entry = self.verifier.verify(receipt, **under)["entry_hash"]
        for proof, trust, expected, valid in [
            (file, options, {"expect_keys": "k"}, True),
            (file, options, {"expect_keys": [b"k"], "expect_version": 1}, True),
            (file, options, {"expect_keys": ["k", "l"]}, False),
            (file, options, {"expect_version": 2}, False),
            (file, options, {"expect_range": ("", None)}, False),
            (file, options, {"expect_range": (None, None)}, False),
            (file, options, {"expect_batch": entry}, False),
            (receipt, under, {"expect_batch": entry}, True),
            (receipt, under, {"expect_batch": "00" * 32}, False),
        ]:
            result = self.verifier.verify(proof, **trust, **expected)
            self.assertEqual(result["failed_step"], None if valid else "question", expected)

    def test_a_call_that_makes_no_sense_is_an_error_and_no_verdict(self):
        file, options = named("a tree of two leaves")
        key = options["keys"]
        for wrong in [{}, {"keys": []}, {"keys": "nonsense"}, {"keys": key, "expect_batch": "abc"},
                      {"keys": key, "expect_keys": [""]}, {"keys": key, "encoding": "base64"},
                      {"keys": key, "expect_version": -1}, {"policy": "quorum none\n"}]:
            with self.assertRaises(ValueError, msg=wrong):
                self.verifier.verify(file, **wrong)
        with self.assertRaisesRegex(ValueError, "too long"):
            self.verifier.verify(bytes(65 << 20), keys=key, newer=bytes(65 << 20))
        self.assertTrue(self.verifier.verify(file, keys=key)["valid"])

    def test_every_flipped_bit_of_a_file_is_refused(self):
        file, options = named("a tree of two leaves")
        for bit in range(8 * len(file)):
            flipped = bytearray(file)
            flipped[bit >> 3] ^= 1 << (bit & 7)
            self.assertFalse(self.verifier.verify(flipped, **options)["valid"], bit)

    def test_bytes_are_text_or_hex(self):
        file, options = named("a tree of two leaves")
        self.assertEqual(self.verifier.verify(file, **options)["key"], "k")
        self.assertEqual(self.verifier.verify(file, **options, encoding="hex")["key"], "0x6b")


if __name__ == "__main__":
    unittest.main()
