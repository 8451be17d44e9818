package verify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// casesVariable names a directory of further proof files, `*.proof`. Beside each lies its key
// (`NAME.vkey`, else `crafted.vkey`) or its policy (`NAME.policy`).
const casesVariable = "COPPICE_VERIFICATION_CASES"

// soundCases are valid, odd as they look.
var soundCases = map[string]bool{
	"range-left-end.proof": true, "policy-older-key.proof": true,
	"wrong-shard.absence.proof": true, "wrong-shard.receipt.proof": true,
}

func TestCollectedCasesAreRefused(t *testing.T) {
	directory := os.Getenv(casesVariable)
	if directory == "" {
		t.Skipf("NOT CHECKED: %s names no directory of collected proof files", casesVariable)
	}
	files, err := filepath.Glob(filepath.Join(directory, "*.proof"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no proof files in %s: %v", directory, err)
	}
	read := func(name string) []byte {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	exists := func(name string) bool {
		_, err := os.Stat(name)
		return err == nil
	}
	for _, name := range files {
		base := strings.TrimSuffix(name, ".proof")
		var err error
		if exists(base + ".policy") {
			policy, parseErr := ParsePolicy(read(base + ".policy"))
			if parseErr != nil {
				t.Fatal(parseErr)
			}
			_, err = VerifyUnder(read(name), policy, nil)
		} else {
			key := filepath.Join(directory, "crafted.vkey")
			if exists(base + ".vkey") {
				key = base + ".vkey"
			}
			_, err = Verify(read(name), mustKey(t, strings.TrimSpace(string(read(key)))), nil)
		}
		t.Logf("%s: %v", filepath.Base(name), err)
		if sound := soundCases[filepath.Base(name)]; sound != (err == nil) {
			t.Errorf("%s: %v", filepath.Base(name), err)
		}
	}
}
