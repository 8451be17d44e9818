package geth

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"coppice.dev/sdk/coppice"
	cached "coppice.dev/sdk/state"
)

// View is the state of one root. It is a state.Reader, and may be read from several goroutines.
type View struct {
	keys keys
	// view is nil for the state before the first block.
	view *cached.View
}

var _ state.Reader = (*View)(nil)

// Stamp is the version of the ledger that the view reads.
func (v *View) Stamp() coppice.Stamp {
	if v.view == nil {
		return coppice.Stamp{}
	}
	return v.view.Stamp()
}

// value reads a key: nil if it has none. The cache bounds the time of each read (Options.Timeout).
func (v *View) value(key []byte) ([]byte, error) {
	if v.view == nil {
		return nil, nil
	}
	value, err := v.view.Get(context.Background(), key)
	if err != nil {
		return nil, fmt.Errorf("geth: %w", err)
	}
	return value, nil
}

// Account reads an account: nil if there is none.
func (v *View) Account(address common.Address) (*types.StateAccount, error) {
	value, err := v.value(v.keys.account(crypto.Keccak256Hash(address[:])))
	if err != nil || value == nil {
		return nil, err
	}
	return types.FullAccount(value)
}

// Storage reads a slot: zero if it is empty.
func (v *View) Storage(address common.Address, slot common.Hash) (common.Hash, error) {
	key := v.keys.slot(crypto.Keccak256Hash(address[:]), crypto.Keccak256Hash(slot[:]))
	value, err := v.value(key)
	if err == nil && len(value) > common.HashLength {
		err = fmt.Errorf("geth: a slot of %s has %d bytes", address, len(value))
	}
	if err != nil {
		return common.Hash{}, err
	}
	return common.BytesToHash(value), nil
}

// Code reads a code by its hash. It is nil if there is none or if the ledger did not answer. That
// is safe, because StateDB takes a missing code for an error and commits nothing.
func (v *View) Code(_ common.Address, hash common.Hash) []byte {
	if hash == types.EmptyCodeHash {
		return nil
	}
	code, err := v.value(v.keys.code(hash))
	if err != nil || crypto.Keccak256Hash(code) != hash {
		return nil
	}
	return code
}

// CodeSize is the length of a code, 0 where Code gives none.
func (v *View) CodeSize(address common.Address, hash common.Hash) int {
	return len(v.Code(address, hash))
}

// Has tells whether there is a code of a hash.
func (v *View) Has(address common.Address, hash common.Hash) bool {
	return len(v.Code(address, hash)) > 0
}

// AccessesOf gives, for Prefetch, the accounts and slots that a block's transactions name: senders,
// receivers, and access lists.
func AccessesOf(block *types.Block, signer types.Signer) map[common.Address][]common.Hash {
	accesses := map[common.Address][]common.Hash{block.Coinbase(): nil}
	touch := func(address common.Address, slots []common.Hash) {
		accesses[address] = append(accesses[address], slots...)
	}
	for _, transaction := range block.Transactions() {
		// A sender that can't be recovered makes the block invalid, which others will find.
		if sender, err := types.Sender(signer, transaction); err == nil {
			touch(sender, nil)
		}
		if to := transaction.To(); to != nil {
			touch(*to, nil)
		}
		for _, access := range transaction.AccessList() {
			touch(access.Address, access.StorageKeys)
		}
	}
	return accesses
}

// Prefetch reads accounts and their slots into the cache, many at one time: for instance those of a
// block's access list. An account or slot that is named twice is read once.
func (v *View) Prefetch(ctx context.Context, accesses map[common.Address][]common.Hash) error {
	if v.view == nil {
		return nil
	}
	var keys [][]byte
	for address, slots := range accesses {
		hash := crypto.Keccak256Hash(address[:])
		keys = append(keys, v.keys.account(hash))
		for _, slot := range slots {
			keys = append(keys, v.keys.slot(hash, crypto.Keccak256Hash(slot[:])))
		}
	}
	return v.view.Prefetch(ctx, keys)
}
