package geth

import (
	"errors"
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/params"
)

// node is a whole chain of geth with a feed.
func node(t testing.TB, genesis *core.Genesis, chain *chainOf, feed *Feed) *core.BlockChain {
	t.Helper()
	options := core.DefaultConfig().WithStateScheme(rawdb.HashScheme)
	options.ArchiveMode, options.Preimages = true, true
	options.VmConfig = vm.Config{Tracer: feed.Hooks()}
	running := must(core.NewBlockChain(rawdb.NewMemoryDatabase(), genesis, chain.engine, options))(t)
	t.Cleanup(running.Stop)
	return running
}

func TestANodeFeedsTheLedgerThroughItsReorganizations(t *testing.T) {
	for name, config := range map[string]*params.ChainConfig{"worked": worked(), "merged": merged()} {
		t.Run(name, func(t *testing.T) {
			const length, fork = 8, 3
			ledger := openState(t, startLedger(t))
			feed := NewFeed(limited(t), ledger)
			a, b := generate(t, config, length-1, fork, 1), generate(t, config, length, fork, 2)
			running := node(t, a.genesis, a, feed)
			epoch := uint64(0)
			follow := func(on, off *chainOf) {
				t.Helper()
				must(running.InsertChain(on.blocks))(t)
				if config.TerminalTotalDifficulty.Sign() == 0 {
					must(running.SetCanonical(on.blocks[len(on.blocks)-1]))(t)
				}
				if feed.Err() != nil || running.CurrentBlock().Hash() != on.blocks[len(on.blocks)-1].Hash() {
					t.Fatalf("block %s is head: %v", running.CurrentBlock().Hash(), feed.Err())
				}
				// The notice of an older head may come late, and a notice may come twice.
				for _, root := range []common.Hash{
					on.block(fork).Root(), running.CurrentBlock().Root, on.block(1).Root(), running.CurrentBlock().Root,
				} {
					if err := ledger.Follow(limited(t), root); err != nil {
						t.Fatal(err)
					}
				}
				if head := ledger.Head(); head.Root != running.CurrentBlock().Root || head.Stamp.Epoch != epoch {
					t.Fatalf("%+v", head)
				}
				epoch++
				tries := state.NewMPTDatabase(running.TrieDB(), nil)
				for number := range len(on.blocks) + 1 {
					root := on.block(number).Root()
					compare(t, must(ledger.At(limited(t), root))(t), tries, root)
				}
				for number := fork + 1; off != nil && number <= len(off.blocks); number++ {
					if _, err := ledger.At(limited(t), off.block(number).Root()); !errors.Is(err, ErrUnknownRoot) {
						t.Errorf("block %d, which was reorganized away: %v", number, err)
					}
				}
			}
			follow(a, nil)
			follow(b, a)
		})
	}
}

// A node that lost its newest blocks runs them once more. The ledger has them, and goes on behind.
func TestANodeThatStartsAgainGoesOnWhereTheLedgerIs(t *testing.T) {
	client := startLedger(t)
	chain := generate(t, merged(), 6, 6, 0)
	for _, length := range []int{4, 2, 6} {
		ledger := openState(t, client)
		feed := NewFeed(limited(t), ledger)
		running := node(t, chain.genesis, chain, feed)
		must(running.InsertChain(chain.blocks[:length]))(t)
		if err := errors.Join(feed.Err(), ledger.Follow(limited(t), running.CurrentBlock().Root)); err != nil {
			t.Fatal(err)
		}
		if head := ledger.Head(); head.Number != uint64(max(length, 4)) || head.Stamp.Version != head.Number+1 {
			t.Errorf("a node with %d blocks, and the ledger has %+v", length, head)
		}
	}
}

func TestAFeedStopsAtItsFirstError(t *testing.T) {
	client := startLedger(t)
	ledger := openState(t, client)
	feed := NewFeed(limited(t), ledger)
	told := 0
	feed.OnError = func(error) { told++ }
	chain := generate(t, merged(), 3, 3, 0)
	running := node(t, chain.genesis, chain, feed)
	must(running.InsertChain(chain.blocks[:1]))(t)
	head := ledger.Head()
	_ = client.Close()
	must(running.InsertChain(chain.blocks[1:]))(t)
	if feed.Err() == nil || told != 1 {
		t.Errorf("%v, told %d times", feed.Err(), told)
	}
	if ledger.Head() != head {
		t.Errorf("%+v became %+v", head, ledger.Head())
	}
}

func TestAFeedWritesNothingBehindAnError(t *testing.T) {
	ledger := openState(t, startLedger(t))
	feed := NewFeed(limited(t), ledger)
	chain := generate(t, merged(), 3, 3, 0)
	running := node(t, chain.genesis, chain, feed)
	must(running.InsertChain(chain.blocks[:1]))(t)
	head, missed := ledger.Head(), errors.New("a block was missed")
	feed.fail(missed)
	must(running.InsertChain(chain.blocks[1:]))(t)
	if !errors.Is(feed.Err(), missed) || ledger.Head() != head {
		t.Errorf("%+v became %+v: %v", head, ledger.Head(), feed.Err())
	}
}

func TestAFirstBlockOfAnotherAllocationIsRefused(t *testing.T) {
	ledger := openState(t, startLedger(t))
	chain := generate(t, merged(), 1, 1, 0)
	feed := NewFeed(limited(t), ledger)
	feed.onGenesis(chain.first, types.GenesisAlloc{{1}: {Balance: big.NewInt(1)}})
	if feed.Err() == nil || ledger.Head().Root != types.EmptyRootHash {
		t.Errorf("%+v: %v", ledger.Head(), feed.Err())
	}
	over := new(big.Int).Lsh(common.Big1, 256)
	if _, err := UpdateOfGenesis(types.GenesisAlloc{{1}: {Balance: over}}); err == nil {
		t.Error("a balance of 2^256 is taken")
	}
	if update, err := UpdateOfGenesis(nil); err != nil || update.Root != types.EmptyRootHash {
		t.Errorf("%+v: %v", update, err)
	}
}
