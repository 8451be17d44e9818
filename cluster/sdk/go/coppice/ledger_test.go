package coppice

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"coppice.dev/sdk/verify"
)

// binVariable names the `coppice` command; by default it is the repository's debug build.
const binVariable = "COPPICE_BIN"

const (
	startPatience = 60 * time.Second
	testPatience  = 60 * time.Second
)

// coppiceBin is the path of the command, which TestMain finds.
var coppiceBin string

func findBin() (string, error) {
	bin := os.Getenv(binVariable)
	if bin == "" {
		bin = "../../../../target/debug/coppice"
	}
	bin, err := filepath.Abs(bin)
	if err == nil {
		_, err = os.Stat(bin)
	}
	return bin, err
}

// ledger is a `coppice dev` of a test.
type ledger struct {
	directory string
	endpoint  string
	process   *exec.Cmd
}

// startLedger runs a ledger on a directory until the test ends.
func startLedger(t testing.TB, directory string, arguments ...string) *ledger {
	t.Helper()
	l := &ledger{directory: directory}
	all := append([]string{"dev", "--data-dir", directory}, arguments...)
	if !slices.Contains(arguments, "--listen") {
		all = append(all, "--listen", "127.0.0.1:0")
	}
	l.process = exec.Command(coppiceBin, all...)
	// The ledger goes with the test, however that ends.
	l.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var words lockedBuffer
	l.process.Stderr = &words
	output, err := l.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.stop)
	ready := make(chan string, 1)
	go func() {
		defer close(ready)
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			if endpoint, is := strings.CutPrefix(lines.Text(), "ready "); is {
				ready <- endpoint
			}
		}
	}()
	select {
	case endpoint, started := <-ready:
		if !started {
			t.Fatalf("the ledger did not start: %s", words.String())
		}
		l.endpoint = endpoint
	case <-time.After(startPatience):
		t.Fatalf("the ledger is not ready in time: %s", words.String())
	}
	return l
}

func (l *ledger) stop() {
	if l.process.ProcessState == nil {
		_ = l.process.Process.Signal(syscall.SIGTERM)
		_ = l.process.Wait()
	}
}

// kill ends the process without a chance to say anything.
func (l *ledger) kill() {
	_ = l.process.Process.Kill()
	_ = l.process.Wait()
}

func (l *ledger) key(t testing.TB) *verify.VKey {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(l.directory, "ledger.vkey"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := verify.ParseVKey(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return &key
}

// lockedBuffer takes the words of a process while others read them.
type lockedBuffer struct {
	mutex  sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.String()
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
		s.ledger.stop()
		_ = os.RemoveAll(s.ledger.directory)
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
	if coppiceBin, err = findBin(); err != nil {
		fmt.Fprintf(os.Stderr, "these tests need the coppice command: `make build`, or %s: %v\n", binVariable, err)
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
	return connect(t, Options{Endpoints: []string{l.endpoint}, Trust: l.key(t)})
}

// command runs the command of the ledger, and gives what it writes.
func (l *ledger) command(t testing.TB, arguments ...string) string {
	t.Helper()
	run := exec.CommandContext(limited(t), coppiceBin, arguments...)
	run.Env = append(os.Environ(), "COPPICE_ENDPOINT="+l.endpoint)
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
