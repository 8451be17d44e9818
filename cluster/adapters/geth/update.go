package geth

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/tracing"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"coppice.dev/sdk/coppice"
)

// Update is what a block changes in the state.
type Update struct {
	// Parent and Root are the state roots before and after the block.
	Parent, Root common.Hash
	Number       uint64
	// Accounts are by the hash of their address; nil for one that is deleted.
	Accounts map[common.Hash]*types.StateAccount
	// Storages are by the hashes of address and slot; zero for a slot that is deleted.
	Storages map[common.Hash]map[common.Hash]common.Hash
	// Codes are by their hash.
	Codes map[common.Hash][]byte
}

// UpdateOf makes an update of what StateDB commits.
func UpdateOf(update *state.StateUpdate) *Update {
	u := &Update{
		Parent: update.OriginRoot, Root: update.Root, Number: update.BlockNumber,
		Accounts: update.Accounts, Storages: update.Storages, Codes: make(map[common.Hash][]byte, len(update.Codes)),
	}
	for _, code := range update.Codes {
		u.Codes[code.Hash] = code.Blob
	}
	return u
}

// updateOfHook makes an update of what a tracer's hook gets. That names slots by their hashes, or
// from Cancun on directly.
func updateOfHook(update *tracing.StateUpdate, plainSlots bool) *Update {
	u := &Update{
		Parent: update.OriginRoot, Root: update.Root, Number: update.BlockNumber,
		Accounts: make(map[common.Hash]*types.StateAccount, len(update.AccountChanges)),
		Storages: make(map[common.Hash]map[common.Hash]common.Hash, len(update.StorageChanges)),
		Codes:    make(map[common.Hash][]byte, len(update.CodeChanges)),
	}
	for address, change := range update.AccountChanges {
		u.Accounts[crypto.Keccak256Hash(address[:])] = change.New
	}
	for address, changes := range update.StorageChanges {
		slots := make(map[common.Hash]common.Hash, len(changes))
		for slot, change := range changes {
			if plainSlots {
				slot = crypto.Keccak256Hash(slot[:])
			}
			slots[slot] = change.New
		}
		u.Storages[crypto.Keccak256Hash(address[:])] = slots
	}
	for _, change := range update.CodeChanges {
		if change.New != nil {
			u.Codes[change.New.Hash] = change.New.Code
		}
	}
	return u
}

// Kinds of records, behind the prefix.
const (
	kindAccount = 'a'
	kindCode    = 'c'
	kindHead    = 'h'
	kindSlot    = 's'
	kindRoot    = 'v'
)

// keys makes the keys of a chain's records.
type keys []byte

func (k keys) key(kind byte, parts ...common.Hash) []byte {
	key := make([]byte, 0, len(k)+1+len(parts)*common.HashLength)
	key = append(append(key, k...), kind)
	for _, part := range parts {
		key = append(key, part[:]...)
	}
	return key
}

func (k keys) head() []byte                          { return k.key(kindHead) }
func (k keys) root(root common.Hash) []byte          { return k.key(kindRoot, root) }
func (k keys) account(address common.Hash) []byte    { return k.key(kindAccount, address) }
func (k keys) slot(address, slot common.Hash) []byte { return k.key(kindSlot, address, slot) }
func (k keys) code(hash common.Hash) []byte          { return k.key(kindCode, hash) }

// values are the records that an update leaves: nil for one that it deletes.
func (u *Update) values(k keys) map[string][]byte {
	values := u.changes(k)
	values[string(k.head())] = encodeBlock(u.Number, u.Root)
	values[string(k.root(u.Root))] = encodeBlock(u.Number, u.Parent)
	return values
}

// changes are the records of accounts, slots and codes that an update leaves.
func (u *Update) changes(k keys) map[string][]byte {
	values := make(map[string][]byte, len(u.Accounts)+len(u.Codes)+2)
	for address, account := range u.Accounts {
		var value []byte
		if account != nil {
			value = types.SlimAccountRLP(*account)
		}
		values[string(k.account(address))] = value
	}
	for address, slots := range u.Storages {
		for slot, value := range slots {
			var trimmed []byte
			if value != (common.Hash{}) {
				trimmed = common.TrimLeftZeroes(value[:])
			}
			values[string(k.slot(address, slot))] = trimmed
		}
	}
	for hash, code := range u.Codes {
		if len(code) > 0 {
			values[string(k.code(hash))] = code
		}
	}
	return values
}

// batchOf makes the batch that leaves values, in the order of their keys: nil deletes.
func batchOf(values map[string][]byte) *coppice.Batch {
	batch := new(coppice.Batch)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if value := values[key]; value != nil {
			batch.Put([]byte(key), value)
		} else {
			batch.Delete([]byte(key))
		}
	}
	return batch
}

// encodeBlock makes the value of the records head and root: the number of a block, and a state
// root. In a head it is the block's own, and in the record of a root that of the block's parent.
func encodeBlock(number uint64, root common.Hash) []byte {
	return append(binary.BigEndian.AppendUint64(nil, number), root[:]...)
}

func decodeBlock(value []byte) (number uint64, root common.Hash, err error) {
	if len(value) != 8+common.HashLength {
		return 0, common.Hash{}, fmt.Errorf("geth: the record of a block has %d bytes", len(value))
	}
	return binary.BigEndian.Uint64(value), common.Hash(value[8:]), nil
}
