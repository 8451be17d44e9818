package main

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/tracing"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethdb"
	"github.com/ethereum/go-ethereum/ethdb/pebble"
	"github.com/ethereum/go-ethereum/triedb"
	"github.com/ethereum/go-ethereum/triedb/pathdb"
	"github.com/holiman/uint256"
)

const (
	pebbleCacheMiB = 256
	pebbleFiles    = 1024
	cleanCache     = 256 << 20
	defaultPart    = 200_000
)

// local is go-ethereum alone: its tries by paths, and Pebble.
type local struct {
	disk   ethdb.Database
	tries  *triedb.Database
	states *state.MPTDatabase
	root   common.Hash
	number uint64
	// part is how many accounts and slots of a world are committed at one time.
	part int
}

func openLocal(directory string) (*local, error) {
	store, err := pebble.New(filepath.Join(directory, "chaindata"), pebbleCacheMiB, pebbleFiles, "", false)
	if err != nil {
		return nil, err
	}
	disk, err := rawdb.Open(store, rawdb.OpenOptions{Ancient: filepath.Join(directory, "ancient")})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	config := *pathdb.Defaults
	config.TrieCleanSize, config.StateCleanSize = cleanCache, cleanCache
	tries := triedb.NewDatabase(disk, &triedb.Config{PathDB: &config})
	return &local{
		disk: disk, tries: tries, states: state.NewMPTDatabase(tries, nil), root: types.EmptyRootHash,
		part: defaultPart,
	}, nil
}

func (l *local) close() error { return errors.Join(l.tries.Close(), l.disk.Close()) }

// load writes the world, some accounts and slots at a time.
func (l *local) load(w *world) error {
	on, err := state.New(l.root, l.states)
	if err != nil {
		return err
	}
	held := 0
	wrote := func(count int) error {
		if held += count; held < l.part {
			return nil
		}
		held = 0
		if err := l.commit(on); err != nil {
			return err
		}
		if err := l.keepState(); err != nil {
			return err
		}
		on, err = state.New(l.root, l.states)
		return err
	}
	for i := range w.accounts {
		on.SetBalance(w.account(i), wealth, tracing.BalanceChangeUnspecified)
		if err := wrote(1); err != nil {
			return err
		}
	}
	contract := func(address common.Address, code []byte) {
		on.SetBalance(address, wealth, tracing.BalanceChangeUnspecified)
		on.SetNonce(address, 1, tracing.NonceChangeUnspecified)
		on.SetCode(address, code, tracing.CodeChangeUnspecified)
	}
	contract(router, routerCode)
	on.SetBalance(coinbase, uint256.NewInt(1), tracing.BalanceChangeUnspecified)
	for at := range w.contracts {
		address, slots := w.contract(at), 0
		contract(address, cellCode)
		for number := at; number < w.slots; number += w.contracts {
			_, key := w.slot(number)
			on.SetState(address, key, w.value(number))
			slots++
		}
		if err := wrote(slots); err != nil {
			return err
		}
	}
	if held == 0 {
		return nil
	}
	if err := l.commit(on); err != nil {
		return err
	}
	return l.keepState()
}

func (l *local) commit(on *state.StateDB) (err error) {
	l.number++
	l.root, err = on.Commit(rules(l.number), l.number)
	return err
}

// keepState writes the state to the disk, which then has it whatever happens.
func (l *local) keepState() error {
	if err := l.tries.Commit(l.root, false); err != nil {
		return err
	}
	return l.disk.SyncKeyValue()
}

// keepBlock writes the block to the disk, as a node does. The state is in memory, and a node that
// fails runs its last blocks again.
func (l *local) keepBlock(b *block) error {
	var body []byte
	for _, message := range b.messages {
		body = append(append(body, message.From[:]...), message.Data...)
	}
	if err := l.disk.Put(append([]byte("block"), byte(b.number), byte(b.number>>8), byte(b.number>>16)), body); err != nil {
		return err
	}
	return l.disk.SyncKeyValue()
}

// run executes a block, computes its root, and waits until the disk has its state, or the block
// alone.
func (l *local) run(b *block, keepsState bool) (time.Duration, error) {
	began := time.Now()
	on, err := state.New(l.root, l.states)
	if err != nil {
		return 0, err
	}
	on.StartPrefetcher("bench", nil)
	defer on.StopPrefetcher()
	if err := b.run(on); err != nil {
		return 0, err
	}
	if err := l.commit(on); err != nil {
		return 0, err
	}
	if keepsState {
		err = l.keepState()
	} else {
		err = l.keepBlock(b)
	}
	return time.Since(began), err
}
