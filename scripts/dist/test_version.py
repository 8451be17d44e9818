"""That every place says the version of Cargo.toml, and that the comparison would notice."""

import re
import unittest

import version as place
from common import ROOT, version


class Version(unittest.TestCase):
    def test_every_place_says_the_version_and_has_notes_for_it(self):
        self.assertEqual(place.stale(version()), [])

    def test_another_version_in_any_place_is_noticed(self):
        for file in place.PLACES:
            def read(name, file=file):
                text = (ROOT / name).read_text()
                return text.replace(version(), "9.9.9") if name == file else text
            self.assertTrue(any(message.startswith(f"{file} says 9.9.9") for message in place.stale(version(), read)), file)

    def test_a_version_without_notes_is_noticed(self):
        messages = [message for message in place.stale("9.9.9") if "no section" in message]
        self.assertEqual([message.split()[0] for message in messages], list(place.NOTES))

    def test_manifests_with_a_version_are_all_compared(self):
        found = 0
        for pattern in ("charts/*/Chart.yaml", "cluster/sdk/**/package.json", "cluster/sdk/**/pyproject.toml", "cluster/**/Cargo.toml"):
            for file in ROOT.glob(pattern):
                said = re.search(r'^\s*"?version"?\s*[:=] "?(\d[^"\s]*)', file.read_text(), re.MULTILINE)
                # What is never published says so.
                if said and said.group(1) != "0.0.0" and "node_modules" not in file.parts:
                    self.assertIn(file.relative_to(ROOT).as_posix(), place.PLACES)
                    found += 1
        self.assertGreaterEqual(found, 5)


if __name__ == "__main__":
    unittest.main()
