package geth

import (
	"bytes"
	"errors"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethdb"
	"github.com/ethereum/go-ethereum/trie"
	"github.com/ethereum/go-ethereum/trie/trienode"
)

// errOwn refuses what only Ethereum's tries can give.
var errOwn = errors.New("geth: the state has no tries of Ethereum")

// ownTrie stands where StateDB expects the trie of accounts. It collects what a block changes. Its
// hash is the ledger's root of the state with these changes.
type ownTrie struct {
	database *OwnDatabase
	parent   common.Hash
	// mutex is for storages, which StateDB writes at one time.
	mutex   sync.Mutex
	changes map[string][]byte
	// root is that of the changes, or zero if it is not known.
	root common.Hash
	// committed tells that the block is decided, and nothing more is taken.
	committed bool
}

// ownStorage stands where StateDB expects the trie of a storage. Its changes are those of the one
// state, so it has no root of its own.
type ownStorage struct{ *ownTrie }

var (
	_ state.Trie = (*ownTrie)(nil)
	_ state.Trie = ownStorage{}
)

// change takes the value of a record: nil if it is deleted.
func (t *ownTrie) change(key, value []byte) error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.committed {
		return trie.ErrCommitted
	}
	t.changes[string(key)], t.root = value, common.Hash{}
	return nil
}

// Hash gives the root of the state with the changes, or the parent's if there are none. It is zero
// if the ledger did not answer; OwnDatabase.Commit has the error.
func (t *ownTrie) Hash() common.Hash {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if len(t.changes) == 0 {
		return t.parent
	}
	if t.root == (common.Hash{}) {
		t.root = t.database.root(t.parent, t.changes)
	}
	return t.root
}

// Hash is that of an empty storage, so that accounts are the same with all roots of the state.
func (ownStorage) Hash() common.Hash { return types.EmptyRootHash }

// Commit gives the root. What is to be written is staged, so there are no nodes.
func (t *ownTrie) Commit(bool) (common.Hash, *trienode.NodeSet) {
	root := t.Hash()
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.committed = true
	return root, nil
}

// Commit has nothing to do: the changes are those of the one state.
func (s ownStorage) Commit(bool) (common.Hash, *trienode.NodeSet) { return s.Hash(), nil }

func (t *ownTrie) UpdateAccount(address common.Address, account *types.StateAccount, _ int) error {
	key := t.database.keys.account(crypto.Keccak256Hash(address[:]))
	return t.change(key, types.SlimAccountRLP(*account))
}

func (t *ownTrie) DeleteAccount(address common.Address) error {
	return t.change(t.database.keys.account(crypto.Keccak256Hash(address[:])), nil)
}

func (t *ownTrie) UpdateStorage(address common.Address, slot, value []byte) error {
	if len(value) == 0 {
		value = nil
	}
	key := t.database.keys.slot(crypto.Keccak256Hash(address[:]), crypto.Keccak256Hash(slot))
	return t.change(key, bytes.Clone(value))
}

func (t *ownTrie) DeleteStorage(address common.Address, slot []byte) error {
	return t.UpdateStorage(address, slot, nil)
}

func (t *ownTrie) UpdateContractCode(_ common.Address, hash common.Hash, code []byte) error {
	if len(code) == 0 {
		return nil
	}
	return t.change(t.database.keys.code(hash), code)
}

func (t *ownTrie) UpdateAccountBatch(
	addresses []common.Address, accounts []*types.StateAccount, lengths []int,
) error {
	for i, address := range addresses {
		if err := t.UpdateAccount(address, accounts[i], lengths[i]); err != nil {
			return err
		}
	}
	return nil
}

func (t *ownTrie) UpdateStorageBatch(address common.Address, slots, values [][]byte) error {
	for i, slot := range slots {
		if err := t.UpdateStorage(address, slot, values[i]); err != nil {
			return err
		}
	}
	return nil
}

// Reads are those of Database.Reader. The others are of tries alone.
func (t *ownTrie) GetAccount(common.Address) (*types.StateAccount, error) { return nil, errOwn }
func (t *ownTrie) GetStorage(common.Address, []byte) ([]byte, error)      { return nil, errOwn }
func (t *ownTrie) PrefetchAccount([]common.Address) error                 { return errOwn }
func (t *ownTrie) PrefetchStorage(common.Address, [][]byte) error         { return errOwn }
func (t *ownTrie) NodeIterator([]byte) (trie.NodeIterator, error)         { return nil, errOwn }
func (t *ownTrie) Prove([]byte, ethdb.KeyValueWriter) error               { return errOwn }
func (t *ownTrie) GetKey([]byte) []byte                                   { return nil }
func (t *ownTrie) Witness() map[string][]byte                             { return nil }
func (t *ownTrie) IsUBT() bool                                            { return false }
