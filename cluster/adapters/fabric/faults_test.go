package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/coppicetest"
	v1 "coppice.dev/sdk/v1"
)

// inner is the provider behind the types of Fabric.
func (p *Provider[H]) inner() *provider { return p.provider }

func innerOf(p statedb.VersionedDBProvider) *provider {
	return p.(interface{ inner() *provider }).inner()
}

// heightAt gives a height of the type of a field of Fabric.
func heightAt[H heightOf](_ *H, block, tx uint64) *H { return heightFrom[H](&height{block, tx}) }

// noHeight has the type of Fabric's heights.
var noHeight = statedb.VersionedValue{}.Version

// block makes the updates of a block: keys with a value.
func block(number int, keys ...string) *statedb.UpdateBatch {
	batch := statedb.NewUpdateBatch()
	for i, key := range keys {
		batch.Put(
			"ns",
			key,
			fmt.Appendf(nil, "%s in block %d", key, number),
			heightAt(noHeight, uint64(number), uint64(i)),
		)
	}
	return batch
}

// apply writes a block.
func apply(db statedb.VersionedDB, number int, batch *statedb.UpdateBatch) error {
	return db.ApplyUpdates(batch, heightAt(noHeight, uint64(number), 7))
}

// checkBlock compares a key and the savepoint with those of a block.
func checkBlock(t *testing.T, db statedb.VersionedDB, number int, keys ...string) {
	t.Helper()
	if at := must(db.GetLatestSavePoint())(t); at == nil || at.BlockNum != uint64(number) ||
		at.TxNum != 7 {
		t.Errorf("the savepoint is %v, not that of block %d", at, number)
	}
	for _, key := range keys {
		v := must(db.GetState("ns", key))(t)
		if v == nil || string(v.Value) != fmt.Sprintf("%s in block %d", key, number) ||
			v.Version.BlockNum != uint64(number) {
			t.Errorf("%s is %v in block %d", key, v, number)
		}
	}
}

func versions(t *testing.T, client *coppice.Client) int {
	t.Helper()
	return int(must(client.Head(limited(t)))(t).Stamp.Version)
}

func TestABlockWhoseAnswerIsLostIsWrittenOnce(t *testing.T) {
	l := startLedger(t)
	r := startRelay(t, l)
	// Each block is sent up to three times, and the answer to the first two is lost.
	r.set(func() { r.lose = func(number int) bool { return number%3 != 0 } })
	db := must(open(t, l.connect(t, r.endpoint), Options{}).GetDBHandle("mychannel", nil))(t)
	for number := 1; number <= 5; number++ {
		if err := apply(db, number, block(number, "a", "b")); err != nil {
			t.Fatal(err)
		}
		checkBlock(t, db, number, "a", "b")
	}
	if count := versions(t, l.connect(t, "")); count != 5 || r.lost < 5 {
		t.Errorf("%d versions for 5 blocks, %d answers lost", count, r.lost)
	}
}

// impatient gives a provider whose calls do not wait.
func impatient(
	t *testing.T,
	l *ledger,
	endpoint string,
	options Options,
) statedb.VersionedDBProvider {
	t.Helper()
	patient := l.connect(t, endpoint)
	p := open(t, patient, options)
	quick := l.quick(t, endpoint)
	innerOf(p).client = quick
	return p
}

func TestABlockInDoubtIsWrittenOnceWhenItComesAgain(t *testing.T) {
	l := startLedger(t)
	r := startRelay(t, l)
	db := must(impatient(t, l, r.endpoint, Options{}).GetDBHandle("mychannel", nil))(t)
	for number := 1; number <= 4; number++ {
		// Of every second block the request is lost, and of the others the answer.
		always := func(int) bool { return true }
		r.set(func() {
			if r.lose = always; number%2 == 0 {
				r.refuse = always
			}
		})
		if err := apply(db, number, block(number, "a")); !coppice.OutcomeUnknown(err) {
			t.Fatalf("the outcome is known: %v", err)
		}
		r.set(func() { r.refuse, r.lose = nil, nil })
		if number == 3 {
			// The savepoint tells what became of it.
			checkBlock(t, db, number, "a")
		}
		if err := apply(db, number, block(number, "a")); err != nil {
			t.Fatal(err)
		}
		checkBlock(t, db, number, "a")
	}
	if count := versions(t, l.connect(t, "")); count != 4 {
		t.Errorf("%d versions for 4 blocks", count)
	}
}

func TestASecondWriterIsRefused(t *testing.T) {
	l := startLedger(t)
	client := l.connect(t, "")
	first := must(open(t, client, Options{}).GetDBHandle("mychannel", nil))(t)
	if err := apply(first, 1, block(1, "a")); err != nil {
		t.Fatal(err)
	}
	empty := must(open(t, client, Options{}).GetDBHandle("empty", nil))(t)
	filled := must(open(t, client, Options{}).GetDBHandle("empty", nil))(t)
	if err := apply(filled, 1, block(1, "a")); err != nil {
		t.Fatal(err)
	}
	if err := apply(empty, 1, block(1, "b")); !errors.Is(err, ErrMoved) {
		t.Errorf("the second first block: %v", err)
	}
	// Other channels and other prefixes are in nobody's way.
	other := must(open(t, client, Options{Prefix: "other/"}).GetDBHandle("mychannel", nil))(t)
	second := open(t, client, Options{})
	for _, db := range []statedb.VersionedDB{other, must(second.GetDBHandle("another", nil))(t)} {
		if err := apply(db, 1, block(1, "z")); err != nil {
			t.Fatal(err)
		}
	}
	if err := apply(first, 2, block(2, "a")); err != nil {
		t.Fatal(err)
	}
	db := must(second.GetDBHandle("mychannel", nil))(t)
	checkBlock(t, db, 2, "a")
	if err := apply(db, 3, block(3, "a")); err != nil {
		t.Fatal(err)
	}
	for number := 3; number <= 4; number++ {
		if err := apply(first, number, block(number, "b")); !errors.Is(err, ErrMoved) {
			t.Errorf("block %d of the first writer: %v", number, err)
		}
	}
	if v := must(db.GetState("ns", "b"))(t); v != nil {
		t.Errorf("the first writer wrote %v", v)
	}
	// A restart begins where the second writer ended, which is then fenced.
	again := must(open(t, client, Options{}).GetDBHandle("mychannel", nil))(t)
	checkBlock(t, again, 3, "a")
	if err := apply(again, 4, block(4, "a")); err != nil {
		t.Fatal(err)
	}
	if err := apply(db, 4, block(4, "a")); !errors.Is(err, ErrMoved) {
		t.Errorf("the second writer: %v", err)
	}
}

func TestASecondWriterIsFoundBehindACommitInDoubt(t *testing.T) {
	l := startLedger(t)
	r := startRelay(t, l)
	for _, reaches := range []bool{false, true} {
		options := Options{Prefix: fmt.Sprintf("%v/", reaches)}
		first := must(impatient(t, l, r.endpoint, options).GetDBHandle("mychannel", nil))(t)
		r.set(func() {
			r.lose, r.refuse = func(int) bool { return true }, func(int) bool { return !reaches }
		})
		if err := apply(first, 1, block(1, "a")); !coppice.OutcomeUnknown(err) {
			t.Fatalf("the outcome is known: %v", err)
		}
		r.set(func() { r.refuse, r.lose = nil, nil })
		second := must(open(t, l.connect(t, ""), options).GetDBHandle("mychannel", nil))(t)
		if err := apply(second, 1, block(1, "a")); err != nil {
			t.Fatal(err)
		}
		// It is the very block, and yet another process wrote it.
		for range 2 {
			if err := apply(first, 1, block(1, "a")); !errors.Is(err, ErrMoved) {
				t.Errorf("the first writer, whose block reached the ledger %v: %v", reaches, err)
			}
		}
	}
}

func TestARollbackOfTheLedgerIsAnotherWriter(t *testing.T) {
	l := startLedger(t)
	client := l.connect(t, "")
	db := must(open(t, client, Options{}).GetDBHandle("mychannel", nil))(t)
	for number := 1; number <= 3; number++ {
		if err := apply(db, number, block(number, "a")); err != nil {
			t.Fatal(err)
		}
	}
	must(client.Rollback(limited(t), 2, coppice.Order{Principal: "test", Reason: "test"}))(t)
	if err := apply(db, 4, block(4, "a")); !errors.Is(err, ErrMoved) {
		t.Errorf("a block on one that is gone: %v", err)
	}
	again := must(open(t, client, Options{}).GetDBHandle("mychannel", nil))(t)
	checkBlock(t, again, 2, "a")
	if err := apply(again, 3, block(3, "a")); err != nil {
		t.Error(err)
	}
}

func TestARollbackBehindACommitInDoubtIsAnotherWriter(t *testing.T) {
	l := startLedger(t)
	r := startRelay(t, l)
	db := must(impatient(t, l, r.endpoint, Options{}).GetDBHandle("mychannel", nil))(t)
	for number := 1; number <= 3; number++ {
		if err := apply(db, number, block(number, "a")); err != nil {
			t.Fatal(err)
		}
	}
	r.set(func() { r.refuse = func(int) bool { return true } })
	if err := apply(db, 4, block(4, "a")); !coppice.OutcomeUnknown(err) {
		t.Fatalf("the outcome is known: %v", err)
	}
	r.set(func() { r.refuse = nil })
	order := coppice.Order{Principal: "test", Reason: "test"}
	must(l.connect(t, "").Rollback(limited(t), 2, order))(t)
	// The record is one that this process has written, but not the last one.
	for range 2 {
		if err := apply(db, 4, block(4, "a")); !errors.Is(err, ErrMoved) {
			t.Errorf("a block on one that is gone: %v", err)
		}
	}
}

func TestBlocksComeThroughTheDeathOfTheLedger(t *testing.T) {
	l := startLedger(t)
	db := must(open(t, l.connect(t, ""), Options{}).GetDBHandle("mychannel", nil))(t)
	done := make(chan error, 1)
	var number atomic.Int64
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			next := int(number.Add(1))
			if err := apply(db, next, block(next, "a", "b", "c")); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 4 {
		// It dies after some blocks, at any place in one.
		for target := number.Load() + 3; number.Load() < target; {
			select {
			case err := <-done:
				t.Fatal(err)
			case <-time.After(time.Millisecond):
			}
		}
		l.Kill()
		l.Restart(t)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	again := must(open(t, l.connect(t, ""), Options{}).GetDBHandle("mychannel", nil))(t)
	checkBlock(t, again, int(number.Load()), "a", "b", "c")
	if count := versions(t, l.connect(t, "")); count != int(number.Load()) {
		t.Errorf("%d versions for %d blocks", count, number.Load())
	}
}

func TestAStartWaitsForTheLedgerWithinItsLimit(t *testing.T) {
	l := startLedger(t)
	client := l.quick(t, "")
	l.Kill()
	_, err := New(limited(t), client, Options{StartTimeout: 500 * time.Millisecond})
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("without a ledger: %v", err)
	}
	opened := make(chan error, 1)
	go func() {
		p, err := New(limited(t), client, Options{})
		if err == nil {
			defer p.Close()
			_, err = p.GetDBHandle("mychannel", nil)
		}
		opened <- err
	}()
	l.Restart(t)
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

func TestBlocksComeThroughConnectionsThatBreakAnywhere(t *testing.T) {
	const length = 30
	l := startLedger(t)
	// From the middle of an answer with a receipt to some answers.
	cut := coppicetest.StartCutter(t, l.Ledger, func(cuts int64) int64 { return 1500 + 331*(cuts%20) })
	db := must(open(t, l.connect(t, cut.Endpoint), Options{}).GetDBHandle("mychannel", nil))(t)
	for number := 1; number <= length; number++ {
		if err := apply(db, number, block(number, "a", "b", fmt.Sprint(number))); err != nil {
			t.Fatal(err)
		}
		checkBlock(t, db, number, "a", "b", fmt.Sprint(number))
		expectRead(t, db, fmt.Sprint(number+1), "")
	}
	if count := versions(t, l.connect(t, "")); count != length || cut.Cuts.Load() < 5 {
		t.Errorf("%d versions for %d blocks, %d connections cut", count, length, cut.Cuts.Load())
	}
}

// lies are what a server may do with a value on its way.
var lies = map[string]func(value []byte) []byte{
	"altered":  func(value []byte) []byte { return append([]byte("A"), value[1:]...) },
	"removed":  func([]byte) []byte { return nil },
	"extended": func(value []byte) []byte { return append(append([]byte{}, value...), '!') },
}

func TestValuesOfALyingServerAreRefused(t *testing.T) {
	l := startLedger(t)
	r := startRelay(t, l)
	before := must(open(t, l.connect(t, ""), Options{}).GetDBHandle("mychannel", nil))(t)
	if err := apply(before, 1, block(1, "a", "b")); err != nil {
		t.Fatal(err)
	}
	told := []byte("a in block 1")
	for what, lie := range lies {
		db := must(open(t, l.connect(t, r.endpoint), Options{}).GetDBHandle("mychannel", nil))(t)
		r.set(func() {
			r.onBatchGet = func(_ *v1.BatchGetRequest, answer *v1.BatchGetResponse) {
				answer.Proof = bytes.Replace(answer.Proof, told, lie(told), 1)
			}
			r.onRange = func(message *v1.RangeResponse) {
				for _, record := range message.Records {
					record.Value = lie(record.Value)
				}
			}
		})
		checkRefused(t, db, what)
		// A read that is not proven fails alone.
		r.set(func() { r.onBatchGet, r.onRange = nil, nil })
		checkBlock(t, db, 1, "a", "b")
	}
}

func checkRefused(t *testing.T, db statedb.VersionedDB, what string) {
	t.Helper()
	bulk := db.(statedb.BulkOptimizable)
	defer bulk.ClearCachedVersions()
	_, one := db.GetState("ns", "a")
	_, several := db.GetStateMultipleKeys("ns", []string{"b", "a"})
	loaded := bulk.LoadCommittedVersions([]*statedb.CompositeKey{{Namespace: "ns", Key: "a"}})
	records := must(db.GetStateRangeScanIterator("ns", "", ""))(t)
	defer records.Close()
	_, ranged := records.Next()
	all := must(db.GetFullScanIterator(func(string) bool { return false }))(t)
	defer all.Close()
	_, scanned := all.Next()
	for call, err := range map[string]error{
		"GetState": one, "GetStateMultipleKeys": several, "LoadCommittedVersions": loaded,
		"GetStateRangeScanIterator": ranged, "GetFullScanIterator": scanned,
	} {
		if !errors.Is(err, coppice.ErrUntrusted) {
			t.Errorf("%s of a value that is %s: %v", call, what, err)
		}
	}
	if _, known := bulk.GetCachedVersion("ns", "a"); known {
		t.Errorf("a version that is %s is cached", what)
	}
}
