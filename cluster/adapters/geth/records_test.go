package geth

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/holiman/uint256"

	"coppice.dev/sdk/coppice"
)

// record is a record as the ledger has it. An empty value is that of a record that is deleted.
type record struct {
	Key   hexutil.Bytes `json:"key"`
	Value hexutil.Bytes `json:"value"`
}

func (r record) compare(t *testing.T, key, value []byte) {
	t.Helper()
	if string(r.Key) != string(key) || string(r.Value) != string(value) {
		t.Errorf("the record is\n\"key\": \"0x%x\", \"value\": \"0x%x\"", key, value)
	}
}

// TestRecordsAreThoseOfOtherAdapters compares records with a table. The adapter for revm has to
// make the same ones, so that each reads the other's ledgers.
func TestRecordsAreThoseOfOtherAdapters(t *testing.T) {
	var table struct {
		Prefix   string
		Accounts []struct {
			Address common.Address
			Nonce   hexutil.Uint64
			Balance *uint256.Int
			Code    hexutil.Bytes
			record
		}
		Slots []struct {
			Address     common.Address
			Slot, Holds common.Hash
			record
		}
		Codes []struct {
			Code hexutil.Bytes
			record
		}
		Roots []struct {
			Root           common.Hash
			Epoch, Version uint64
			record
		}
		Heads []struct {
			Parent common.Hash
			record
		}
	}
	text := must(os.ReadFile("testdata/records.json"))(t)
	if err := json.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.Accounts) == 0 || len(table.Slots) == 0 || len(table.Codes) == 0 || len(table.Roots) == 0 ||
		len(table.Heads) == 0 {
		t.Fatal("the table lacks a kind of records")
	}
	k := keys(table.Prefix)
	for _, a := range table.Accounts {
		account := types.StateAccount{
			Nonce: uint64(a.Nonce), Balance: a.Balance, Root: types.EmptyRootHash, CodeHash: crypto.Keccak256(a.Code),
		}
		a.compare(t, k.account(crypto.Keccak256Hash(a.Address[:])), types.SlimAccountRLP(account))
	}
	for _, s := range table.Slots {
		address, slot := crypto.Keccak256Hash(s.Address[:]), crypto.Keccak256Hash(s.Slot[:])
		update := Update{Storages: map[common.Hash]map[common.Hash]common.Hash{address: {slot: s.Holds}}}
		key := k.slot(address, slot)
		s.compare(t, key, update.changes(k)[string(key)])
	}
	for _, c := range table.Codes {
		c.compare(t, k.code(crypto.Keccak256Hash(c.Code)), c.Code)
	}
	for _, r := range table.Roots {
		r.compare(t, k.root(r.Root), encodeStamp(coppice.Stamp{Epoch: r.Epoch, Version: r.Version}))
	}
	for _, h := range table.Heads {
		h.compare(t, k.head(), h.Parent[:])
	}
}
