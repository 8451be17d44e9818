package coppice

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"coppice.dev/sdk/coppicetest"
	"coppice.dev/sdk/verify"
)

const testPatience = 60 * time.Second

// coppiceBin is the path of the command, which TestMain finds.
var coppiceBin string

// ledger is a `coppice dev` of a test.
type ledger struct{ *coppicetest.Ledger }

// startLedger runs a ledger on a directory until the test ends.
func startLedger(t testing.TB, directory string, arguments ...string) *ledger {
	t.Helper()
	return &ledger{coppicetest.Start(t, directory, arguments...)}
}

func (l *ledger) key(t testing.TB) *verify.VKey {
	t.Helper()
	key := l.Key(t)
	return &key
}

// sharing is a cluster for all tests that only add to it. The process ends with the tests.
type sharing struct {
	arguments []string
	mutex     sync.Mutex
	ledger    *ledger
}

var (
	shared        = sharing{arguments: []string{"--journals"}}
	sharedMembers = sharing{arguments: []string{"--ledgers", "--shards", "4", "--replicas", "1"}}
)

// sharedLedger is one for keys and values.
func sharedLedger(t testing.TB) *ledger {
	t.Helper()
	return shared.start(t)
}

// membersLedger is a cluster that keeps ledgers of members.
func membersLedger(t testing.TB) *ledger {
	t.Helper()
	return sharedMembers.start(t)
}

// start runs it with the first test that asks.
func (s *sharing) start(t testing.TB) *ledger {
	t.Helper()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.ledger == nil {
		directory, err := os.MkdirTemp("", "coppice-sdk")
		if err != nil {
			t.Fatal(err)
		}
		s.ledger = startLedger(&outliving{TB: t}, directory, s.arguments...)
	}
	return s.ledger
}

func (s *sharing) stop() {
	if s.ledger != nil {
		s.ledger.Stop()
		_ = os.RemoveAll(s.ledger.Directory)
	}
}

// exampleTest lets examples, which have no test, use the ledger of the tests.
type exampleTest struct{ testing.TB }

func (exampleTest) Helper() {}

func (exampleTest) Fatal(words ...any) { panic(fmt.Sprint(words...)) }

func (exampleTest) Fatalf(format string, words ...any) { panic(fmt.Sprintf(format, words...)) }

// outliving is a test whose clean-up is left to TestMain.
type outliving struct{ testing.TB }

func (outliving) Cleanup(func()) {}

func TestMain(m *testing.M) {
	var err error
	if coppiceBin, err = coppicetest.Bin(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	shared.stop()
	sharedMembers.stop()
	os.Exit(code)
}

func connect(t testing.TB, options Options) *Client {
	t.Helper()
	client, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// client gives a verifying client of a ledger.
func (l *ledger) client(t testing.TB) *Client {
	t.Helper()
	return connect(t, Options{Endpoints: []string{l.Endpoint}, Trust: l.key(t)})
}

// command runs the command of the ledger, and gives what it writes.
func (l *ledger) command(t testing.TB, arguments ...string) string {
	t.Helper()
	run := exec.CommandContext(limited(t), coppiceBin, arguments...)
	run.Env = append(os.Environ(), "COPPICE_ENDPOINT="+l.Endpoint)
	output, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("coppice %v: %v\n%s", arguments, err, output)
	}
	return string(output)
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

func put(key, value string) *Batch { return new(Batch).Put([]byte(key), []byte(value)) }
