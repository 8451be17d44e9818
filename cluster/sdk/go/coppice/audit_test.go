package coppice

import (
	"fmt"
	"testing"

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
