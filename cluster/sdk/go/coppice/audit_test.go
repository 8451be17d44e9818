package coppice

import (
	"encoding/json"
	"fmt"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// The auditor of package verify replays what a real ledger has done.
func TestALedgerIsAuditedFromItsFirstHeaderOn(t *testing.T) {
	l := startLedger(t, t.TempDir(), "--journals", "--partition-capacity", "16", "--split", "k")
	ctx, client := limited(t), l.client(t)
	session := must(client.OpenSession(ctx, NewSessionID()))(t)
	order := Order{Principal: "alice", Reason: "a test"}
	for version := range 60 {
		batch := new(Batch).Metadata(fmt.Append(nil, version))
		for i := range 7 {
			key := fmt.Appendf(nil, "%c/%d", 'a'+(version*i)%26, (version*7+i*3)%40)
			if (version+i)%5 == 0 {
				batch.Delete(key)
			} else {
				batch.Put(key, fmt.Appendf(nil, "%d of %d", i, version))
			}
		}
		if version%2 == 0 {
			must(session.Commit(ctx, batch))(t)
		} else {
			must(client.Commit(ctx, batch))(t)
		}
		switch version {
		case 20:
			must(client.Rollback(ctx, 15, order))(t)
		case 40:
			must(client.Prune(ctx, 10, order))(t)
		}
	}
	log := readLog(t, client)
	note := must(client.Checkpoint(ctx, 0))(t)
	signed := must(verify.OpenCheckpoint(note.Checkpoint, *l.key(t)))(t)
	if log.Checkpoint() != signed || log.Genesis().Key != l.key(t).Key {
		t.Fatalf("the headers give %+v, and %+v is signed", log.Checkpoint(), signed)
	}
	replay := must(verify.NewReplay(log))(t)
	versions := uint64(0)
	for journal, err := range client.Journals(ctx, 1, 0) {
		if err == nil {
			err = replay.Version(journal.VersionJournal)
		}
		if err != nil {
			t.Fatalf("version %d: %v", versions+1, err)
		}
		versions++
	}
	if versions != log.Head() || versions != 54 {
		t.Errorf("%d versions were replayed, of %d", versions, log.Head())
	}
}

func TestAClientAuditsTheLogAsTheCommandDoes(t *testing.T) {
	l := startLedger(t, t.TempDir(), "--journals", "--split", "k")
	r := startRelay(t, l, insecure.NewCredentials())
	ctx, client := limited(t), r.client(t, l)
	for version := range 12 {
		must(client.Commit(ctx, put(fmt.Sprint("a", version), "1").Put([]byte("z"), fmt.Append(nil, version))))(t)
	}
	must(l.client(t).Rollback(ctx, 7, Order{Principal: "alice", Reason: "a test"}))(t)
	must(client.Commit(ctx, put("b", "2")))(t)
	count := 0
	r.onJournal = func(*v1.JournalResponse) error {
		if count++; count%8 == 0 {
			return broken
		}
		return nil
	}
	last := uint64(0)
	report := must(client.Audit(ctx, Audited{}, func(version, to uint64) {
		if version != last+1 || to != 8 {
			t.Errorf("version %d of %d behind %d", version, to, last)
		}
		last = version
	}))(t)
	if !report.Sound() || report.To != 8 || last != 8 || count < 24 {
		t.Errorf("%+v, %d messages", report, count)
	}
	var said struct {
		Sound      bool
		To         uint64
		Checkpoint struct{ Root string }
	}
	output := l.command(t, "audit", "--json", "--key", l.key(t).String())
	if err := json.Unmarshal([]byte(output), &said); err != nil {
		t.Fatal(err)
	}
	if !said.Sound || said.To != report.To || said.Checkpoint.Root != report.Checkpoint.Root.String() {
		t.Errorf("%+v, and the command says %+v", report, said)
	}
	for what, c := range map[string]struct {
		rule int
		lie  func(*v1.JournalResponse)
	}{
		"an entry left out":  {7, func(m *v1.JournalResponse) { m.Entries = nil }},
		"a list left out":    {10, func(m *v1.JournalResponse) { m.Lists = nil }},
		"an operation less":  {10, func(m *v1.JournalResponse) { flipLists(m) }},
		"an honest ledger":   {0, func(*v1.JournalResponse) {}},
		"a list of no shard": {10, func(m *v1.JournalResponse) { m.Shard += 40 }},
	} {
		r.onJournal = func(m *v1.JournalResponse) error { c.lie(m); return nil }
		report := must(client.Audit(ctx, Audited{}, nil))(t)
		if (c.rule == 0) != report.Sound() || c.rule != 0 && (report.Broken.Rule != c.rule || report.To != 0) {
			t.Errorf("%s: %+v", what, report.Broken)
		}
	}
	r.onJournal = func(m *v1.JournalResponse) error { flip(m.Header); return nil }
	report, err := client.Audit(ctx, Audited{}, nil)
	isLie(t, "another version", report, err)
}

func flipLists(m *v1.JournalResponse) {
	for _, list := range m.Lists {
		list[len(list)-1] ^= 1
	}
}

func readLog(t *testing.T, client *Client) *verify.HeaderLog {
	t.Helper()
	log := &verify.HeaderLog{}
	for head, err := range client.WatchHeads(limited(t), Watch{}) {
		if err == nil {
			err = log.Append(head.Encoded)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return log
}
