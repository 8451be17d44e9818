package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"

	"coppice.dev/sdk/coppice"
	cached "coppice.dev/sdk/state"
	v1 "coppice.dev/sdk/v1"
)

// holdHeads keeps back what the stream shows from now on, until the test ends or the result is
// called.
func (r *relay) holdHeads(t testing.TB) (release func()) {
	held := make(chan struct{})
	release = sync.OnceFunc(func() {
		r.set(func() { r.onHeads = nil })
		close(held)
	})
	r.set(func() {
		r.onHeads = func(*v1.WatchHeadsResponse) error { <-held; return nil }
	})
	t.Cleanup(release)
	return release
}

// expectReads checks how many calls of a read reach the ledger.
func (r *relay) expectReads(t *testing.T, expected int, what string, read func()) {
	t.Helper()
	count := func() (reads int) { r.set(func() { reads = r.reads }); return reads }
	before := count()
	read()
	if got := count() - before; got != expected {
		t.Errorf("%s: %d reads of the ledger, not %d", what, got, expected)
	}
}

// eventually repeats a check until it holds: what others wrote comes by the stream.
func eventually(t *testing.T, what string, check func() (holds bool)) {
	t.Helper()
	for ctx := limited(t); !check(); {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%s: it does not come", what)
		}
	}
}

// reads gives a check that a key has a value; an empty one stands for none.
func reads(t *testing.T, db statedb.VersionedDB, key, value string) func() bool {
	return func() bool {
		v := must(db.GetState("ns", key))(t)
		return v == nil && value == "" || v != nil && string(v.Value) == value
	}
}

func expectRead(t *testing.T, db statedb.VersionedDB, key, value string) {
	t.Helper()
	if !reads(t, db, key, value)() {
		t.Errorf("%s is %v, not %q", key, must(db.GetState("ns", key))(t), value)
	}
}

func TestAKeyThatWasReadIsReadWithoutTheLedger(t *testing.T) {
	l := startLedger(t)
	r := startRelay(t, l)
	before := must(open(t, l.connect(t, ""), Options{}).GetDBHandle("mychannel", nil))(t)
	first := block(1, "b", "c")
	at := heightAt(noHeight, 1, 7)
	first.PutValAndMetadata("ns", "a", []byte("a in block 1"), []byte("of a"), at)
	if err := apply(before, 1, first); err != nil {
		t.Fatal(err)
	}
	db := must(open(t, l.connect(t, r.endpoint), Options{}).GetDBHandle("mychannel", nil))(t)
	read := func() {
		for _, key := range []string{"a", "b", "c"} {
			expectRead(t, db, key, key+" in block 1")
			must(db.GetVersion("ns", key))(t)
		}
		expectRead(t, db, "none", "")
	}
	r.expectReads(t, 4, "cold", read)
	// What Fabric does with a value stays with Fabric.
	given := must(db.GetState("ns", "a"))(t)
	given.Value[0], given.Metadata[0] = 'X', 'X'
	r.expectReads(t, 0, "warm", read)
	if v := must(db.GetState("ns", "a"))(t); string(v.Metadata) != "of a" {
		t.Errorf("the metadata are %q", v.Metadata)
	}
	updates := block(2, "b")
	updates.Delete("ns", "c", heightAt(noHeight, 2, 2))
	if err := apply(db, 2, updates); err != nil {
		t.Fatal(err)
	}
	r.expectReads(t, 0, "after a block", func() {
		keys := []string{"a", "b", "c", "none"}
		values := must(db.GetStateMultipleKeys("ns", keys))(t)
		if string(values[0].Value) != "a in block 1" || string(values[1].Value) != "b in block 2" ||
			values[2] != nil || values[3] != nil {
			t.Errorf("%v", values)
		}
	})
}

// The stream brings nothing, so the cache has of the blocks what this process wrote, if anything.
func TestABlockIsReadWhenItIsWrittenWithoutTheStream(t *testing.T) {
	l := startLedger(t)
	r := startRelay(t, l)
	p := open(t, l.connect(t, r.endpoint), Options{})
	db := must(p.GetDBHandle("mychannel", nil))(t)
	r.holdHeads(t)
	for number := 1; number <= 3; number++ {
		updates := block(number, "a", "b")
		if number == 3 {
			updates.Delete("ns", "b", heightAt(noHeight, 3, 7))
		}
		if err := apply(db, number, updates); err != nil {
			t.Fatal(err)
		}
		expectRead(t, db, "a", fmt.Sprintf("a in block %d", number))
	}
	expectRead(t, db, "b", "")
	// Another program writes, so that the next block is not the version after the last one.
	must(l.connect(t, "").Commit(limited(t), new(coppice.Batch).Put([]byte("other"), nil)))(t)
	if err := apply(db, 4, block(4, "a")); err != nil {
		t.Fatal(err)
	}
	expectRead(t, db, "a", "a in block 4")
	expectRead(t, db, "b", "")
	if err := p.Drop("mychannel"); err != nil {
		t.Fatal(err)
	}
	expectRead(t, db, "a", "")
	records := &initial{keys: []string{"a", "b"}}
	if err := p.ImportFromSnapshot("mychannel", heightAt(noHeight, 1, 0), records); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b"} {
		if v := must(db.GetState("bank", key))(t); v == nil || v.Version.BlockNum != 1 {
			t.Errorf("%s is %v after an import", key, v)
		}
	}
}

// shareVersion writes keys by a batch each, until two of them are in one version.
func shareVersion(t *testing.T, client *coppice.Client) (keys [2][]byte, ours *coppice.Committed) {
	t.Helper()
	const writers, roundsMax = 6, 100
	for round := range roundsMax {
		var committed [writers]*coppice.Committed
		key := func(i int) []byte { return fmt.Append(nil, "round ", round, ", key ", i) }
		var all sync.WaitGroup
		for i := range writers {
			all.Go(func() {
				committed[i] = must(client.Commit(limited(t), new(coppice.Batch).Put(key(i), key(i))))(t)
			})
		}
		all.Wait()
		for i, one := range committed {
			for j, other := range committed[:i] {
				if one.Stamp == other.Stamp {
					return [2][]byte{key(i), key(j)}, one
				}
			}
		}
	}
	t.Fatal("each batch has a version of its own")
	return
}

// A version may have batches of others besides the block. What those wrote is not the block's.
func TestABlockThatSharesItsVersionIsLeftToTheStream(t *testing.T) {
	l := startLedger(t)
	client := l.connect(t, "")
	keys, ours := shareVersion(t, client)
	cache := must(cached.New(client, cached.Options{}))(t)
	before := ours.Stamp
	before.Version--
	cache.Begin(before)
	if value := must(cache.At(before).Get(limited(t), keys[1]))(t); value != nil {
		t.Fatalf("the key is %q before", value)
	}
	d := &database{provider: &provider{client: client, cache: cache}, at: &ours.Stamp}
	if err := d.tell(ours, []change{{key: keys[0], value: keys[0]}}); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if value := must(cache.At(ours.Stamp).Get(limited(t), key))(t); !bytes.Equal(value, key) {
			t.Errorf("%q is %q", key, value)
		}
	}
}

func TestAReaderSeesWhatAnotherProcessWrites(t *testing.T) {
	l := startLedger(t)
	client := l.connect(t, "")
	writer := must(open(t, client, Options{}).GetDBHandle("mychannel", nil))(t)
	if err := apply(writer, 1, block(1, "a", "b")); err != nil {
		t.Fatal(err)
	}
	reader := must(open(t, l.connect(t, ""), Options{}).GetDBHandle("mychannel", nil))(t)
	expectRead(t, reader, "a", "a in block 1")
	expectRead(t, reader, "c", "")
	updates := block(2, "a", "c")
	updates.Delete("ns", "b", heightAt(noHeight, 2, 9))
	if err := apply(writer, 2, updates); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a put", reads(t, reader, "a", "a in block 2"))
	expectRead(t, reader, "b", "")
	expectRead(t, reader, "c", "c in block 2")
}

func TestReadsFollowARollback(t *testing.T) {
	l := startLedger(t)
	client := l.connect(t, "")
	r := startRelay(t, l)
	db := must(open(t, l.connect(t, r.endpoint), Options{}).GetDBHandle("mychannel", nil))(t)
	for number := 1; number <= 3; number++ {
		if err := apply(db, number, block(number, "a", fmt.Sprint("b", number))); err != nil {
			t.Fatal(err)
		}
	}
	order := coppice.Order{Principal: "test", Reason: "test"}
	release := r.holdHeads(t)
	must(client.Rollback(limited(t), 2, order))(t)
	// The stream does not tell, but the ledger refuses to read what is gone, and then shows its head.
	expectRead(t, db, "none", "")
	release()
	eventually(t, "a rollback", reads(t, db, "a", "a in block 2"))
	expectRead(t, db, "b3", "")
	expectRead(t, db, "b2", "b2 in block 2")
	if err := apply(db, 4, block(4, "a")); !errors.Is(err, ErrMoved) {
		t.Errorf("a block on one that is gone: %v", err)
	}
	again := must(open(t, client, Options{}).GetDBHandle("mychannel", nil))(t)
	if err := apply(again, 3, block(3, "c")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other branch", reads(t, db, "c", "c in block 3"))
	expectRead(t, db, "a", "a in block 2")
}

func TestAnIdleChannelIsReadBehindAPrune(t *testing.T) {
	l := startLedger(t)
	client := l.connect(t, "")
	r := startRelay(t, l)
	p := open(t, l.connect(t, r.endpoint), Options{})
	db := must(p.GetDBHandle("idle", nil))(t)
	if err := apply(db, 1, block(1, "a", "b")); err != nil {
		t.Fatal(err)
	}
	other := must(open(t, client, Options{}).GetDBHandle("busy", nil))(t)
	release := r.holdHeads(t)
	for number := 1; number <= 3; number++ {
		if err := apply(other, number, block(number, "a")); err != nil {
			t.Fatal(err)
		}
	}
	must(client.Prune(limited(t), 4, coppice.Order{Principal: "test", Reason: "test"}))(t)
	expectRead(t, db, "none", "")
	checkBlock(t, db, 1, "a", "b")
	release()
	eventually(t, "the prune", func() bool { return innerOf(p).cache.Metrics().Prunes > 0 })
	checkBlock(t, db, 1, "a", "b")
}

func TestTheCacheIsBounded(t *testing.T) {
	const bound = 20_000
	p := open(t, startLedger(t).connect(t, ""), Options{CacheBytes: bound})
	db := must(p.GetDBHandle("mychannel", nil))(t)
	var keys []string
	for i := range 200 {
		keys = append(keys, fmt.Sprint(i))
	}
	if err := apply(db, 1, block(1, keys...)); err != nil {
		t.Fatal(err)
	}
	for i, v := range must(db.GetStateMultipleKeys("ns", keys))(t) {
		if string(v.Value) != keys[i]+" in block 1" {
			t.Fatalf("%s is %q", keys[i], v.Value)
		}
	}
	checkBlock(t, db, 1, keys...)
	if m := innerOf(p).cache.Metrics(); m.Bytes > bound || m.Keys == 0 {
		t.Errorf("%+v", m)
	}
	if _, err := New(limited(t), nil, Options{CacheBytes: -1}); err == nil {
		t.Error("a negative bound is taken")
	}
}

// journalLies are what a server may do with the journal of a version on the stream.
var journalLies = map[string]func(*v1.WatchedJournal){
	"leaves out a batch": func(j *v1.WatchedJournal) {
		if len(j.Entries) > 0 {
			j.Entries = j.Entries[1:]
		}
	},
	"leaves out an operation list": func(j *v1.WatchedJournal) {
		if len(j.Lists) > 0 {
			j.Lists = j.Lists[1:]
		}
	},
	"names another key": func(j *v1.WatchedJournal) {
		for i, list := range j.Lists {
			j.Lists[i] = bytes.Replace(list, []byte("ns\x00a"), []byte("ns\x00c"), 1)
		}
	},
}

func TestAStreamThatLiesEndsAllReads(t *testing.T) {
	l := startLedger(t)
	writer := must(open(t, l.connect(t, ""), Options{}).GetDBHandle("mychannel", nil))(t)
	number := 0
	for what, lie := range journalLies {
		r := startRelay(t, l)
		db := must(open(t, l.connect(t, r.endpoint), Options{}).GetDBHandle("mychannel", nil))(t)
		must(db.GetState("ns", "a"))(t)
		r.set(func() {
			r.onHeads = func(m *v1.WatchHeadsResponse) error {
				if m.Journal != nil {
					lie(m.Journal)
				}
				return nil
			}
		})
		number++
		if err := apply(writer, number, block(number, "a", "b")); err != nil {
			t.Fatal(err)
		}
		var evidence *cached.Evidence
		eventually(t, what, func() bool {
			_, err := db.GetState("ns", "a")
			return errors.As(err, &evidence)
		})
		loaded := db.(statedb.BulkOptimizable).LoadCommittedVersions(
			[]*statedb.CompositeKey{{Namespace: "ns", Key: "b"}})
		if !errors.Is(loaded, coppice.ErrUntrusted) {
			t.Errorf("%s: versions are loaded: %v", what, loaded)
		}
	}
}

func TestAClientWithoutAKeyIsRefused(t *testing.T) {
	l := startLedger(t)
	options := coppice.Options{Endpoints: []string{l.endpoint}, Unverified: true}
	client := must(coppice.New(options))(t)
	t.Cleanup(func() { _ = client.Close() })
	if _, err := New(limited(t), client, Options{}); err == nil {
		t.Error("it is taken")
	}
}

// innerDatabase is the database behind the types of Fabric.
func innerDatabase(db statedb.VersionedDB) *database {
	return db.(interface{ inner() *database }).inner()
}

func (db *DB[H]) inner() *database { return db.database }
