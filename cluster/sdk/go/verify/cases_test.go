package verify

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// casesVariable names a directory of further proof files, `*.proof`. Beside each lies its key
// (`NAME.vkey`, else `crafted.vkey`) or its policy (`NAME.policy`). Without it, the directory is
// looked for above this package, as real data is (docs/testing.md).
const casesVariable = "COPPICE_VERIFICATION_CASES"

const casesAbove = "shared/cases/verification"

// casesDirectory gives the directory of the files, or an empty text if there is none.
func casesDirectory() string {
	if directory := os.Getenv(casesVariable); directory != "" {
		return directory
	}
	above, err := os.Getwd()
	for ; err == nil; above = filepath.Dir(above) {
		directory := filepath.Join(above, casesAbove)
		if info, statErr := os.Stat(directory); statErr == nil && info.IsDir() {
			return directory
		}
		if above == filepath.Dir(above) {
			break
		}
	}
	return ""
}

// soundCases are valid files that look odd.
var soundCases = map[string]bool{
	"range-left-end.proof": true, "policy-older-key.proof": true,
	"wrong-shard.absence.proof": true, "wrong-shard.receipt.proof": true,
}

func TestCollectedCasesAreRefused(t *testing.T) {
	directory := casesDirectory()
	if directory == "" {
		fmt.Fprintf(
			os.Stderr,
			"NOT CHECKED: no collected proof files: %s is not set, and no %s is above\n",
			casesVariable,
			casesAbove,
		)
		t.SkipNow()
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
