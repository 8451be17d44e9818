package fabric

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb/stateleveldb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"coppice.dev/sdk/coppice"
	v1 "coppice.dev/sdk/v1"
)

// namespaces are public, private, hashed, and the one without a name.
var namespaces = []string{"", "ns", "ns$$hcoll", "ns$$pcoll", "ns1", "nt"}

// pairOf is a ledger and goleveldb, which must always agree.
type pairOf struct {
	*rand.Rand
	ledger, local statedb.VersionedDB
	// old is the ledger's database in a process that does not write any more, or nil.
	old statedb.VersionedDB
	// provider and other are the process that writes, and another channel of it.
	provider statedb.VersionedDBProvider
	other    statedb.VersionedDB
	options  Options
	large    bool
	// client opens providers, and direct reaches the ledger without a relay.
	client, direct *coppice.Client
	// blocks are those that stand, and version is the ledger's behind the newest.
	blocks []modelBlock
}

type modelBlock struct {
	batch   *statedb.UpdateBatch
	at      any
	version uint64
}

// begin opens a process that goes on with the ledger, and leaves the one that has written so far.
func (p *pairOf) begin(t *testing.T) {
	t.Helper()
	p.old = p.ledger
	p.provider = open(t, p.client, p.options)
	if p.large {
		shrink(p.provider)
	}
	p.ledger = must(p.provider.GetDBHandle("mychannel", nil))(t)
	p.other = must(p.provider.GetDBHandle("other", nil))(t)
}

// rollback takes some blocks away, and ends the process that has written them.
func (p *pairOf) rollback(t *testing.T) {
	t.Helper()
	kept := len(p.blocks) - 1 - p.IntN(3)
	if kept < 1 {
		return
	}
	p.blocks = p.blocks[:kept]
	order := coppice.Order{Principal: "test", Reason: "test"}
	must(p.direct.Rollback(limited(t), p.blocks[kept-1].version, order))(t)
	if err := p.ledger.ApplyUpdates(statedb.NewUpdateBatch(), nil); !errors.Is(err, ErrMoved) {
		t.Fatalf("a block on one that is gone: %v", err)
	}
	local := must(stateleveldb.NewVersionedDBProvider(t.TempDir()))(t)
	t.Cleanup(local.Close)
	p.local = must(local.GetDBHandle("mychannel", nil))(t)
	for _, b := range p.blocks {
		if err := applyAt(p.local, b.batch, b.at); err != nil {
			t.Fatal(err)
		}
	}
	p.begin(t)
}

// applyAt gives Fabric a height whose type has no name here.
func applyAt(db statedb.VersionedDB, batch *statedb.UpdateBatch, at any) error {
	return applyWith(noHeight, db, batch, at)
}

func applyWith[H heightOf](_ *H, db statedb.VersionedDB, batch *statedb.UpdateBatch, at any) error {
	return any(db).(interface {
		ApplyUpdates(*statedb.UpdateBatch, *H) error
	}).ApplyUpdates(batch, at.(*H))
}

// neighbours write beside a block: another program, and another channel of the process. The result
// waits for them.
func (p *pairOf) neighbours(t *testing.T, number int) (wait func()) {
	var writers sync.WaitGroup
	for range p.IntN(3) {
		key := fmt.Append(nil, "neighbour ", p.IntN(3))
		writers.Go(func() {
			batch := new(coppice.Batch).Put(key, fmt.Append(nil, number))
			if _, err := p.direct.Commit(limited(t), batch); err != nil {
				t.Error(err)
			}
		})
	}
	if p.IntN(2) == 0 {
		writers.Go(func() {
			if err := apply(p.other, number, block(number, "a", "b")); err != nil {
				t.Error(err)
			}
		})
	}
	return writers.Wait
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
	batch := statedb.NewUpdateBatch()
	for tx := range p.IntN(40) {
		namespace, key, at := p.namespace(), p.key(), heightAt(noHeight, uint64(number), uint64(tx))
		value, metadata := fmt.Appendf(nil, "%d/%d", number, tx), []byte("m")
		if p.IntN(4) == 0 {
			value = []byte{}
		}
		if p.IntN(2) == 0 {
			metadata = [][]byte{nil, {}}[p.IntN(2)]
		}
		if p.IntN(3) == 0 {
			batch.Delete(namespace, key, at)
		} else {
			batch.PutValAndMetadata(namespace, key, value, metadata, at)
		}
	}
	at := heightAt(noHeight, uint64(number), uint64(p.IntN(3)))
	if p.IntN(4) == 0 {
		at = nil
	}
	wait := p.neighbours(t, number)
	err := p.ledger.ApplyUpdates(batch, at)
	wait()
	if err = errors.Join(err, p.local.ApplyUpdates(batch, at)); err != nil {
		t.Fatal(err)
	}
	version := innerDatabase(p.ledger).at.Version
	p.blocks = append(p.blocks, modelBlock{batch: batch, at: at, version: version})
}

// follow checks that the process that does not write any more sees what the other one wrote.
func (p *pairOf) follow(t *testing.T) {
	t.Helper()
	if p.old == nil {
		return
	}
	namespace, keys := p.namespace(), []string{p.key(), p.key(), p.key()}
	expected := must(p.local.GetStateMultipleKeys(namespace, keys))(t)
	eventually(t, fmt.Sprintf("keys %q of %q in another process", keys, namespace), func() bool {
		return reflect.DeepEqual(must(p.old.GetStateMultipleKeys(namespace, keys))(t), expected)
	})
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

// cutStreams breaks the stream of heads before some of the headers.
func cutStreams(r *relay, random *rand.Rand) {
	r.set(func() {
		r.onHeads = func(*v1.WatchHeadsResponse) error {
			var cut bool
			if r.set(func() { cut = random.IntN(16) == 0 }); cut {
				return status.Error(codes.Unavailable, "the stream is cut")
			}
			return nil
		}
	})
}

// Blocks, beside other writers, restarts and rollbacks of the ledger: all reads are those of
// goleveldb with the same blocks, whatever the cache holds.
func TestTheStateIsThatOfGoleveldb(t *testing.T) {
	k := keysOf("fabric/", 0, "mychannel")
	for shards, splits := range map[int][][]byte{
		1: nil, 4: {k.data("ns", "a"), k.data("ns$$hcoll", "\x01"), k.data("ns1", "")},
	} {
		for _, large := range []bool{false, true} {
			for _, bytes := range []int{0, 3000} {
				name := fmt.Sprintf("%d shards, large blocks %v, %d bytes of cache", shards, large, bytes)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					local := must(stateleveldb.NewVersionedDBProvider(t.TempDir()))(t)
					t.Cleanup(local.Close)
					l := startLedger(t, splits...)
					r := startRelay(t, l)
					cutStreams(r, rand.New(rand.NewPCG(8, uint64(shards))))
					p := &pairOf{
						Rand:  rand.New(rand.NewPCG(7, uint64(shards+bytes))),
						local: must(local.GetDBHandle("mychannel", nil))(t),
						large: large, options: Options{CacheBytes: bytes},
						client: l.connect(t, r.endpoint), direct: l.connect(t, ""),
					}
					p.begin(t)
					for number := 1; number <= 25; number++ {
						switch p.IntN(8) {
						case 0:
							p.begin(t)
						case 1:
							p.rollback(t)
						}
						p.write(t, number)
						for range 4 {
							p.read(t)
						}
						p.follow(t)
					}
				})
			}
		}
	}
}

// shrink makes a provider take most blocks for large ones, of several pages.
func shrink(p statedb.VersionedDBProvider) {
	inner := innerOf(p)
	inner.batchBytes, inner.pageBytes = spareBytes+300, 100
}
