package state

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"coppice.dev/sdk/coppice"
)

// eventually waits for a condition that nothing announces.
func eventually(t *testing.T, met func() bool) {
	t.Helper()
	ctx := limited(t)
	for !met() {
		if sleep(ctx, time.Millisecond) != nil {
			t.Fatal("it does not come")
		}
	}
}

func begun(t *testing.T, options Options, writes map[string]*string) (*world, *View) {
	t.Helper()
	w := newWorld(t, options)
	if err := w.follow(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	// The cache begins behind what is written here, so it does not hold it.
	w.write(writes)
	if err := w.let(); err != nil {
		t.Fatal(err)
	}
	at := w.present()
	w.cache.Begin(at)
	return w, w.cache.At(at)
}

func TestReadsOfOneKeyAreOneCall(t *testing.T) {
	w, view := begun(t, Options{}, map[string]*string{"a": text("1")})
	first := w.hold(view, "a")
	var others sync.WaitGroup
	for range 20 {
		others.Go(func() {
			if value, err := view.Get(context.Background(), []byte("a")); string(value) != "1" ||
				err != nil {
				t.Errorf("%q, %v", value, err)
			}
		})
	}
	eventually(t, func() bool { return w.cache.Metrics().Misses == 21 })
	first.land()
	others.Wait()
	if w.reads > 2 {
		t.Errorf("%d calls", w.reads)
	}
}

func TestPrefetchReadsPartsAndOnlyWhatIsMissing(t *testing.T) {
	writes := map[string]*string{}
	var keys [][]byte
	for i := range 3*partKeys + 5 {
		key := fmt.Sprintf("%05d", i)
		writes[key] = text(key)
		keys = append(keys, []byte(key), []byte(key), []byte("none "+key))
	}
	w, view := begun(t, Options{}, writes)
	w.reads = 0
	if err := view.Prefetch(limited(t), keys); err != nil {
		t.Fatal(err)
	}
	if expected := (2*len(writes) + partKeys - 1) / partKeys; w.reads != expected ||
		w.largest != partKeys {
		t.Errorf("%d calls of at most %d keys", w.reads, w.largest)
	}
	for _, key := range keys {
		value, err := view.Get(limited(t), key)
		if absent := strings.HasPrefix(string(key), "none"); err != nil || absent != (value == nil) {
			t.Fatalf("%s: %q, %v", key, value, err)
		}
	}
	if m := w.cache.Metrics(); m.Misses != 0 || m.Hits != uint64(len(keys)) {
		t.Errorf("%+v", m)
	}
	if err := view.Prefetch(limited(t), keys); err != nil || w.reads != 7 {
		t.Errorf("again: %d calls, %v", w.reads, err)
	}
}

func TestKeysAreReadAtOnceAlsoIfNothingIsHeld(t *testing.T) {
	w, _ := begun(t, Options{}, map[string]*string{"a": text("1"), "b": text("")})
	// The stream does not show this version, so the cache does not hold what it reads of it.
	view := w.cache.At(w.write(map[string]*string{"c": text("2")}))
	keys := [][]byte{[]byte("c"), []byte("none"), []byte("b"), []byte("a"), []byte("c")}
	w.reads = 0
	values, err := view.GetAll(limited(t), keys)
	if err != nil || w.reads != 1 {
		t.Fatalf("%d calls, %v", w.reads, err)
	}
	expected := [][]byte{[]byte("2"), nil, {}, []byte("1"), []byte("2")}
	if !reflect.DeepEqual(values, expected) {
		t.Errorf("%q", values)
	}
	// The parts of an answer that is too large are read in its place, and may be one key each.
	for room, calls := range map[int]int{1: 7, 2: 3, 4: 1} {
		w.keysMax, w.reads = room, 0
		if values, err := view.GetAll(limited(t), keys); err != nil ||
			!reflect.DeepEqual(values, expected) || w.reads != calls {
			t.Errorf("room for %d keys: %q by %d calls, %v", room, values, w.reads, err)
		}
	}
	if m := w.cache.Metrics(); m.Hits != 0 || m.Misses != uint64(4*len(keys)) {
		t.Errorf("%+v", m)
	}
}

func TestACallerThatGivesUpLeavesTheCallToOthers(t *testing.T) {
	w, view := begun(t, Options{}, map[string]*string{"a": text("1")})
	first := w.hold(view, "a")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := view.Get(ctx, []byte("a")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	first.land()
	if string(first.value) != "1" || first.err != nil {
		t.Errorf("%q, %v", first.value, first.err)
	}
}

func TestStagedBatchesAreViewsOverTheirParents(t *testing.T) {
	_, view := begun(t, Options{}, map[string]*string{"a": text("1"), "b": text("1")})
	one := view.Over(map[string][]byte{"a": []byte("2"), "b": nil})
	two := one.Over(map[string][]byte{"b": []byte("")})
	for _, c := range []struct {
		view       *View
		key, value string
		absent     bool
	}{
		{view, "a", "1", false}, {one, "a", "2", false}, {one, "b", "", true},
		{two, "a", "2", false}, {two, "b", "", false}, {two, "c", "", true},
	} {
		value, err := c.view.Get(limited(t), []byte(c.key))
		if err != nil || string(value) != c.value || (value == nil) != c.absent {
			t.Errorf("%s is %q, %v", c.key, value, err)
		}
	}
	one.Drop()
	for _, dropped := range []*View{one, two} {
		if _, err := dropped.Get(limited(t), []byte("b")); !errors.Is(err, ErrDropped) {
			t.Errorf("%v", err)
		}
	}
	if value, err := view.Get(limited(t), []byte("a")); string(value) != "1" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
}

func TestAnOnlyWriterNeedsNoStream(t *testing.T) {
	m := newModel()
	cache, err := New(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	cache.Begin(m.present())
	apply := func(key, value string) coppice.Stamp {
		at := m.commit(map[string]*string{key: &value})
		if err := cache.Apply(at, put(key, value).Writes()); err != nil {
			t.Fatal(err)
		}
		return at
	}
	one, two := apply("a", "1"), apply("a", "2")
	back := m.rollback(1)
	cache.RolledBack(back)
	three := apply("b", "1")
	expectHit := func(at coppice.Stamp, key, expected string) {
		t.Helper()
		before := m.reads
		if value, err := cache.At(at).Get(limited(t), []byte(key)); string(value) != expected ||
			err != nil {
			t.Errorf("%s at %s is %q, %v", key, at, value, err)
		}
		if m.reads != before {
			t.Errorf("%s at %s is no hit", key, at)
		}
	}
	expectHit(one, "a", "1")
	expectHit(back, "a", "1")
	expectHit(three, "a", "1")
	expectHit(three, "b", "1")
	if _, err := cache.At(two).Get(limited(t), []byte("a")); !errors.Is(err, coppice.RolledBack) {
		t.Errorf("%v", err)
	}
	// Another writer has written in between. What it wrote is not known.
	other := "theirs"
	m.commit(map[string]*string{"a": &other})
	four := apply("c", "1")
	if value, err := cache.At(four).Get(limited(t), []byte("a")); string(value) != other ||
		err != nil {
		t.Errorf("%q, %v", value, err)
	}
	expectHit(three, "a", "1")
	expectHit(four, "c", "1")
}

func TestKeysAloneDropWhatOthersWrite(t *testing.T) {
	for _, level := range []Level{Proofs, Trusted} {
		w := newWorld(t, Options{Level: level, KeysOnly: true})
		if err := w.follow(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.close)
		let := func(at coppice.Stamp) *View {
			t.Helper()
			if err := w.let(); err != nil {
				t.Fatal(err)
			}
			return w.cache.At(at)
		}
		expect := func(view *View, key, expected string, reads int) {
			t.Helper()
			w.reads = 0
			value, err := view.Get(limited(t), []byte(key))
			if string(value) != expected || err != nil || w.reads != reads {
				t.Errorf("%s is %q by %d calls, %v", key, value, w.reads, err)
			}
		}
		one := let(w.write(map[string]*string{"a": text("1"), "b": text("1"), "c": text("1")}))
		for _, key := range []string{"a", "b", "c"} {
			expect(one, key, "1", 1)
		}
		two := let(w.write(map[string]*string{"a": text("2"), "c": nil}))
		expect(one, "a", "1", 0)
		expect(two, "b", "1", 0)
		expect(two, "a", "2", 1)
		expect(two, "c", "", 1)
		// The program's own writes are kept.
		at := w.write(map[string]*string{"a": text("3")})
		if err := w.cache.Apply(at, put("a", "3").Writes()); err != nil {
			t.Fatal(err)
		}
		expect(let(at), "a", "3", 0)
		// It may be told of them when the stream has shown them, and another write is behind them.
		at = w.write(map[string]*string{"a": text("4"), "b": text("4")})
		last := let(w.write(map[string]*string{"b": text("5")}))
		if err := w.cache.Apply(at, put("a", "4").Put([]byte("b"), []byte("4")).Writes()); err != nil {
			t.Fatal(err)
		}
		expect(last, "a", "4", 0)
		expect(last, "b", "5", 1)
		expect(w.cache.At(at), "b", "4", 0)
		back := let(w.back(1))
		expect(back, "a", "1", 0)
		expect(back, "c", "1", 0)
		if m := w.watched; m.ChangedValues || m.ChangedKeys == m.Journal {
			t.Errorf("the stream is asked for %+v", m)
		}
	}
}

func TestWaitsAreBounded(t *testing.T) {
	w := newWorld(t, Options{Wait: time.Millisecond})
	if err := w.follow(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	if err := w.cutStream(true); err != nil {
		t.Fatal(err)
	}
	at := w.write(map[string]*string{"a": text("1")})
	for range waitsMax + 50 {
		view := w.cache.At(at)
		// Each view waits once.
		for range 2 {
			value, err := view.Get(limited(t), []byte("a"))
			if string(value) != "1" || err != nil {
				t.Fatalf("%q, %v", value, err)
			}
		}
	}
	if m := w.cache.Metrics(); m.Waits != waitsMax || m.Hits > 0 {
		t.Errorf("%+v", m)
	}
	w.model.mutex.Lock()
	w.show()
	w.model.mutex.Unlock()
	if err := w.cutStream(false); err != nil {
		t.Fatal(err)
	}
	if value, err := w.cache.At(at).Get(limited(t), []byte("a")); string(value) != "1" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
	if m := w.cache.Metrics(); m.Hits != 1 {
		t.Errorf("%+v", m)
	}
}

func TestAReadThatWaitsSeesTheVersionCome(t *testing.T) {
	w := newWorld(t, Options{Wait: testPatience})
	if err := w.follow(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	view := w.cache.At(w.write(map[string]*string{"a": text("1")}))
	got := make(chan []byte)
	go func() {
		value, _ := view.Get(context.Background(), []byte("a"))
		got <- value
	}()
	eventually(t, func() bool { return w.cache.Metrics().Waits > 0 })
	if err := w.let(); err != nil {
		t.Fatal(err)
	}
	if value := <-got; string(value) != "1" || w.reads > 0 {
		t.Errorf("%q by %d calls", value, w.reads)
	}
}

// Far behind, headers alone are read; and further still, all is dropped.
func TestALongGapIsBridgedByHeaders(t *testing.T) {
	for _, c := range []struct {
		versions int
		held     bool
	}{{gapMax + 10, true}, {headersMax + 10, false}} {
		w := newWorld(t, Options{})
		if err := w.follow(); err != nil {
			t.Fatal(err)
		}
		w.write(map[string]*string{"a": text("1")})
		if err := w.let(); err != nil {
			t.Fatal(err)
		}
		if err := w.cutStream(true); err != nil {
			t.Fatal(err)
		}
		for range c.versions {
			w.commit(map[string]*string{"b": text("2")})
		}
		w.model.mutex.Lock()
		w.show()
		w.model.mutex.Unlock()
		if err := w.cutStream(false); err != nil {
			t.Fatal(err)
		}
		before := w.cache.Metrics()
		if value, err := w.cache.At(stamp(0, 1)).Get(limited(t), []byte("a")); string(value) != "1" ||
			err != nil {
			t.Errorf("%q, %v", value, err)
		}
		if hit := w.cache.Metrics().Hits > before.Hits; hit != c.held {
			t.Errorf("behind %d versions, a hit is %v", c.versions, hit)
		}
		if value, err := w.cache.At(w.present()).Get(limited(t), []byte("b")); string(value) != "2" ||
			err != nil {
			t.Errorf("%q, %v", value, err)
		}
		w.close()
	}
}

func TestAStreamThatStaysBrokenIsNotTheHead(t *testing.T) {
	w := newWorld(t, Options{StaleMax: time.Millisecond})
	if err := w.follow(); err != nil {
		t.Fatal(err)
	}
	defer w.close()
	w.cache.mutex.Lock()
	w.cache.broken = time.Now().Add(-time.Second)
	w.cache.mutex.Unlock()
	at := w.write(map[string]*string{"a": text("1")})
	view, err := w.cache.Head(limited(t))
	if err != nil || view.Stamp() != at {
		t.Errorf("%+v, %v", view, err)
	}
}

func TestOldRollbacksAreForgottenWithTheirViews(t *testing.T) {
	s := newStore(1<<20, &counters{})
	s.begin(stamp(0, 0), 0)
	write := func(at coppice.Stamp, key, value string) {
		t.Helper()
		if _, err := s.commit(at, map[string][]byte{key: []byte(value)}, false, false); err != nil {
			t.Fatal(err)
		}
	}
	write(stamp(0, 1), "k", "1")
	old := s.place(stamp(0, 1))
	for i := range uint64(cutsMax + 1) {
		if _, known := s.get([]byte("k"), old, 1); !known {
			t.Fatalf("behind %d rollbacks nothing is known", i)
		}
		write(stamp(i, i+2), "other", "1")
		write(stamp(i, i+3), "other", "2")
		s.rollback(stamp(i+1, i+2))
	}
	if _, known := s.get([]byte("k"), old, 1); known || len(s.line.cuts) > cutsMax {
		t.Errorf("a view from before %d rollbacks is served", len(s.line.cuts))
	}
	if value, _ := s.get([]byte("k"), s.place(stamp(0, 1)), s.confirmed()); string(value) != "1" {
		t.Errorf("%q", value)
	}
}

func TestTheMemoryIsBounded(t *testing.T) {
	s := newStore(10_000, &counters{})
	s.begin(stamp(0, 0), 0)
	for version := uint64(1); version <= 3*windowMax; version++ {
		writes := map[string][]byte{}
		for i := range 700 {
			writes[fmt.Sprint(version, i)] = make([]byte, 10)
		}
		if _, err := s.commit(stamp(0, version), writes, false, false); err != nil {
			t.Fatal(err)
		}
		if s.bytes > s.bytesMax || len(s.keys) != len(s.all) || s.recent.Len() != len(s.all) {
			t.Fatalf("%d bytes, %d keys", s.bytes, len(s.keys))
		}
		if s.window.keys > windowKeysMax || len(s.window.versions) > windowMax {
			t.Fatalf("%d keys of %d versions", s.window.keys, len(s.window.versions))
		}
	}
	if s.window.floor == 0 || s.window.untouched("none", s.window.floor-1) ||
		!s.window.untouched("none", s.window.floor) {
		t.Errorf("the floor is %d", s.window.floor)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, options := range []Options{
		{Level: 7}, {Level: -1}, {Bytes: -1}, {SampleReads: 2}, {SampleReads: -1},
		{Samples: partKeys + 1},
		{Wait: -1}, {Timeout: -1}, {StaleMax: -1}, {Parallel: -1},
	} {
		if _, err := New(newModel(), options); err == nil {
			t.Errorf("%+v", options)
		}
	}
}

func TestARollbackForgetsWhatItsVersionsWrote(t *testing.T) {
	w := window{floor: 1}
	for version := uint64(2); version <= 5; version++ {
		w.add(version, map[string][]byte{fmt.Sprint(version): nil})
	}
	w.rollback(3)
	for key, expected := range map[string]bool{"2": true, "3": false, "4": true, "5": true} {
		if got := w.untouched(key, 2); got != expected {
			t.Errorf("that %s is untouched is %v", key, got)
		}
	}
	if w.keys != 2 || w.untouched("2", 0) {
		t.Errorf("%+v", w)
	}
	w.forget(9)
	w.rollback(7)
	if w.untouched("x", 6) || !w.untouched("x", 7) {
		t.Errorf("the floor is %d", w.floor)
	}
}

// A read at the base of a rollback holds at head again, also of a key that was written above it.
func TestFillsBehindARollbackAreOpen(t *testing.T) {
	w, _ := begun(t, Options{}, map[string]*string{"a": text("1"), "b": text("1")})
	w.write(map[string]*string{"a": text("2")})
	if err := w.let(); err != nil {
		t.Fatal(err)
	}
	view := w.cache.At(w.back(1))
	if err := w.let(); err != nil {
		t.Fatal(err)
	}
	if value, err := view.Get(limited(t), []byte("a")); string(value) != "1" || err != nil {
		t.Fatalf("%q, %v", value, err)
	}
	next := w.write(map[string]*string{"b": text("2")})
	if err := w.let(); err != nil {
		t.Fatal(err)
	}
	before := w.cache.Metrics()
	value, err := w.cache.At(next).Get(limited(t), []byte("a"))
	if string(value) != "1" || err != nil || w.cache.Metrics().Hits != before.Hits+1 {
		t.Errorf("%q, %v", value, err)
	}
}
