package fabric

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hyperledger/fabric-lib-go/common/flogging"
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"

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

func TestMain(m *testing.M) {
	// Fabric logs each connection.
	flogging.ActivateSpec("fatal")
	os.Exit(m.Run())
}

// ledger is a `coppice dev` of a test, or a ledger that runs and whose key is given.
type ledger struct {
	*coppicetest.Ledger
	endpoint string
	key      verify.VKey
}

// startLedger runs a ledger until the test ends, with a shard more than there are splits.
func startLedger(t testing.TB, splits ...[]byte) *ledger {
	t.Helper()
	if endpoints := os.Getenv(endpointsVariable); endpoints != "" {
		key := must(verify.ParseVKey(strings.TrimSpace(os.Getenv(keyVariable))))(t)
		return &ledger{endpoint: endpoints, key: key}
	}
	arguments := []string{"--replicas", "1"}
	if len(splits) == 0 {
		arguments = append(arguments, "--shards", "1")
	}
	for _, split := range splits {
		arguments = append(arguments, "--split", fmt.Sprintf("0x%x", split))
	}
	dev := coppicetest.Start(t, t.TempDir(), arguments...)
	return &ledger{Ledger: dev, endpoint: dev.Address(), key: dev.Key(t)}
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
	if endpoint == "" {
		endpoint = l.endpoint
	}
	options := coppice.Options{
		Endpoints: strings.Split(endpoint, ","), Trust: &l.key, Patience: patience,
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
