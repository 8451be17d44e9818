package geth

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/coppicetest"
	"coppice.dev/sdk/verify"
)

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
		key := must(verify.ParseVKey(strings.TrimSpace(os.Getenv(keyVariable))))(t)
		return dial(t, key, strings.Split(endpoints, ",")...)
	}
	l := startDev(t)
	return dial(t, l.Key(t), l.Endpoint)
}

// startDev runs a `coppice dev` until the test ends.
func startDev(t testing.TB) *coppicetest.Ledger {
	t.Helper()
	arguments := []string{"--replicas", "1"}
	// A chain with the default prefix lies in four shards, and others in one.
	for _, split := range []string{"eth/a\x80", "eth/s", "eth/s\x80"} {
		arguments = append(arguments, "--split", fmt.Sprintf("0x%x", split))
	}
	return coppicetest.Start(t, t.TempDir(), arguments...)
}

// dial gives a verifying client. It waits long for a leader if there are several coordinators.
func dial(t testing.TB, key verify.VKey, endpoints ...string) *coppice.Client {
	t.Helper()
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
