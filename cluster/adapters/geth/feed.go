package geth

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/tracing"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/triedb"
	"github.com/holiman/uint256"
)

// Feed writes the blocks of a node to a ledger. Its hooks are those of a live tracer, so
// go-ethereum is not changed. A program that embeds go-ethereum gives the hooks to its chain, and a
// build of geth registers them. The hooks get blocks of side chains as well. Call State.Follow with
// the root of each new head to say which blocks are the chain.
//
// The node goes on after an error of the feed. So the feed keeps its first error (Err, OnError),
// and writes nothing after it. The node is then set back to the block of State.Head, and started
// again.
type Feed struct {
	ctx    context.Context
	ledger *State
	// OnError is called with the first error; nil for nobody.
	OnError func(error)

	// mutex is held while a block is written.
	mutex  sync.Mutex
	config *params.ChainConfig
	// plainSlots tells how the hook names the slots of the block that is under way.
	plainSlots bool
	failed     atomic.Pointer[error]
}

// NewFeed makes a feed, whose writes end with a context.
func NewFeed(ctx context.Context, ledger *State) *Feed { return &Feed{ctx: ctx, ledger: ledger} }

// Err is the first error, or nil.
func (f *Feed) Err() error {
	if failed := f.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

// Hooks are those of a live tracer.
func (f *Feed) Hooks() *tracing.Hooks {
	return &tracing.Hooks{
		OnBlockchainInit: f.onInit, OnGenesisBlock: f.onGenesis, OnBlockStart: f.onBlock, OnStateUpdate: f.onUpdate,
	}
}

func (f *Feed) onInit(config *params.ChainConfig) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.config = config
}

func (f *Feed) onBlock(event tracing.BlockEvent) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.config == nil {
		f.fail(errors.New("geth: a block before the configuration of its chain"))
		return
	}
	block := event.Block
	f.plainSlots = f.config.Rules(block.Number(), block.Difficulty().Sign() == 0, block.Time()).IsCancun
}

func (f *Feed) onUpdate(update *tracing.StateUpdate) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.apply(updateOfHook(update, f.plainSlots))
}

// onGenesis gets the first block, at each start of a node whose chain has no second block yet.
func (f *Feed) onGenesis(genesis *types.Block, alloc types.GenesisAlloc) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.ledger.Head().Root != types.EmptyRootHash {
		return
	}
	update, err := UpdateOfGenesis(alloc)
	if err == nil && update.Root != genesis.Root() {
		err = fmt.Errorf("geth: the allocation has root %s, and the first block %s", update.Root, genesis.Root())
	}
	if err != nil {
		f.fail(err)
		return
	}
	f.apply(update)
}

// apply writes an update, unless an earlier one failed. The lock is held.
func (f *Feed) apply(update *Update) {
	if f.Err() != nil {
		return
	}
	if err := f.ledger.Apply(f.ctx, update); err != nil {
		f.fail(fmt.Errorf("geth: block %d: %w", update.Number, err))
	}
}

func (f *Feed) fail(err error) {
	if f.failed.CompareAndSwap(nil, &err) && f.OnError != nil {
		f.OnError(err)
	}
}

// recorder is a state database that keeps what is committed.
type recorder struct {
	*state.MPTDatabase
	update *state.StateUpdate
}

func (r *recorder) Commit(update *state.StateUpdate) error {
	r.update = update
	return r.MPTDatabase.Commit(update)
}

// UpdateOfGenesis is the update of a chain's first block, which allocates these accounts.
func UpdateOfGenesis(alloc types.GenesisAlloc) (*Update, error) {
	tries := triedb.NewDatabase(rawdb.NewMemoryDatabase(), triedb.HashDefaults)
	defer func() { _ = tries.Close() }()
	database := &recorder{MPTDatabase: state.NewMPTDatabase(tries, nil)}
	first, err := state.New(types.EmptyRootHash, database)
	if err != nil {
		return nil, err
	}
	if err := allocate(first, alloc); err != nil {
		return nil, err
	}
	root, err := first.Commit(params.Rules{}, 0)
	if err != nil {
		return nil, err
	}
	if database.update == nil {
		return &Update{Parent: types.EmptyRootHash, Root: types.EmptyRootHash}, nil
	}
	update := UpdateOf(database.update)
	if update.Parent != types.EmptyRootHash || update.Root != root || root == (common.Hash{}) {
		return nil, fmt.Errorf("geth: the first block leads from %s to %s", update.Parent, update.Root)
	}
	return update, nil
}

// allocate sets accounts as the first block of a chain does.
func allocate(to *state.StateDB, alloc types.GenesisAlloc) error {
	for address, account := range alloc {
		balance := new(uint256.Int)
		if account.Balance != nil {
			var over bool
			if balance, over = uint256.FromBig(account.Balance); over {
				return fmt.Errorf("geth: the balance of %s is not below 2^256", address)
			}
		}
		to.AddBalance(address, balance, tracing.BalanceIncreaseGenesisBalance)
		to.SetCode(address, account.Code, tracing.CodeChangeGenesis)
		to.SetNonce(address, account.Nonce, tracing.NonceChangeGenesis)
		for slot, value := range account.Storage {
			to.SetState(address, slot, value)
		}
	}
	return nil
}
