package coppice

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

func TestAScanGoesBackwardsAndEndsAtItsLimit(t *testing.T) {
	l := sharedLedger(t)
	ctx, client := limited(t), l.client(t)
	const records = pageRecords + 9
	batch := new(Batch)
	for i := range records {
		batch.Put(fmt.Appendf(nil, "scan/%04d", i), fmt.Append(nil, i))
	}
	must(client.Commit(ctx, batch))(t)
	low, high := []byte("scan/"), []byte("scan0")
	for _, c := range []struct {
		span        Span
		first, last int
	}{
		{Span{Low: low, High: high}, 0, records - 1},
		{Span{Low: low, High: high, Reverse: true}, records - 1, 0},
		{Span{Low: low, High: high, Limit: 3}, 0, 2},
		{Span{Low: low, High: high, Reverse: true, Limit: 3}, records - 1, records - 3},
		{Span{Low: low, High: high, Reverse: true, Limit: pageRecords + 2}, records - 1, 7},
		{Span{Low: low, High: high, Limit: records + 5}, 0, records - 1},
		{Span{Low: []byte("scan/0004"), High: []byte("scan/0006"), Reverse: true}, 5, 4},
	} {
		at, step := c.first, 1
		if c.span.Reverse {
			step = -1
		}
		for record, err := range client.Scan(ctx, c.span, nil) {
			if err != nil {
				t.Fatal(err)
			}
			if string(record.Key) != fmt.Sprintf("scan/%04d", at) || string(record.Value) != fmt.Sprint(at) {
				t.Fatalf("%+v: %s, and not record %d", c.span, record.Key, at)
			}
			at += step
		}
		if at != c.last+step {
			t.Errorf("%+v ends before %d", c.span, at)
		}
	}
}

func TestNoLieAboutAScanInReverseIsBelieved(t *testing.T) {
	l := sharedLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	batch := new(Batch)
	for i := range pageRecords + 3 {
		batch.Put(fmt.Appendf(nil, "reverse/%04d", i), []byte("v"))
	}
	must(client.Commit(ctx, batch))(t)
	read := func(limit int) (count int, err error) {
		span := Span{Low: []byte("reverse/"), High: []byte("reverse0"), Reverse: true, Limit: limit}
		for _, err = range client.Scan(ctx, span, nil) {
			if err != nil {
				return count, err
			}
			count++
		}
		return count, nil
	}
	if count := must(read(0))(t); count != pageRecords+3 {
		t.Fatalf("%d records", count)
	}
	for name, lie := range map[string]func(*v1.RangeResponse){
		"the largest left out": func(a *v1.RangeResponse) { a.Records = a.Records[1:] },
		"the last left out": func(a *v1.RangeResponse) {
			a.Records = a.Records[:len(a.Records)-1]
		},
		"another value":             func(a *v1.RangeResponse) { a.Records[0].Value = []byte("w") },
		"nothing more":              func(a *v1.RangeResponse) { a.End.More = !a.End.More },
		"ascending":                 func(a *v1.RangeResponse) { slices.Reverse(a.Records) },
		"no proof":                  func(a *v1.RangeResponse) { a.End.Proof = nil },
		"a record of another range": func(a *v1.RangeResponse) { a.Records[0].Key = []byte("a") },
		"one twice":                 func(a *v1.RangeResponse) { a.Records[1] = a.Records[0] },
	} {
		r.onRange = func(all []*v1.RangeResponse) []*v1.RangeResponse {
			one := whole(all)
			lie(one)
			return []*v1.RangeResponse{one}
		}
		for _, limit := range []int{0, 2} {
			if count, err := read(limit); !errors.Is(err, ErrUntrusted) {
				t.Errorf("%s: %d records, %v", name, count, err)
			}
		}
	}
}

// The whole journal shows what a version wrote, and the values come to its hashes.
func TestWatchersSeeAllThatAVersionWrote(t *testing.T) {
	for _, arguments := range [][]string{{}, {"--journals"}} {
		l := startLedger(t, t.TempDir(), append(arguments, "--replicas", "1")...)
		ctx, client := limited(t), l.client(t)
		must(client.Commit(ctx, put("a", "1").Put([]byte("z"), []byte("2"))))(t)
		must(
			client.Commit(ctx, put("a", "first").Put([]byte("a"), []byte("last")).Delete([]byte("none"))),
		)(
			t,
		)
		must(client.Rollback(ctx, 1, Order{Principal: "test", Reason: "test"}))(t)
		stamp := must(client.Commit(ctx, new(Batch).Delete([]byte("z"))))(t).Stamp
		watch := Watch{Follow: true, ChangedKeys: true, ChangedValues: true, Journal: true}
		var rolledBack int
		for head, err := range client.WatchHeads(ctx, watch) {
			if err != nil {
				t.Fatal(err)
			}
			if head.RolledBack {
				rolledBack++
			}
			if head.Journal == nil {
				continue
			}
			written := must(verify.Written(head.Header, *head.Journal))(t)
			for _, change := range head.Changes {
				operation, has := written[string(change.Key)]
				if !has || operation.Delete != change.Deleted ||
					!change.Deleted && verify.Put(change.Key, change.Value).Hash != operation.Hash {
					t.Errorf("%s: %+v, %+v", head.Header.Stamp(), operation, change)
				}
			}
			damaged(t, &head)
			if head.Header.Stamp() == stamp {
				break
			}
		}
		if rolledBack != 1 {
			t.Errorf("%d versions were rolled back", rolledBack)
		}
		grown := must(client.Grown(ctx))(t)
		encoded := must(client.HeaderAt(ctx, grown.Size-1))(t)
		if verify.EntryHash(encoded) != grown.NewestEntry || grown.Newest.Stamp() != stamp {
			t.Errorf("%+v", grown)
		}
	}
}

// damaged checks that each change of a journal is noticed.
func damaged(t *testing.T, head *Headed) {
	t.Helper()
	copied := func() verify.VersionJournal {
		journal := verify.VersionJournal{
			Entries: slices.Clone(head.Journal.Entries),
			Lists:   map[uint32][][]byte{},
		}
		for shard, lists := range head.Journal.Lists {
			journal.Lists[shard] = slices.Clone(lists)
		}
		return journal
	}
	try := func(name string, lie func(*verify.VersionJournal)) {
		journal := copied()
		lie(&journal)
		if written, err := verify.Written(head.Header, journal); err == nil {
			t.Errorf("%s: %v", name, written)
		}
	}
	for i := range head.Journal.Entries[0] {
		entry := bytes.Clone(head.Journal.Entries[0])
		entry[i] ^= 1
		try("another entry", func(j *verify.VersionJournal) { j.Entries[0] = entry })
	}
	for shard, lists := range head.Journal.Lists {
		// An entry that names another list, with this list.
		forged := []verify.Operation{verify.Put([]byte("a"), []byte("a lie"))}
		operations := must(verify.DecodeOperations(lists[0]))(t)
		named, other := verify.OperationListHash(operations), verify.OperationListHash(forged)
		try("another list and its entry", func(j *verify.VersionJournal) {
			j.Entries[0] = bytes.Replace(j.Entries[0], named[:], other[:], 1)
			j.Lists[shard][0] = verify.EncodeOperations(forged)
		})
	}
	try("no entry", func(j *verify.VersionJournal) { j.Entries = j.Entries[1:] })
	try(
		"an entry twice",
		func(j *verify.VersionJournal) { j.Entries = append(j.Entries, j.Entries[0]) },
	)
	for shard, lists := range head.Journal.Lists {
		try("no list", func(j *verify.VersionJournal) { delete(j.Lists, shard) })
		try(
			"a list twice",
			func(j *verify.VersionJournal) { j.Lists[shard] = append(j.Lists[shard], lists[0]) },
		)
		try("of another shard", func(j *verify.VersionJournal) { j.Lists[shard+7] = lists })
		for i := range lists[0] {
			list := bytes.Clone(lists[0])
			list[i] ^= 1
			try("another list", func(j *verify.VersionJournal) { j.Lists[shard][0] = list })
		}
	}
}

func TestPartsOfAJournalComeInOrder(t *testing.T) {
	entries := &v1.WatchedJournal{Entries: [][]byte{{1}}}
	lists := func(shard uint32) *v1.WatchedJournal {
		return &v1.WatchedJournal{Shard: shard, Lists: [][]byte{{2}}}
	}
	both := &v1.WatchedJournal{Entries: entries.Entries, Lists: lists(1).Lists}
	take := func(parts ...*v1.WatchedJournal) error {
		w := &watcher{}
		for _, part := range parts {
			if err := w.takeJournal(part); err != nil {
				return err
			}
		}
		return nil
	}
	if err := take(entries, lists(0), lists(4)); err != nil {
		t.Error(err)
	}
	for name, parts := range map[string][]*v1.WatchedJournal{
		"lists first": {lists(1)}, "entries twice": {entries, entries}, "both at once": {both},
		"shards that descend": {entries, lists(2), lists(1)}, "a shard twice": {entries, lists(2), lists(2)},
		"nothing": {{}}, "nothing behind entries": {entries, {}},
	} {
		if err := take(parts...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	w := &watcher{size: versionBytesMax}
	if err := w.takeJournal(entries); err == nil {
		t.Error("a journal without bound")
	}
	w = &watcher{}
	w.part.Changes = []Changed{{}}
	if err := w.takeJournal(entries); err == nil {
		t.Error("a journal behind the changes")
	}
}
