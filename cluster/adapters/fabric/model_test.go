package fabric

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb/stateleveldb"
)

// namespaces are public, private, hashed, and the one without a name.
var namespaces = []string{"", "ns", "ns$$hcoll", "ns$$pcoll", "ns1", "nt"}

// pairOf is a ledger and goleveldb, which must always agree.
type pairOf struct {
	*rand.Rand
	ledger, local statedb.VersionedDB
}

// key gives a key that others begin with, also in the bytes that divide keys.
func (p *pairOf) key() string {
	key := make([]byte, p.IntN(5))
	for i := range key {
		key[i] = []byte{0, 1, 'a', 'b', 0xff}[p.IntN(5)]
	}
	return string(key)
}

func (p *pairOf) namespace() string { return namespaces[p.IntN(len(namespaces))] }

// write applies the same random block to both.
func (p *pairOf) write(t *testing.T, number int) {
	t.Helper()
	batches := []*statedb.UpdateBatch{statedb.NewUpdateBatch(), statedb.NewUpdateBatch()}
	for tx := range p.IntN(40) {
		namespace, key, at := p.namespace(), p.key(), heightAt(noHeight, uint64(number), uint64(tx))
		value, metadata := fmt.Appendf(nil, "%d/%d", number, tx), []byte("m")
		if p.IntN(4) == 0 {
			value = []byte{}
		}
		if p.IntN(2) == 0 {
			metadata = [][]byte{nil, {}}[p.IntN(2)]
		}
		isDelete := p.IntN(3) == 0
		for _, batch := range batches {
			if isDelete {
				batch.Delete(namespace, key, at)
			} else {
				batch.PutValAndMetadata(namespace, key, value, metadata, at)
			}
		}
	}
	at := heightAt(noHeight, uint64(number), uint64(p.IntN(3)))
	if p.IntN(4) == 0 {
		at = nil
	}
	for i, db := range []statedb.VersionedDB{p.ledger, p.local} {
		if err := db.ApplyUpdates(batches[i], at); err != nil {
			t.Fatal(err)
		}
	}
}

// same calls both, and compares what comes back.
func (p *pairOf) same(t *testing.T, what string, call func(statedb.VersionedDB) (any, error)) {
	t.Helper()
	ours, theirs := must(call(p.ledger))(t), must(call(p.local))(t)
	if !reflect.DeepEqual(ours, theirs) {
		t.Fatalf("%s\nhas %v on the ledger\nand %v on goleveldb", what, ours, theirs)
	}
}

// all reads an iterator to its end.
func all(t *testing.T, next func() (*statedb.VersionedKV, error)) (told []string) {
	t.Helper()
	for {
		pair := must(next())(t)
		if pair == nil {
			return told
		}
		told = append(told, fmt.Sprintf("%q %q %q %q %v",
			pair.Namespace, pair.Key, pair.Value, pair.Metadata, pair.Version))
	}
}

// read compares reads of all kinds.
func (p *pairOf) read(t *testing.T) {
	t.Helper()
	namespace, start, end := p.namespace(), p.key(), p.key()
	keys := []string{p.key(), p.key(), p.key(), start, start}
	p.same(t, "the savepoint", func(db statedb.VersionedDB) (any, error) {
		return db.GetLatestSavePoint()
	})
	p.same(t, fmt.Sprintf("keys %q", keys), func(db statedb.VersionedDB) (any, error) {
		return db.GetStateMultipleKeys(namespace, keys)
	})
	p.same(t, fmt.Sprintf("key %q", start), func(db statedb.VersionedDB) (any, error) {
		return db.GetState(namespace, start)
	})
	p.same(t, fmt.Sprintf("the version of %q", start), func(db statedb.VersionedDB) (any, error) {
		return db.GetVersion(namespace, start)
	})
	p.same(t, fmt.Sprintf("from %q to %q", start, end), func(db statedb.VersionedDB) (any, error) {
		records := must(db.GetStateRangeScanIterator(namespace, start, end))(t)
		defer records.Close()
		return all(t, records.Next), nil
	})
	size := int32(1 + p.IntN(4))
	p.same(t, fmt.Sprintf("pages of %d", size), func(db statedb.VersionedDB) (any, error) {
		var pages [][]string
		for at := start; ; {
			records, err := db.GetStateRangeScanIteratorWithPagination(namespace, at, "", size)
			if err != nil {
				return nil, err
			}
			pages = append(pages, all(t, records.Next))
			if at = records.GetBookmarkAndClose(); at == "" {
				return pages, nil
			}
		}
	})
	skipped := p.IntN(1 << len(namespaces))
	skip := func(namespace string) bool {
		return skipped>>slices.Index(namespaces, namespace)&1 == 1
	}
	p.same(t, fmt.Sprintf("all without %b", skipped), func(db statedb.VersionedDB) (any, error) {
		records := must(db.GetFullScanIterator(skip))(t)
		defer records.Close()
		return all(t, records.Next), nil
	})
}

func TestTheStateIsThatOfGoleveldb(t *testing.T) {
	k := keysOf("fabric/", 0, "mychannel")
	for shards, splits := range map[int][][]byte{
		1: nil, 4: {k.data("ns", "a"), k.data("ns$$hcoll", "\x01"), k.data("ns1", "")},
	} {
		for _, large := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d shards, large blocks %v", shards, large), func(t *testing.T) {
				t.Parallel()
				local := must(stateleveldb.NewVersionedDBProvider(t.TempDir()))(t)
				defer local.Close()
				ours := open(t, startLedger(t, splits...).connect(t, ""), Options{})
				if large {
					shrink(ours)
				}
				p := &pairOf{
					Rand:   rand.New(rand.NewPCG(7, uint64(shards))),
					ledger: must(ours.GetDBHandle("mychannel", nil))(t),
					local:  must(local.GetDBHandle("mychannel", nil))(t),
				}
				for number := 1; number <= 25; number++ {
					p.write(t, number)
					for range 4 {
						p.read(t)
					}
				}
			})
		}
	}
}

// shrink makes a provider take most blocks for large ones, of several pages.
func shrink(p statedb.VersionedDBProvider) {
	inner := innerOf(p)
	inner.batchBytes, inner.pageBytes = spareBytes+300, 100
}
