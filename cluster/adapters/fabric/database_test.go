package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"

	"coppice.dev/sdk/coppice"
)

func TestTheVersionsOfABlockAreReadAtOnce(t *testing.T) {
	// So many reads of parts are under way together.
	const parts = 4
	l := startLedger(t)
	r := startRelay(t, l)
	var keys []string
	var names []*statedb.CompositeKey
	for i := range 1000 {
		keys = append(keys, fmt.Sprintf("key %d", i))
		names = append(names, &statedb.CompositeKey{Namespace: "ns", Key: keys[i]})
	}
	before := must(open(t, l.connect(t, ""), Options{}).GetDBHandle("mychannel", nil))(t)
	if err := apply(before, 1, block(1, keys[:900]...)); err != nil {
		t.Fatal(err)
	}
	db := must(open(t, l.connect(t, r.endpoint), Options{}).GetDBHandle("mychannel", nil))(t)
	together := r.together(t, parts)
	bulk := db.(statedb.BulkOptimizable)
	check := func() {
		if err := bulk.LoadCommittedVersions(names); err != nil {
			t.Fatal(err)
		}
		for i, key := range keys {
			at := must(db.GetVersion("ns", key))(t)
			if cached, known := bulk.GetCachedVersion("ns", key); !known || !reflect.DeepEqual(at, cached) {
				t.Fatalf("%s is cached as %v, %v, and %v", key, cached, known, at)
			}
			if (at == nil) != (i >= 900) || at != nil && at.TxNum != uint64(i) {
				t.Fatalf("%s was written at %v", key, at)
			}
		}
	}
	r.expectReads(t, parts, "the versions", check)
	if !together() {
		t.Error("they were read one after the other")
	}
	bulk.ClearCachedVersions()
	r.expectReads(t, 0, "the versions again", check)
	// A block drops what was loaded.
	if err := apply(db, 2, block(2, keys[0])); err != nil {
		t.Fatal(err)
	}
	if at := must(db.GetVersion("ns", keys[0]))(t); at.BlockNum != 2 {
		t.Errorf("the version is that of block %d", at.BlockNum)
	}
}

func TestAnswersThatWouldBeTooLargeAreReadInParts(t *testing.T) {
	db := must(open(t, startLedger(t).connect(t, ""), Options{}).GetDBHandle("mychannel", nil))(t)
	batch, value := statedb.NewUpdateBatch(), bytes.Repeat([]byte{'v'}, 900_000)
	var keys []string
	for i := range 12 {
		keys = append(keys, fmt.Sprint(i))
		batch.Put("ns", keys[i], append(value, keys[i]...), heightAt(noHeight, 1, uint64(i)))
	}
	// It is larger than a batch of the ledger, too.
	if err := apply(db, 1, batch); err != nil {
		t.Fatal(err)
	}
	for i, v := range must(db.GetStateMultipleKeys("ns", keys))(t) {
		if len(v.Value) != len(value)+len(keys[i]) || v.Version.TxNum != uint64(i) {
			t.Errorf("value %d has %d bytes", i, len(v.Value))
		}
	}
}

// interrupt does something again and again, and each time one commit more reaches the ledger before
// the connection is gone for good. After each, a fresh provider must find one of two states.
func interrupt(
	t *testing.T, prepare, do func(t *testing.T, p statedb.VersionedDBProvider) error,
	check func(t *testing.T, p statedb.VersionedDBProvider, isDone bool),
) {
	t.Helper()
	l := startLedger(t)
	r := startRelay(t, l)
	patient := l.connect(t, "")
	for limit := 0; ; limit++ {
		options := Options{Prefix: fmt.Sprintf("run %d/", limit)}
		before := open(t, patient, options)
		shrink(before)
		if err := prepare(t, before); err != nil {
			t.Fatal(err)
		}
		r.set(func() { r.commits, r.refuse = 0, func(number int) bool { return number > limit } })
		p := open(t, l.connect(t, r.endpoint), options)
		innerOf(p).client = l.quick(t, r.endpoint)
		shrink(p)
		err := do(t, p)
		after := open(t, patient, options)
		shrink(after)
		check(t, after, err == nil)
		if err == nil {
			t.Logf("%d commits", limit)
			return
		}
		if !coppice.OutcomeUnknown(err) {
			t.Fatalf("after %d commits: %v", limit, err)
		}
	}
}

// keysOfBlocks are enough for a block of several pages.
var keysOfBlocks = strings.Split("abcdefghijklmnopqrstuvwx", "")

func TestALargeBlockIsThereAsAWholeOrNotAtAll(t *testing.T) {
	was, is, isOdd := keysOfBlocks[:16], keysOfBlocks[8:], false
	interrupt(t, func(t *testing.T, p statedb.VersionedDBProvider) error {
		return apply(must(p.GetDBHandle("mychannel", nil))(t), 1, block(1, was...))
	}, func(t *testing.T, p statedb.VersionedDBProvider) error {
		updates := block(2, is...)
		updates.Delete("ns", was[0], heightAt(noHeight, 2, 99))
		db := must(p.GetDBHandle("mychannel", nil))(t)
		err := apply(db, 2, updates)
		if v, failed := db.GetState("ns", is[0]); err != nil && failed == nil {
			// It is in doubt, or was not decided. A part of it is not read.
			if last := must(db.GetState("ns", is[len(is)-1]))(t); v.Version.BlockNum != 1 || last != nil {
				t.Errorf("a part of a block is read: %v, %v", v, last)
			}
		} else if err != nil && !errors.Is(failed, ErrUnfinished) {
			t.Errorf("a read of a part: %v", failed)
		}
		return err
	}, func(t *testing.T, p statedb.VersionedDBProvider, isDone bool) {
		db := must(p.GetDBHandle("mychannel", nil))(t)
		if at := must(db.GetLatestSavePoint())(t); !isDone && at.BlockNum == 1 {
			checkBlock(t, db, 1, was...)
			if v := must(db.GetState("ns", is[len(is)-1]))(t); v != nil {
				t.Errorf("a part of a block is visible: %v", v)
			}
			// Another large block comes, or none, and meets what was parked.
			if isOdd = !isOdd; isOdd {
				if err := p.Drop("mychannel"); err != nil {
					t.Fatal(err)
				}
				checkArea(t, p, kindParked, 0)
				return
			}
			if err := apply(db, 2, block(2, was...)); err != nil {
				t.Fatal(err)
			}
			checkBlock(t, db, 2, was...)
			if v := must(db.GetState("ns", is[len(is)-1]))(t); v != nil {
				t.Errorf("a block that was never decided is there: %v", v)
			}
			return
		}
		checkBlock(t, db, 2, is...)
		if v := must(db.GetState("ns", was[0]))(t); v != nil {
			t.Errorf("a part of a block is missing: %v", v)
		}
		checkArea(t, p, kindParked, 0)
	})
}

// checkArea counts the records of a kind.
func checkArea(t *testing.T, p statedb.VersionedDBProvider, kind byte, expected int) {
	t.Helper()
	inner := innerOf(p)
	low, high := keysOf(inner.options.Prefix, inner.generation, "mychannel").area(kind)
	count := 0
	for _, err := range inner.client.Range(limited(t), low, high, nil) {
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
	if count != expected {
		t.Errorf("there are %d records of the kind %c, not %d", count, kind, expected)
	}
}

func TestADropThatWasInterruptedGoesOn(t *testing.T) {
	interrupt(t, func(t *testing.T, p statedb.VersionedDBProvider) error {
		return apply(must(p.GetDBHandle("mychannel", nil))(t), 1, block(1, keysOfBlocks...))
	}, func(t *testing.T, p statedb.VersionedDBProvider) error {
		return p.Drop("mychannel")
	}, func(t *testing.T, p statedb.VersionedDBProvider, isDone bool) {
		db := must(p.GetDBHandle("mychannel", nil))(t)
		if at := must(db.GetLatestSavePoint())(t); at != nil {
			if isDone {
				t.Errorf("the savepoint is %v", at)
			}
			// It had not begun.
			checkBlock(t, db, 1, keysOfBlocks...)
			if err := p.Drop("mychannel"); err != nil {
				t.Fatal(err)
			}
		}
		checkDropped(t, p, "mychannel")
		for _, kind := range []byte{kindData, kindParked, kindState} {
			checkArea(t, p, kind, 0)
		}
		// The channel begins again.
		if err := apply(must(p.GetDBHandle("mychannel", nil))(t), 1, block(1, "a")); err != nil {
			t.Error(err)
		}
	})
}

func TestAnImportHasItsSavepointLast(t *testing.T) {
	source := must(open(t, startLedger(t).connect(t, ""), Options{}).GetDBHandle("mychannel", nil))(t)
	if err := apply(source, 1, block(1, keysOfBlocks...)); err != nil {
		t.Fatal(err)
	}
	interrupt(t, func(*testing.T, statedb.VersionedDBProvider) error {
		return nil
	}, func(t *testing.T, p statedb.VersionedDBProvider) error {
		records := must(source.GetFullScanIterator(func(string) bool { return false }))(t)
		defer records.Close()
		return p.ImportFromSnapshot("mychannel", heightAt(noHeight, 1, 7), records)
	}, func(t *testing.T, p statedb.VersionedDBProvider, isDone bool) {
		db := must(p.GetDBHandle("mychannel", nil))(t)
		if isDone {
			checkBlock(t, db, 1, keysOfBlocks...)
		} else if at := must(db.GetLatestSavePoint())(t); at != nil {
			t.Errorf("an import that broke off has the savepoint %v", at)
		}
	})
}

func TestAScanIsOfTheVersionAtWhichItBegan(t *testing.T) {
	db := must(open(t, startLedger(t).connect(t, ""), Options{}).GetDBHandle("mychannel", nil))(t)
	batch := block(1, "a", "b")
	for _, namespace := range []string{"nr", "nt", "nu"} {
		batch.Put(namespace, "a", []byte("1"), heightAt(noHeight, 1, 0))
	}
	if err := apply(db, 1, batch); err != nil {
		t.Fatal(err)
	}
	skip := func(namespace string) bool { return namespace == "nr" || namespace == "nt" }
	full := must(db.GetFullScanIterator(skip))(t)
	defer full.Close()
	first := must(full.Next())(t)
	if err := apply(db, 2, block(2, "b", "c")); err != nil {
		t.Fatal(err)
	}
	batch = statedb.NewUpdateBatch()
	batch.Put("nu", "a", []byte("3"), heightAt(noHeight, 3, 0))
	if err := apply(db, 3, batch); err != nil {
		t.Fatal(err)
	}
	told := append([]string{first.Key}, all(t, full.Next)...)
	expected := []string{
		"a", `"ns" "b" "b in block 1" "" {BlockNum: 1, TxNum: 1}`,
		`"nu" "a" "1" "" {BlockNum: 1, TxNum: 0}`,
	}
	if !reflect.DeepEqual(told, expected) {
		t.Errorf("the scan gives %q", told)
	}
}

func TestAScanWhoseVersionIsPrunedFails(t *testing.T) {
	client := startLedger(t).connect(t, "")
	db := must(open(t, client, Options{}).GetDBHandle("mychannel", nil))(t)
	batch := block(1, "a")
	batch.Put("nt", "a", []byte("1"), heightAt(noHeight, 1, 0))
	if err := apply(db, 1, batch); err != nil {
		t.Fatal(err)
	}
	full := must(db.GetFullScanIterator(func(namespace string) bool { return namespace == "ns" }))(t)
	defer full.Close()
	if err := apply(db, 2, block(2, "a")); err != nil {
		t.Fatal(err)
	}
	must(client.Prune(limited(t), 2, coppice.Order{Principal: "test", Reason: "test"}))(t)
	for range 2 {
		if pair, err := full.Next(); !errors.Is(err, coppice.Pruned) {
			t.Errorf("the scan gives %v, %v", pair, err)
		}
	}
	checkBlock(t, db, 2, "a")
	if err := apply(db, 3, block(3, "a")); err != nil {
		t.Error(err)
	}
}

func TestAnImportOfNothingHasASavepoint(t *testing.T) {
	p := open(t, startLedger(t).connect(t, ""), Options{})
	if err := p.ImportFromSnapshot("mychannel", heightAt(noHeight, 3, 7), nil); err != nil {
		t.Fatal(err)
	}
	checkBlock(t, must(p.GetDBHandle("mychannel", nil))(t), 3)
}

func TestADirectoryThatWasDeletedBeginsAnEmptyState(t *testing.T) {
	l := startLedger(t)
	client, directory := l.connect(t, ""), filepath.Join(t.TempDir(), "state")
	handle := func(directory string) statedb.VersionedDB {
		return must(open(t, client, Options{Directory: directory}).GetDBHandle("mychannel", nil))(t)
	}
	if err := apply(handle(directory), 1, block(1, "a")); err != nil {
		t.Fatal(err)
	}
	checkBlock(t, handle(directory), 1, "a")
	// Another directory is another peer's.
	if at := must(handle(filepath.Join(t.TempDir(), "other")).GetLatestSavePoint())(t); at != nil {
		t.Errorf("another directory has the savepoint %v", at)
	}
	if err := os.RemoveAll(directory); err != nil {
		t.Fatal(err)
	}
	again := handle(directory)
	v, at := must(again.GetState("ns", "a"))(t), must(again.GetLatestSavePoint())(t)
	if v != nil || at != nil {
		t.Errorf("a directory that was deleted has %v at %v", v, at)
	}
	marker := filepath.Join(directory, markerName)
	for _, text := range []string{"4\n", "18446744073709551616", "0", "-1", "", "one"} {
		if err := os.WriteFile(marker, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := New(limited(t), client, Options{Directory: directory})
		if !errors.Is(err, ErrDirectory) {
			t.Errorf("a directory of generation %q: %v", text, err)
		}
	}
	if err := os.WriteFile(marker, []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	checkBlock(t, handle(directory), 1, "a")
}

func TestTheLongestNamesFitALedgersKey(t *testing.T) {
	client := startLedger(t).connect(t, "")
	inner := innerOf(open(t, client, Options{Prefix: strings.Repeat("p", prefixBytesMax)}))
	inner.generation = 1<<64 - 1
	d := must(inner.database(strings.Repeat("c", channelBytesMax)))(t)
	db := providerOf(noHeight, inner)
	namespace, key := strings.Repeat("n", namespaceBytesMax), strings.Repeat("\xff", keyBytesMax)
	handle := must(db.GetDBHandle(d.channel, nil))(t)
	write := func(namespace, key string, bytes int) error {
		batch := statedb.NewUpdateBatch()
		batch.Put(namespace, key, make([]byte, bytes), heightAt(noHeight, 1, 1))
		return apply(handle, 1, batch)
	}
	valid := handle.ValidateKeyValue(key, make([]byte, 1_000_000))
	if err := errors.Join(write(namespace, key, 1), valid); err != nil {
		t.Fatal(err)
	}
	if v := must(handle.GetState(namespace, key))(t); v == nil {
		t.Error("it is not there")
	}
	end := key + strings.Repeat("\xff", 600)
	records := must(handle.GetStateRangeScanIterator(namespace, key, end))(t)
	defer records.Close()
	if told := all(t, records.Next); len(told) != 1 {
		t.Errorf("a range gives %q", told)
	}
	_, missing := handle.GetState("ns", key+"x")
	_, channel := db.GetDBHandle(strings.Repeat("c", channelBytesMax+1), nil)
	_, zero := db.GetDBHandle("a\x00b", nil)
	_, none := db.GetDBHandle("", nil)
	for what, err := range map[string]error{
		"a long key":                     write("ns", key+"x", 1),
		"a long namespace":               write(namespace+"x", "a", 1),
		"a namespace with a zero byte":   write("a\x00b", "a", 1),
		"a large value":                  write("ns", "a", 1<<20),
		"a long key of a transaction":    handle.ValidateKeyValue(key+"x", nil),
		"a large value of a transaction": handle.ValidateKeyValue("a", make([]byte, 1_000_001)),
		"a read of a long key":           missing,
		"a long channel":                 channel,
		"a channel with a zero byte":     zero,
		"a channel without a name":       none,
	} {
		if !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAProviderThatIsClosedRefusesAllCalls(t *testing.T) {
	p := open(t, startLedger(t).connect(t, ""), Options{})
	db := must(p.GetDBHandle("mychannel", nil))(t)
	records := must(db.GetStateRangeScanIterator("ns", "", ""))(t)
	defer records.Close()
	p.Close()
	_, handle := p.GetDBHandle("mychannel", nil)
	_, get := db.GetState("ns", "a")
	_, savepoint := db.GetLatestSavePoint()
	_, ranged := db.GetStateRangeScanIterator("ns", "", "")
	_, full := db.GetFullScanIterator(nil)
	_, next := records.Next()
	for what, err := range map[string]error{
		"GetDBHandle":               handle,
		"GetState":                  get,
		"GetLatestSavePoint":        savepoint,
		"GetStateRangeScanIterator": ranged,
		"GetFullScanIterator":       full,
		"Next":                      next,
		"Drop":                      p.Drop("mychannel"),
		"ApplyUpdates":              apply(db, 1, block(1, "a")),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestQueriesAreRefused(t *testing.T) {
	db := must(open(t, startLedger(t).connect(t, ""), Options{}).GetDBHandle("mychannel", nil))(t)
	_, query := db.ExecuteQuery("ns", `{"selector":{}}`)
	_, page := db.ExecuteQueryWithPagination("ns", `{"selector":{}}`, "", 1)
	if !errors.Is(query, ErrNoQueries) || !errors.Is(page, ErrNoQueries) {
		t.Errorf("%v, %v", query, page)
	}
}

func FuzzRecordsOfOthersNeverPanic(f *testing.F) {
	e := entry{value: []byte("value"), metadata: []byte("metadata"), at: height{3, 7}}
	f.Add(e.encode())
	f.Add((&state{savepoint: &height{3, 7}}).encode())
	f.Add([]byte{formEntry, 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		if got, err := decodeEntry(in); err == nil {
			again, err := decodeEntry(got.encode())
			if err != nil || !reflect.DeepEqual(got, again) {
				t.Errorf("%+v is read back as %+v: %v", got, again, err)
			}
		}
		if got, err := decodeState(in); err == nil {
			again, err := decodeState(got.encode())
			if err != nil || !reflect.DeepEqual(got, again) {
				t.Errorf("%+v is read back as %+v: %v", got, again, err)
			}
		}
	})
}
