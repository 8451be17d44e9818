package coppice

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// startedVersions is the head of the ledger of these tests. Version 6 and those before are pruned.
const startedVersions = 14

// startedLedger has several trees in each of two shards, with deletions and several pages of
// records.
func startedLedger(t *testing.T) *ledger {
	t.Helper()
	l := startLedger(t, t.TempDir(), "--journals", "--partition-capacity", "300", "--split", "k")
	ctx, client := limited(t), l.client(t)
	for version := range startedVersions {
		batch := new(Batch)
		for i := range 120 {
			key := fmt.Appendf(nil, "%c/%04d", "az"[i%2], (version*97+i)%900)
			if (version+i)%7 == 0 {
				batch.Delete(key)
			} else {
				batch.Put(key, fmt.Appendf(nil, "%d of %d", i, version))
			}
		}
		must(client.Commit(ctx, batch))(t)
	}
	must(client.Prune(ctx, 7, Order{Principal: "alice", Reason: "a test"}))(t)
	return l
}

func TestAnAuditBeginsWithTheProvenStateOfAnyKeptVersion(t *testing.T) {
	l := startedLedger(t)
	r := startRelay(t, l, insecure.NewCredentials())
	ctx, client := limited(t), r.client(t, l)
	for _, audited := range []Audited{{}, {From: 1}, {From: 8}, {From: 11, To: 12}, {From: 14}, {To: 3}, {From: 9, To: 9}} {
		first, to := max(audited.From, 1), audited.To
		if to == 0 {
			to = startedVersions
		}
		next := first
		report := must(client.Audit(ctx, audited, func(version, last uint64) {
			if version != next || last != to {
				t.Errorf("%+v: version %d of %d instead of %d", audited, version, last, next)
			}
			next++
		}))(t)
		if !report.Sound() || report.To != to || next != to+1 {
			t.Errorf("%+v: %+v", audited, report)
		}
	}
	// The state of version 6 is gone.
	report, err := client.Audit(ctx, Audited{From: 7}, nil)
	if !errors.Is(err, Pruned) || !strings.Contains(err.Error(), "begin later") {
		t.Errorf("%+v, %v", report, err)
	}
	for audited, expected := range map[Audited]error{
		{From: 15}: NotYet, {From: 9, To: 15}: NotYet, {From: 9, To: 8}: InvalidArgument,
	} {
		if report, err := client.Audit(ctx, audited, nil); !errors.Is(err, expected) {
			t.Errorf("%+v: %+v, %v", audited, report, err)
		}
	}
	// A version behind the start that is wrong is found.
	r.onJournal = func(m *v1.JournalResponse) error { flipLists(m); return nil }
	report = must(client.Audit(ctx, Audited{From: 11}, nil))(t)
	if report.Sound() || report.Broken.Version != 11 || report.To != 10 {
		t.Errorf("%+v", report)
	}
}

func TestNoLieAboutTheFirstStateIsBelieved(t *testing.T) {
	l := startedLedger(t)
	r := startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	var first *v1.RangeResponse
	for name, lie := range map[string]func(*v1.RangeResponse){
		"the end too early":      func(a *v1.RangeResponse) { a.End.More = false },
		"a record less":          func(a *v1.RangeResponse) { a.Records = a.Records[1:] },
		"the first page forever": func(a *v1.RangeResponse) { become(a, first) },
		"another proof":          func(a *v1.RangeResponse) { a.End.Proof = first.End.Proof },
		"another version":        func(a *v1.RangeResponse) { a.End.ReadAt.Version++ },
	} {
		pages := 0
		r.onRange = func(all []*v1.RangeResponse) []*v1.RangeResponse {
			one := whole(all)
			if pages++; pages == 1 {
				first = one
			} else {
				lie(one)
			}
			return []*v1.RangeResponse{one}
		}
		report, err := client.Audit(limited(t), Audited{From: 11}, nil)
		if !errors.Is(err, ErrUntrusted) || pages > 3 {
			t.Errorf("%s: %d pages, %+v, %v", name, pages, report, err)
		}
	}
}

// Whatever a proof file says, a replay begins with the state of the header or not at all.
func TestAReplayBeginsWithNoOtherState(t *testing.T) {
	l := startedLedger(t)
	ctx, client := limited(t), l.client(t)
	log := must(client.readLog(ctx))(t)
	stamp := log.Header(10).Stamp()
	var files [][]byte
	for span, more := (Span{}), true; more; {
		p := must(client.page(ctx, span, 200, &Read{At: &stamp}, keysAlone))(t)
		if files, more = append(files, p.proof), p.more; more {
			span = span.behind(p.records)
		}
	}
	var journal verify.VersionJournal
	for found, err := range client.Journals(ctx, 11, 11) {
		if err != nil {
			t.Fatal(err)
		}
		journal = found.VersionJournal
	}
	begin := func(files [][]byte) error {
		parts := new(verify.StateParts)
		for _, file := range files {
			if err := parts.Take(file); err != nil {
				return err
			}
		}
		replay, err := verify.NewReplayAt(&log.HeaderLog, 10, parts)
		if err != nil {
			return err
		}
		if err := replay.Version(journal); err != nil {
			t.Errorf("a replay began with another state: %v", err)
		}
		return nil
	}
	if err := begin(files); err != nil || len(files) < 4 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for at := range files {
		if begin(slices.Concat(files[:at], files[at+1:])) == nil {
			t.Errorf("a replay began without file %d", at)
		}
	}
	refused := 0
	for at := 0; at < len(files[1]); at += 61 {
		forged := bytes.Clone(files[1])
		forged[at] ^= 1
		if begin(slices.Concat(files[:1], [][]byte{forged}, files[2:])) != nil {
			refused++
		}
	}
	if refused < len(files[1])/61/2 {
		t.Errorf("%d of %d forged files were refused", refused, len(files[1])/61)
	}
}
