//go:build fixtures

package geth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/tracing"
	"github.com/ethereum/go-ethereum/tests"

	"coppice.dev/sdk/coppice"
)

// fixturesVariable names a checkout of github.com/ethereum/tests, or a part of one.
const fixturesVariable = "ETHEREUM_TESTS"

// chainsOf reads all block tests below the directory BlockchainTests.
func chainsOf(t *testing.T) map[string]*tests.BlockTest {
	t.Helper()
	root := os.Getenv(fixturesVariable)
	if root == "" {
		t.Fatalf("set %s to a checkout of github.com/ethereum/tests", fixturesVariable)
	}
	all := map[string]*tests.BlockTest{}
	err := filepath.WalkDir(filepath.Join(root, "BlockchainTests"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".json") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var file map[string]*tests.BlockTest
		if err := json.Unmarshal(text, &file); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for name, test := range file {
			all[filepath.Base(path)+"/"+name] = test
		}
		return nil
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("%d block tests in %s: %v", len(all), root, err)
	}
	return all
}

// exceptionsFile has the tests that go-ethereum itself does not pass, each with the reason.
const exceptionsFile = "testdata/blocktests.txt"

func exceptions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(string(must(os.ReadFile(exceptionsFile))(t))) {
		name, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" || name == "#" {
			continue
		}
		if all[name] = strings.TrimSpace(reason); all[name] == "" {
			t.Errorf("%s has no reason in %s", name, exceptionsFile)
		}
	}
	return all
}

// setHead chooses a chain, also if answers are lost.
func setHead(ctx context.Context, ledger *State, root common.Hash) error {
	for {
		err := ledger.SetHead(ctx, root)
		if !coppice.OutcomeUnknown(err) || ctx.Err() != nil {
			return err
		}
	}
}

// rollBack takes back all behind a version, also if answers are lost.
func rollBack(t *testing.T, client *coppice.Client, start coppice.Stamp) {
	t.Helper()
	ctx := limited(t)
	until(ctx, t, func() error {
		head, err := client.Head(ctx)
		if err != nil || head.Stamp.Version == start.Version {
			return err
		}
		order := coppice.Order{Principal: "test", Reason: "the next chain", ExpectedHead: &head.Stamp}
		_, err = client.Rollback(ctx, start.Version, order)
		return err
	})
}

// rootsOf notes the roots of which a node was told, besides those of its feed.
type rootsOf struct{ all map[common.Hash]bool }

func (r *rootsOf) hooks(feed *Feed) *tracing.Hooks {
	hooks := feed.Hooks()
	apply := hooks.OnStateUpdate
	hooks.OnStateUpdate = func(update *tracing.StateUpdate) {
		r.all[update.Root] = true
		apply(update)
	}
	return hooks
}

// geth's own block tests run with a feed. A test passes with it if it passes without it, and that
// is unless it is an exception. Then the ledger has the state of every height of the chain, and of
// no other block.
func TestTheBlockTestsOfGethFeedTheLedger(t *testing.T) {
	client, expected := startLedger(t), exceptions(t)
	passed, failed, heights, dead, accounts, slots := 0, 0, 0, 0, 0, 0
	for name, test := range chainsOf(t) {
		start := must(client.Head(limited(t)))(t).Stamp
		without := test.Run(false, rawdb.HashScheme, false, nil, nil)
		ledger := must(Open(limited(t), client, Options{Window: 1024}))(t)
		feed, roots := NewFeed(limited(t), ledger), &rootsOf{all: map[common.Hash]bool{}}
		with := test.Run(false, rawdb.HashScheme, false, roots.hooks(feed), func(_ error, chain *core.BlockChain) {
			err := setHead(limited(t), ledger, chain.CurrentBlock().Root)
			if err := errors.Join(feed.Err(), err); err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			tries := state.NewMPTDatabase(chain.TrieDB(), nil)
			for at := range chain.CurrentBlock().Number.Uint64() + 1 {
				root := chain.GetHeaderByNumber(at).Root
				a, s := compare(t, must(ledger.At(limited(t), root))(t), tries, root)
				accounts, slots, heights = accounts+a, slots+s, heights+1
				delete(roots.all, root)
			}
			for root := range roots.all {
				dead++
				if _, err := ledger.At(limited(t), root); !errors.Is(err, ErrUnknownRoot) {
					t.Errorf("%s: a block of a side chain is read: %v", name, err)
				}
			}
		})
		if (with == nil) != (without == nil) {
			t.Errorf("%s: %v, and with a feed %v", name, without, with)
		}
		reason, isException := expected[name]
		delete(expected, name)
		switch {
		case without == nil && isException:
			t.Errorf("%s passes, take it out of %s", name, exceptionsFile)
		case without == nil:
			passed++
		case isException:
			failed++
			t.Logf("%s does not pass: %s", name, reason)
		default:
			t.Errorf("%s fails in geth itself: %v", name, without)
		}
		// The next chain begins on an empty ledger again, since a rollback takes all chains back.
		rollBack(t, client, start)
	}
	for name := range expected {
		t.Errorf("%s is in %s, and there is no such test", name, exceptionsFile)
	}
	t.Logf("%d pass, %d fail in geth itself; %d heights, %d blocks of side chains, %d accounts, %d slots",
		passed, failed, heights, dead, accounts, slots)
	if heights == 0 || dead == 0 || slots == 0 {
		t.Error("nothing was compared")
	}
}
