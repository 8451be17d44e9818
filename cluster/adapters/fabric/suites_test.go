//go:build suites

package fabric

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	fabricModule = "github.com/hyperledger/fabric"
	// suitesDirectory is where the patched copy of Fabric is made.
	suitesDirectory = "../../../target/fabric-suites"
)

// ledgerSuites are Fabric's own tests of what lies above its state database.
var ledgerSuites = []string{"core/ledger/kvledger/txmgmt/txmgr", "core/ledger/kvledger/tests"}

// edits are the changes to Fabric's files: each text is there once, and is replaced.
var edits = map[string][][2]string{
	"core/ledger/kvledger/txmgmt/privacyenabledstate/db.go": {
		{
			"stateleveldb.NewVersionedDBProvider(stateDBConf.LevelDBPath)",
			"newStateDB(stateDBConf.LevelDBPath)",
		},
		{"\t\"" + fabricModule + "/core/ledger/kvledger/txmgmt/statedb/stateleveldb\"\n", ""},
	},
	// What runs on CouchDB runs on the ledger, too.
	"core/ledger/kvledger/txmgmt/txmgr/pkg_test.go": {
		{"&privacyenabledstate.CouchDBTestEnv{}", "&privacyenabledstate.LevelDBTestEnv{}"},
	},
}

// patchedFabric makes a copy of Fabric whose ledgers use this adapter, and gives its directory.
func patchedFabric(t *testing.T) string {
	t.Helper()
	directory := must(filepath.Abs(suitesDirectory))(t)
	if err := os.RemoveAll(directory); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(directory, os.DirFS(fabricDirectory(t))); err != nil {
		t.Fatal(err)
	}
	for file, pairs := range edits {
		path := filepath.Join(directory, file)
		text := string(must(os.ReadFile(path))(t))
		for _, pair := range pairs {
			if count := strings.Count(text, pair[0]); count != 1 {
				t.Fatalf("%s has the text %q %d times", file, pair[0], count)
			}
			text = strings.Replace(text, pair[0], pair[1], 1)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text := must(os.ReadFile("testdata/suites/coppice.go.txt"))(t)
	path := filepath.Join(directory, "core/ledger/kvledger/txmgmt/privacyenabledstate/coppice.go")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	modules := map[string]string{"coppice.dev/sdk": "../../sdk/go", "coppice.dev/adapters/fabric": "."}
	for module, from := range modules {
		from = must(filepath.Abs(from))(t)
		run(t, directory, "go", "mod", "edit", "-require", module+"@v0.0.0", "-replace", module+"="+from)
	}
	run(t, directory, "go", "mod", "tidy")
	return directory
}

func run(t *testing.T, directory, command string, arguments ...string) {
	t.Helper()
	process := exec.Command(command, arguments...)
	process.Dir = directory
	if words, err := process.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", process.Args, err, words)
	}
}

// outcomes runs tests of Fabric on a ledger, and gives what became of each, with its last words.
func outcomes(t *testing.T, directory, suite string, l *ledger) (outcome, words map[string]string) {
	t.Helper()
	process := exec.Command("go", "test", "-mod=mod", "-count=1", "-timeout=40m", "-json", "./"+suite)
	process.Dir = directory
	process.Env = append(os.Environ(), "COPPICE_SUITES_ENDPOINTS="+l.endpoint,
		"COPPICE_SUITES_KEY="+l.key.String())
	var failure bytes.Buffer
	process.Stderr = &failure
	// The tests that fail make the command fail.
	output, _ := process.Output()
	outcome, words = map[string]string{}, map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(output)); lines.Scan(); {
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &event) != nil || event.Test == "" {
			continue
		}
		name, _, isPart := strings.Cut(event.Test, "/")
		switch {
		case event.Action == "output":
			words[name] = (words[name] + event.Output)[max(0, len(words[name])+len(event.Output)-4096):]
		case !isPart:
			outcome[name] = event.Action
		}
	}
	if len(outcome) == 0 {
		t.Fatalf("no test of %s ran: %s", suite, failure.String())
	}
	return outcome, words
}

// Fabric's simulation, validation, commit, recovery, snapshots, resets and rebuilds run on a
// ledger. A test fails if it is named in testdata/suites.txt, and passes if it is not.
func TestTheLedgerSuitesOfFabricPass(t *testing.T) {
	directory := patchedFabric(t)
	expected := exceptions(t, "suites.txt")
	shapes := map[int][][]byte{
		1: nil,
		// Each directory of a test has a generation of its own.
		4: {[]byte("fabric/1"), []byte("fabric/2"), []byte("fabric/4")},
	}
	if os.Getenv(endpointsVariable) != "" {
		// A ledger that runs has the shards that it has.
		delete(shapes, 4)
	}
	for shards, splits := range shapes {
		for _, suite := range ledgerSuites {
			t.Run(fmt.Sprintf("%s, %d shards", filepath.Base(suite), shards), func(t *testing.T) {
				outcome, words := outcomes(t, directory, suite, startLedger(t, splits...))
				passed := 0
				for name, action := range outcome {
					reason, isException := expected[filepath.Base(suite)+"/"+name]
					switch {
					case action == "pass" && isException:
						t.Errorf("%s passes, take it out of testdata/suites.txt", name)
					case action == "pass":
						passed++
					case isException:
						t.Logf("%s: %s, as expected: %s", name, action, reason)
					default:
						t.Errorf("%s: %s\n%s", name, action, words[name])
					}
				}
				for name := range expected {
					in, name := filepath.Split(name)
					if in == filepath.Base(suite)+"/" && outcome[name] == "" {
						t.Errorf("%s is named in testdata/suites.txt, and did not run", name)
					}
				}
				t.Logf("%d of %d tests pass", passed, len(outcome))
			})
		}
	}
}
