package verify

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files in testdata/lies are sound but for the rule in their name. Their ledgers' keys come from
// seeds that are known, so each of them is signed. They were found by comparing verdicts on random
// states, pairs and key changes.
func TestLiesThatALedgerSignedAreRefused(t *testing.T) {
	read := func(name string) []byte {
		content, err := os.ReadFile(filepath.Join("testdata/lies", name))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	for name, step := range map[string]string{
		// Section 7: no two shards have one id.
		"two-shards-of-one-id": "state",
		// Section 11: pair 1 of 4 has the epoch 1, and the last of them has the epoch 2.
		"pair-too-high": "epoch",
		// Section 13, step 11: the proof itself shows that the key of the newer checkpoint was replaced.
		"newer-by-replaced-key": "standing",
	} {
		vkey := read(name + ".vkey")
		if vkey == nil {
			vkey = read("ledger.vkey")
		}
		key := mustKey(t, strings.TrimSpace(string(vkey)))
		file := read(name + ".proof")
		if _, err := Verify(file, key, &Options{Newer: read(name + ".newer")}); stepOf(err) != step {
			t.Errorf("%s: refused by %q, not by %q: %v", name, stepOf(err), step, err)
		}
	}
}
