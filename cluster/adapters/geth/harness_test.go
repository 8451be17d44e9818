package geth

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

// startLedger runs a `coppice dev` until the test ends, and gives a verifying client of it.
func startLedger(t testing.TB) *coppice.Client {
	t.Helper()
	if endpoints := os.Getenv(endpointsVariable); endpoints != "" {
		return dial(t, os.Getenv(keyVariable), strings.Split(endpoints, ",")...)
	}
	directory := t.TempDir()
	endpoint, _ := startProcess(t, directory, "127.0.0.1:0")
	return connect(t, directory, endpoint)
}

// startProcess runs a `coppice dev` on a directory, until the test ends or kills it.
func startProcess(t testing.TB, directory, listen string) (endpoint string, process *exec.Cmd) {
	t.Helper()
	bin := os.Getenv(binVariable)
	if bin == "" {
		bin = "../../../target/debug/coppice"
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	arguments := []string{"dev", "--data-dir", directory, "--replicas", "1", "--listen", listen}
	// A chain with the default prefix lies in four shards, and others in one.
	for _, split := range []string{"eth/a\x80", "eth/s", "eth/s\x80"} {
		arguments = append(arguments, "--split", fmt.Sprintf("0x%x", split))
	}
	process = exec.Command(bin, arguments...)
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
		return endpoint, process
	case <-time.After(testPatience):
		t.Fatal("the ledger is not ready in time")
	}
	return "", nil
}

// kill ends a process without a chance to say anything.
func kill(process *exec.Cmd) {
	if process.ProcessState == nil {
		_ = process.Process.Kill()
		_ = process.Wait()
	}
}

func connect(t testing.TB, directory, endpoint string) *coppice.Client {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(directory, "ledger.vkey"))
	if err != nil {
		t.Fatal(err)
	}
	return dial(t, string(text), endpoint)
}

// dial gives a verifying client. It waits long for a leader if there are several coordinators.
func dial(t testing.TB, vkey string, endpoints ...string) *coppice.Client {
	t.Helper()
	key, err := verify.ParseVKey(strings.TrimSpace(vkey))
	if err != nil {
		t.Fatal(err)
	}
	options := coppice.Options{Endpoints: endpoints, Trust: &key}
	if len(endpoints) > 1 {
		options.Patience = testPatience / 4
	}
	client, err := coppice.New(options)
	if err != nil {
		t.Fatal(err)
	}
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

func openState(t testing.TB, client *coppice.Client) *State {
	t.Helper()
	return must(Open(limited(t), client, Options{Prefix: fmt.Sprintf("%s/", t.Name())}))(t)
}
