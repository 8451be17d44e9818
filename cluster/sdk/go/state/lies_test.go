package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"coppice.dev/sdk/coppice"
	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

func put(key, value string) *coppice.Batch {
	return new(coppice.Batch).Put([]byte(key), []byte(value))
}

// watched is a cache that follows a ledger through a relay.
type watched struct {
	*Cache
	client *coppice.Client
	ended  chan error
}

func watch(t *testing.T, l *devLedger, endpoint string, options Options) *watched {
	t.Helper()
	client := l.client(t, endpoint)
	w := &watched{client: client, Cache: must(New(client, options))(t), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { w.ended <- w.Follow(ctx) }()
	t.Cleanup(cancel)
	must(w.Head(limited(t)))(t)
	return w
}

// reach waits until the cache has a version.
func (w *watched) reach(t *testing.T, at coppice.Stamp) error {
	t.Helper()
	ctx := limited(t)
	for {
		w.mutex.Lock()
		moved := w.moved
		w.mutex.Unlock()
		if err := w.Err(); err != nil {
			return err
		}
		if !w.store.above(at) {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("%s is not reached: %+v", at, w.Metrics())
		}
	}
}

// caught waits until Follow ends, and checks that it ended by evidence.
func (w *watched) caught(t *testing.T) *Evidence {
	t.Helper()
	select {
	case err := <-w.ended:
		var evidence *Evidence
		if !errors.Is(err, coppice.ErrUntrusted) || !errors.As(err, &evidence) {
			t.Fatalf("it ended by %v", err)
		}
		if _, err := w.At(coppice.Stamp{}).Get(limited(t), []byte("lie/a")); !errors.Is(
			err,
			coppice.ErrUntrusted,
		) {
			t.Errorf("a read after that: %v", err)
		}
		if keys, _ := w.store.size(); keys != 0 {
			t.Errorf("%d keys are still held", keys)
		}
		return evidence
	case <-time.After(testPatience):
		t.Fatal("nothing was found")
	}
	return nil
}

func TestACacheFollowsALedger(t *testing.T) {
	for _, arguments := range [][]string{nil, {"--journals"}, {"--ledgers"}} {
		l := startDev(t, t.TempDir(), arguments...)
		ctx, w := limited(t), watch(t, l, l.Endpoint, Options{Wait: testPatience, Samples: 3})
		must(w.client.Commit(ctx, put("a", "1").Put([]byte("z"), []byte("1"))))(t)
		two := must(w.client.Commit(ctx, put("a", "2").Delete([]byte("none"))))(t)
		view := w.At(two.Stamp)
		if value := must(view.Get(ctx, []byte("a")))(t); string(value) != "2" {
			t.Errorf("%q", value)
		}
		order := coppice.Order{Principal: "test", Reason: "test"}
		back := must(w.client.Rollback(ctx, 1, order))(t)
		if value := must(w.At(back.Head).Get(ctx, []byte("a")))(t); string(value) != "1" {
			t.Errorf("%q", value)
		}
		if _, err := view.Get(ctx, []byte("a")); !errors.Is(err, coppice.RolledBack) {
			t.Errorf("a dead version: %v", err)
		}
		three := must(w.client.Commit(ctx, new(coppice.Batch).Delete([]byte("z"))))(t)
		if err := w.reach(t, three.Stamp); err != nil {
			t.Fatal(err)
		}
		must(w.client.Prune(ctx, 2, order))(t)
		four := must(w.client.Commit(ctx, put("b", "4")))(t)
		if err := w.reach(t, four.Stamp); err != nil {
			t.Fatal(err)
		}
		for key, expected := range map[string]string{"a": "1", "z": "", "b": "4"} {
			value := must(must(w.Head(ctx))(t).Get(ctx, []byte(key)))(t)
			if string(value) != expected || (value == nil) != (expected == "") {
				t.Errorf("%s is %q", key, value)
			}
		}
		if _, err := w.At(coppice.Stamp{Version: 1}).Get(ctx, []byte("a")); !errors.Is(
			err,
			coppice.Pruned,
		) {
			t.Errorf("a pruned version: %v", err)
		}
		m := w.Metrics()
		if m.Misses > 2 || m.Hits < 5 || m.Unknown > 0 || m.Rollbacks != 1 || m.Prunes != 1 {
			t.Errorf("at %s: %+v", three.Stamp, m)
		}
	}
}

// editLists changes the operation lists in a message.
func editLists(m *v1.WatchHeadsResponse, edit func([]verify.Operation) []verify.Operation) {
	for i, list := range m.GetJournal().GetLists() {
		if operations, err := verify.DecodeOperations(list); err == nil {
			m.Journal.Lists[i] = verify.EncodeOperations(edit(operations))
		}
	}
}

// streamLies change what the stream shows of a version that writes one key twice.
var streamLies = map[string]func(*v1.WatchHeadsResponse){
	"a change left out": func(m *v1.WatchHeadsResponse) {
		m.Changes = m.Changes[min(1, len(m.Changes)):]
		if len(m.Changes) == 0 && m.Journal == nil {
			m.Continued = false
		}
	},
	"an altered value": func(m *v1.WatchHeadsResponse) {
		for _, change := range m.Changes {
			change.Value = []byte("lie")
		}
	},
	"a key left out of journal and changes": func(m *v1.WatchHeadsResponse) {
		editLists(m, func(o []verify.Operation) []verify.Operation { return o[:len(o)-1] })
		m.Changes = m.Changes[:max(0, len(m.Changes)-1)]
	},
	"an altered value in journal and changes": func(m *v1.WatchHeadsResponse) {
		editLists(m, func(o []verify.Operation) []verify.Operation {
			o[0] = verify.Put(o[0].Key, []byte("lie"))
			return o
		})
		for _, change := range m.Changes {
			change.Value = []byte("lie")
		}
	},
	"a batch in another order": func(m *v1.WatchHeadsResponse) {
		editLists(m, func(o []verify.Operation) []verify.Operation {
			o[0], o[1] = o[1], o[0]
			return o
		})
		for _, change := range m.Changes {
			change.Value = []byte("first")
		}
	},
	"a deletion that was none": func(m *v1.WatchHeadsResponse) {
		for _, change := range m.Changes {
			change.Found = false
		}
	},
	"entries left out": func(m *v1.WatchHeadsResponse) {
		if len(m.GetJournal().GetEntries()) > 0 {
			m.Journal.Entries = append(m.Journal.Entries, m.Journal.Entries[0])
		}
	},
	"a damaged header": func(m *v1.WatchHeadsResponse) {
		// The state root has no rule of its own.
		m.Header[60] ^= 1
	},
}

// Each lie about a version on the stream is found with that version.
func TestLiesOnTheStreamAreFoundAtOnce(t *testing.T) {
	l := startDev(t, t.TempDir())
	for name, lie := range streamLies {
		t.Run(name, func(t *testing.T) {
			r := startRelay(t, l)
			ctx, w := limited(t), watch(t, l, r.endpoint, Options{})
			r.lies(func(r *relay) {
				r.onHeads = func(m *v1.WatchHeadsResponse) bool { lie(m); return true }
			})
			key := []byte("lie/a")
			honest := l.client(t, l.Endpoint)
			must(
				honest.Commit(ctx, new(coppice.Batch).Put(key, []byte("first")).Put(key, []byte("last"))),
			)(
				t,
			)
			if evidence := w.caught(t); len(evidence.Known) == 0 {
				t.Errorf("no signed checkpoint is kept: %v", evidence)
			}
			if versions := w.Metrics().Versions; versions > 0 {
				t.Errorf("%d versions were taken", versions)
			}
		})
	}
}

func TestLiesAboutReadsAreFoundAtOnce(t *testing.T) {
	l := startDev(t, t.TempDir())
	ctx, r := limited(t), startRelay(t, l)
	w := watch(t, l, r.endpoint, Options{})
	at := must(l.client(t, l.Endpoint).Commit(ctx, put("lie/b", "1")))(t).Stamp
	if err := w.reach(t, at); err != nil {
		t.Fatal(err)
	}
	var earlier *v1.BatchGetResponse
	r.lies(func(r *relay) {
		r.onBatchGet = func(_ *v1.BatchGetRequest, a *v1.BatchGetResponse) { earlier = proto.CloneOf(a) }
	})
	must(w.At(at).Get(ctx, []byte("lie/other")))(t)
	for name, lie := range map[string]func(*v1.BatchGetResponse){
		"no proof":             func(a *v1.BatchGetResponse) { a.Proof = nil },
		"a damaged proof":      func(a *v1.BatchGetResponse) { a.Proof[len(a.Proof)/2] ^= 1 },
		"the proof of another": func(a *v1.BatchGetResponse) { a.Proof = earlier.Proof },
	} {
		r.lies(func(r *relay) {
			r.onBatchGet = func(_ *v1.BatchGetRequest, a *v1.BatchGetResponse) { lie(a) }
		})
		if value, err := w.At(at).Get(ctx, []byte("lie/c")); !errors.Is(err, coppice.ErrUntrusted) {
			t.Errorf("%s: %q, %v", name, value, err)
		}
	}
}

// A coordinator that goes on to show an old head is found by the checkpoints of the log.
func TestAnOldHeadIsFound(t *testing.T) {
	l := startDev(t, t.TempDir())
	ctx, r := limited(t), startRelay(t, l)
	w := watch(t, l, r.endpoint, Options{StaleMax: 50 * time.Millisecond})
	honest := l.client(t, l.Endpoint)
	old := must(honest.Commit(ctx, put("lie/a", "1")))(t)
	if err := w.reach(t, old.Stamp); err != nil {
		t.Fatal(err)
	}
	size := w.size.Load()
	r.lies(func(r *relay) {
		r.onHeads = func(*v1.WatchHeadsResponse) bool { return false }
		r.onHead = func(a *v1.HeadResponse) {
			a.LogSize, a.Stamp = size, &v1.Stamp{Version: old.Stamp.Version}
		}
	})
	must(honest.Commit(ctx, put("lie/a", "2")))(t)
	for {
		_, err := w.Head(ctx)
		if errors.Is(err, coppice.ErrUntrusted) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if sleep(ctx, time.Millisecond) != nil {
			t.Fatalf("the old head is still served: %+v", w.Metrics())
		}
	}
	// A checkpoint of before is no proof that the log grew.
	var earlier *v1.GetCheckpointResponse
	r.lies(func(r *relay) {
		r.onCheckpoint = func(a *v1.GetCheckpointResponse) { earlier = proto.CloneOf(a) }
	})
	must(w.client.Grown(ctx))(t)
	must(honest.Commit(ctx, put("lie/a", "3")))(t)
	must(w.client.Grown(ctx))(t)
	first := earlier
	must(honest.Commit(ctx, put("lie/a", "4")))(t)
	must(w.client.Grown(ctx))(t)
	r.lies(func(r *relay) {
		r.onCheckpoint = func(a *v1.GetCheckpointResponse) { a.Standing = first.Standing }
	})
	w.caught(t)
}

// Two ledgers with one key have gone apart. The cache keeps what both of them signed.
func TestAForkLeavesTwoSignatures(t *testing.T) {
	directory := t.TempDir()
	l := startDev(t, directory)
	honest := l.client(t, l.Endpoint)
	must(honest.Commit(limited(t), put("fork/a", "1")))(t)
	l.Stop()
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(directory)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(copied, "ledger.key"), 0o600); err != nil {
		t.Fatal(err)
	}
	one, two := startDev(t, directory), startDev(t, copied)
	ctx, r := limited(t), startRelay(t, one)
	w := watch(t, one, r.endpoint, Options{})
	at := must(one.client(t, one.Endpoint).Commit(ctx, put("fork/a", "2")))(t).Stamp
	if err := w.reach(t, at); err != nil {
		t.Fatal(err)
	}
	other := two.client(t, two.Endpoint)
	for range 3 {
		must(other.Commit(ctx, put("fork/b", "other")))(t)
	}
	r.show(t, two)
	evidence := w.caught(t)
	for _, signed := range [][]byte{evidence.Known, evidence.Shown} {
		if !signedBy(signed, one.Key(t)) {
			t.Errorf("%v: %q is not signed", evidence, signed)
		}
	}
}

// signedBy tells whether a checkpoint, or that of a proof file, has the signature of a key.
func signedBy(signed []byte, key verify.VKey) bool {
	if _, err := verify.OpenCheckpoint(signed, key); err == nil {
		return true
	}
	_, err := verify.Verify(signed, key, nil)
	return err == nil
}
