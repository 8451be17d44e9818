package fabric

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperledger/fabric-lib-go/common/flogging"
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

// binVariable names the `coppice` command; by default it is the repository's debug build.
const binVariable = "COPPICE_BIN"

// endpointsVariable and keyVariable name a ledger that runs, by its coordinators (with commas) and
// its key. Tests then use it where they would start one.
const (
	endpointsVariable = "COPPICE_STATE_ENDPOINTS"
	keyVariable       = "COPPICE_STATE_KEY"
)

const testPatience = 120 * time.Second

func TestMain(m *testing.M) {
	// Fabric logs each connection.
	flogging.ActivateSpec("fatal")
	os.Exit(m.Run())
}

// ledger is a `coppice dev` of a test, or a ledger that runs and whose key is given.
type ledger struct {
	directory, endpoint, key string
	process                  *exec.Cmd
}

// startLedger runs a ledger until the test ends, with a shard more than there are splits.
func startLedger(t testing.TB, splits ...[]byte) *ledger {
	t.Helper()
	if endpoints := os.Getenv(endpointsVariable); endpoints != "" {
		return &ledger{endpoint: endpoints, key: os.Getenv(keyVariable)}
	}
	l := &ledger{directory: t.TempDir()}
	arguments := []string{"--replicas", "1"}
	if len(splits) == 0 {
		arguments = append(arguments, "--shards", "1")
	}
	for _, split := range splits {
		arguments = append(arguments, "--split", fmt.Sprintf("0x%x", split))
	}
	l.start(t, "127.0.0.1:0", arguments...)
	return l
}

// start runs the ledger's process.
func (l *ledger) start(t testing.TB, listen string, arguments ...string) {
	t.Helper()
	bin := os.Getenv(binVariable)
	if bin == "" {
		bin = "../../../target/debug/coppice"
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	all := append([]string{"dev", "--data-dir", l.directory, "--listen", listen}, arguments...)
	process := exec.Command(bin, all...)
	// The ledger goes with the test, however that ends.
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var words bytes.Buffer
	process.Stderr = &words
	output, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatalf("these tests need the coppice command: `make build`, or %s: %v", binVariable, err)
	}
	l.process = process
	t.Cleanup(func() { kill(process) })
	ready := make(chan string, 1)
	go func() {
		defer close(ready)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			if endpoint, is := strings.CutPrefix(lines.Text(), "ready "); is {
				ready <- endpoint
			}
		}
	}()
	select {
	case endpoint, started := <-ready:
		if !started {
			kill(process)
			t.Fatalf("the ledger did not start: %s", words.String())
		}
		l.endpoint = strings.TrimPrefix(endpoint, "http://")
	case <-time.After(testPatience):
		t.Fatal("the ledger is not ready in time")
	}
}

// kill ends a process without a chance to say anything.
func kill(process *exec.Cmd) {
	if process.ProcessState == nil {
		_ = process.Process.Kill()
		_ = process.Wait()
	}
}

// connect gives a verifying client of the ledger, at another endpoint if that is not empty.
func (l *ledger) connect(t testing.TB, endpoint string) *coppice.Client {
	t.Helper()
	return l.patient(t, endpoint, testPatience)
}

// quick gives a client that does not wait.
func (l *ledger) quick(t testing.TB, endpoint string) *coppice.Client {
	t.Helper()
	return l.patient(t, endpoint, time.Nanosecond)
}

func (l *ledger) patient(t testing.TB, endpoint string, patience time.Duration) *coppice.Client {
	t.Helper()
	text := l.key
	if text == "" {
		text = string(must(os.ReadFile(filepath.Join(l.directory, "ledger.vkey")))(t))
	}
	key, err := verify.ParseVKey(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	if endpoint == "" {
		endpoint = l.endpoint
	}
	options := coppice.Options{
		Endpoints: strings.Split(endpoint, ","), Trust: &key, Patience: patience,
	}
	client := must(coppice.New(options))(t)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func limited(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	t.Cleanup(cancel)
	return ctx
}

// must gives a result, or ends the test.
func must[T any](result T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
}

// open gives a provider with a prefix of its own.
func open(t testing.TB, client *coppice.Client, options Options) statedb.VersionedDBProvider {
	t.Helper()
	options.Timeout = testPatience
	p := must(New(limited(t), client, options))(t)
	t.Cleanup(p.Close)
	return p
}
