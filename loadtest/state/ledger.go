package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/holiman/uint256"
	"golang.org/x/sync/errgroup"

	"coppice.dev/adapters/geth"
	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/coppicetest"
	"coppice.dev/sdk/verify"
)

const (
	// prefix begins all keys of the adapter, if the chain has no other one.
	prefix = "eth/"
	// loaders commit batches of so many records at one time.
	loaders      = 4
	batchRecords = 20_000
	callLimit    = 2 * time.Minute
)

// far is a ledger behind a wire.
type far struct {
	client *coppice.Client
	wire   *coppicetest.Wire
}

func dial(endpoint string, key verify.VKey, roundTrip time.Duration) (*far, error) {
	wire, err := coppicetest.NewWire(endpoint, roundTrip)
	if err != nil {
		return nil, err
	}
	address := wire.Address
	if roundTrip == 0 {
		address = endpoint
	}
	client, err := coppice.New(coppice.Options{Endpoints: []string{address}, Trust: &key})
	if err != nil {
		return nil, errors.Join(err, wire.Close())
	}
	return &far{client: client, wire: wire}, nil
}

func (f *far) close() error { return errors.Join(f.client.Close(), f.wire.Close()) }

func accountKey(address common.Address) []byte {
	return append([]byte(prefix+"a"), crypto.Keccak256(address[:])...)
}

func slotKey(address common.Address, slot common.Hash) []byte {
	key := append([]byte(prefix+"s"), crypto.Keccak256(address[:])...)
	return append(key, crypto.Keccak256(slot[:])...)
}

// records gives all records of the world, in the encoding of the adapter's README.
func (w *world) records(give func(key, value []byte) error) error {
	for _, code := range [][]byte{cellCode, routerCode} {
		if err := give(append([]byte(prefix+"c"), crypto.Keccak256(code)...), code); err != nil {
			return err
		}
	}
	plain := types.NewEmptyStateAccount()
	plain.Balance = wealth
	for i := range w.accounts {
		if err := give(accountKey(w.account(i)), types.SlimAccountRLP(*plain)); err != nil {
			return err
		}
	}
	if err := give(accountKey(router), types.SlimAccountRLP(*contractAccount(routerCode))); err != nil {
		return err
	}
	for i := range w.contracts {
		if err := give(accountKey(w.contract(i)), types.SlimAccountRLP(*contractAccount(cellCode))); err != nil {
			return err
		}
	}
	for i := range w.slots {
		contract, key := w.slot(i)
		value := w.value(i)
		if err := give(slotKey(w.contract(contract), key), common.TrimLeftZeroes(value[:])); err != nil {
			return err
		}
	}
	return nil
}

// load writes the world in large batches, which say nothing of a chain. Then it makes the chain's
// first block, and gives its root.
func (f *far) load(ctx context.Context, w *world) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	batches := make(chan *coppice.Batch)
	var group sync.WaitGroup
	for range loaders {
		group.Go(func() {
			for batch := range batches {
				if _, err := f.client.Commit(ctx, batch); err != nil {
					fail(err)
				}
			}
		})
	}
	batch, held := new(coppice.Batch), 0
	send := func() error {
		select {
		case batches <- batch:
			batch, held = new(coppice.Batch), 0
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	err := w.records(func(key, value []byte) error {
		batch.Put(key, value)
		if held++; held < batchRecords {
			return nil
		}
		return send()
	})
	if err == nil && held > 0 {
		err = send()
	}
	close(batches)
	group.Wait()
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return err
	}
	own, err := f.open(ctx, 0)
	if err != nil {
		return err
	}
	on, err := state.New(types.EmptyRootHash, own.states)
	if err != nil {
		return err
	}
	on.SetBalance(coinbase, uint256.NewInt(1), 0)
	_, err = on.Commit(rules(1), 1)
	return err
}

// own is the chain on the ledger's roots, with a cache of its own.
type own struct {
	states *geth.OwnDatabase
}

// open finds the chain. A cache of 0 bytes is one of the default size.
func (f *far) open(ctx context.Context, cacheBytes int) (*own, error) {
	states, err := geth.OpenOwn(ctx, f.client, geth.Options{CacheBytes: cacheBytes, Timeout: callLimit})
	return &own{states: states}, err
}

// Modes of a block on the ledger: what is read before its transactions run one after the other.
const (
	// byList reads all that the access list names.
	byList = "prefetch"
	// bySpeculation runs all transactions at one time, on the state before the block.
	bySpeculation = "speculation"
	// byNothing reads nothing ahead.
	byNothing = "cache"
)

// run executes a block, and commits it.
func (o *own) run(ctx context.Context, b *block, mode string) (time.Duration, error) {
	began := time.Now()
	root, _ := o.states.Head()
	reader, err := o.states.At(ctx, root)
	if err != nil {
		return 0, err
	}
	switch mode {
	case byList:
		err = reader.Prefetch(ctx, b.accesses)
	case bySpeculation:
		err = o.speculate(root, reader, b)
	}
	if err != nil {
		return 0, err
	}
	on, err := state.NewWithReader(root, o.states, reader)
	if err != nil {
		return 0, err
	}
	if err := b.run(on); err != nil {
		return 0, err
	}
	_, err = on.Commit(rules(b.number), b.number)
	return time.Since(began), err
}

// speculators run transactions at one time. They mostly wait.
const speculators = 64

// speculate runs all transactions on states of their own, so that the cache gets what they read.
func (o *own) speculate(root common.Hash, reader *geth.View, b *block) error {
	var group errgroup.Group
	group.SetLimit(speculators)
	for i := range b.messages {
		group.Go(func() error {
			on, err := state.NewWithReader(root, o.states, reader)
			if err == nil {
				b.attempt(i, on)
			}
			return err
		})
	}
	return group.Wait()
}
