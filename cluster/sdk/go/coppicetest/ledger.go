// Package coppicetest runs ledgers for tests, and breaks the connections to them.
package coppicetest

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"coppice.dev/sdk/verify"
)

// BinVariable names the `coppice` command that runs ledgers.
const BinVariable = "COPPICE_BIN"

// StartMax is how long a ledger may take until it is ready.
const StartMax = 60 * time.Second

// Bin gives the path of the `coppice` command: that of [BinVariable], or else the debug build of
// the repository in which the test runs.
func Bin() (string, error) {
	bin, err := os.Getenv(BinVariable), error(nil)
	if bin == "" {
		bin, err = debugBuild()
	} else if bin, err = filepath.Abs(bin); err == nil {
		_, err = os.Stat(bin)
	}
	if err != nil {
		return "", fmt.Errorf("these tests need the coppice command: `make build`, or %s: %w", BinVariable, err)
	}
	return bin, nil
}

// debugBuild looks for a build in the directory of the test and in those above it.
func debugBuild() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for directory := start; ; directory = filepath.Dir(directory) {
		bin := filepath.Join(directory, "target", "debug", "coppice")
		if _, err := os.Stat(bin); err == nil {
			return bin, nil
		}
		if directory == filepath.Dir(directory) {
			return "", fmt.Errorf("no target/debug/coppice in %s or above", start)
		}
	}
}

// Ledger is a `coppice dev` of a test.
type Ledger struct {
	// Directory has the data of the ledger, and its key in `ledger.vkey`.
	Directory string
	// Endpoint is the address of its coordinator, as a URL.
	Endpoint string

	arguments []string
	process   *exec.Cmd
}

// Start runs a ledger on a directory and a free port, until the test ends. The arguments are those
// of `coppice dev`, without its directory and its address.
func Start(t testing.TB, directory string, arguments ...string) *Ledger {
	t.Helper()
	l := &Ledger{Directory: directory, arguments: arguments}
	l.start(t, "127.0.0.1:0")
	t.Cleanup(l.Stop)
	return l
}

// Restart runs a ledger again that was stopped or killed, at the same address.
func (l *Ledger) Restart(t testing.TB) {
	t.Helper()
	l.start(t, l.Address())
}

func (l *Ledger) start(t testing.TB, listen string) {
	t.Helper()
	bin, err := Bin()
	if err != nil {
		t.Fatal(err)
	}
	all := append([]string{"dev", "--data-dir", l.Directory, "--listen", listen}, l.arguments...)
	l.process = exec.Command(bin, all...)
	// The ledger goes with the test, however that ends.
	l.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var words bytes.Buffer
	l.process.Stderr = &words
	output, err := l.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.process.Start(); err != nil {
		t.Fatal(err)
	}
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
			l.Kill()
			t.Fatalf("the ledger did not start: %s", words.String())
		}
		l.Endpoint = endpoint
	case <-time.After(StartMax):
		l.Kill()
		t.Fatalf("the ledger is not ready in time: %s", words.String())
	}
}

// Stop lets the ledger end in order, and waits for that. A ledger that ended stays as it is.
func (l *Ledger) Stop() { l.end(syscall.SIGTERM) }

// Kill ends the ledger without a chance to write anything.
func (l *Ledger) Kill() { l.end(syscall.SIGKILL) }

func (l *Ledger) end(signal os.Signal) {
	if l.process.ProcessState == nil {
		_ = l.process.Process.Signal(signal)
		_ = l.process.Wait()
	}
}

// Address is the host and the port of the coordinator.
func (l *Ledger) Address() string { return strings.TrimPrefix(l.Endpoint, "http://") }

// Key reads the key of the ledger from its directory.
func (l *Ledger) Key(t testing.TB) verify.VKey {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(l.Directory, "ledger.vkey"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := verify.ParseVKey(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return key
}
