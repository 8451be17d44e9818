package state

import (
	"errors"
	"testing"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

func changed(key, value string) coppice.Changed {
	return coppice.Changed{Record: coppice.Record{Key: []byte(key), Value: []byte(value)}}
}

func TestChangesAreThoseOfTheJournal(t *testing.T) {
	m := newModel()
	m.commit(map[string]*string{"a": text("1"), "b": nil, "c": text("")})
	honest := m.log[1]
	deleted := coppice.Changed{Record: coppice.Record{Key: []byte("b")}, Deleted: true}
	type list []coppice.Changed
	for name, c := range map[string]struct {
		changes list
		held    bool
	}{
		"as they are":             {list{changed("a", "1"), deleted, changed("c", "")}, true},
		"without a deletion":      {list{changed("a", "1"), changed("c", "")}, true},
		"one left out":            {list{deleted, changed("c", "")}, false},
		"an empty value left out": {list{changed("a", "1"), deleted}, false},
		"another value":           {list{changed("a", "2"), changed("c", "")}, false},
		"a value that is none":    {list{changed("a", "1"), changed("b", "1"), changed("c", "")}, false},
		"one too many":            {list{changed("a", "1"), changed("c", ""), changed("d", "1")}, false},
	} {
		headed := honest
		headed.Changes = c.changes
		writes, err := writesOf(&Options{}, &headed)
		if (err == nil) != c.held {
			t.Errorf("%s: %q, %v", name, writes, err)
		}
		if c.held &&
			(string(writes["a"]) != "1" || writes["b"] != nil || writes["c"] == nil || len(writes) != 3) {
			t.Errorf("%s: %q", name, writes)
		}
	}
	headed := honest
	headed.Journal = nil
	if writes, err := writesOf(&Options{}, &headed); err == nil {
		t.Errorf("without a journal: %q", writes)
	}
	headed.ListsGone = true
	if writes, err := writesOf(&Options{}, &headed); writes != nil || err != nil {
		t.Errorf("without lists: %q, %v", writes, err)
	}
}

// Headers behind a broken stream go on from the one before it, whatever a checkpoint says.
func TestAnotherLogBehindABrokenStreamIsFound(t *testing.T) {
	w := newWorld(t, Options{})
	if err := w.follow(); err != nil {
		t.Fatal(err)
	}
	defer w.close()
	w.write(map[string]*string{"a": text("1")})
	if err := w.let(); err != nil {
		t.Fatal(err)
	}
	if err := w.cutStream(true); err != nil {
		t.Fatal(err)
	}
	w.model.mutex.Lock()
	newest := &w.log[len(w.log)-1]
	newest.Encoded = append([]byte("another "), newest.Encoded...)
	w.model.mutex.Unlock()
	w.write(map[string]*string{"b": text("1")})
	w.model.mutex.Lock()
	w.show()
	w.model.mutex.Unlock()
	err := w.cutStream(false)
	var evidence *Evidence
	if !errors.As(err, &evidence) || !errors.Is(err, coppice.ErrUntrusted) {
		t.Fatalf("%v", err)
	}
	if shown := w.log[len(w.log)-1].Encoded; verify.EntryHash(
		evidence.Shown,
	) != verify.EntryHash(
		shown,
	) {
		t.Errorf("%q is shown", evidence.Shown)
	}
}

func TestLastChangesAreCompared(t *testing.T) {
	for _, c := range []struct {
		value   string
		changed uint64
		held    bool
	}{{"1", 1, true}, {"1", 2, false}, {"1", 0, false}, {"1", 3, false}, {"2", 1, false}} {
		s := newStore(1<<20, &counters{})
		s.begin(stamp(0, 0), 0)
		for version, key := range []string{"a", "b"} {
			writes := map[string][]byte{key: []byte("1")}
			if _, err := s.commit(stamp(0, uint64(version)+1), writes, false, false); err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.fill([]byte("a"), s.place(stamp(0, 2)), []byte(c.value), c.changed)
		if (err == nil) != c.held {
			t.Errorf("%s, changed in version %d: %v", c.value, c.changed, err)
		}
	}
}
