package geth

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/ethereum/go-ethereum/ethdb"
	"github.com/ethereum/go-ethereum/ethdb/dbtest"
)

// go-ethereum's own suite judges the store.
func TestTheSuiteOfGethPassesOnALedger(t *testing.T) {
	client := startLedger(t)
	stores := 0
	dbtest.TestDatabaseSuite(t, func() ethdb.KeyValueStore {
		stores++
		return must(NewStore(client, Options{Prefix: fmt.Sprintf("store %d/", stores)}))(t)
	})
}

func keysOf(t testing.TB, i ethdb.Iterator) (keys []string) {
	t.Helper()
	defer i.Release()
	for i.Next() {
		keys = append(keys, string(i.Key()))
	}
	if err := i.Error(); err != nil {
		t.Error(err)
	}
	return keys
}

func TestAStoreKeepsToItsPrefix(t *testing.T) {
	client := startLedger(t)
	open := func(prefix string) *Store { return must(NewStore(client, Options{Prefix: prefix}))(t) }
	store, below, above := open("m\xff"), open("m\xfe"), open("n")
	for _, s := range []*Store{store, below, above} {
		for _, key := range []string{"", "a", "\xff", "\xff\xff"} {
			if err := s.Put([]byte(key), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := keysOf(t, store.NewIterator(nil, nil)); len(got) != 4 || got[0] != "" {
		t.Errorf("%q", got)
	}
	if got := keysOf(t, store.NewIterator([]byte{0xff}, nil)); len(got) != 2 {
		t.Errorf("%q", got)
	}
	value, err := store.Get([]byte("a"))
	if err != nil || value == nil || len(value) != 0 {
		t.Errorf("%v, %v", value, err)
	}
	if _, err := store.Get([]byte("b")); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := store.DeleteRange(nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{store, below, above} {
		expected := 4
		if s == store {
			expected = 0
		}
		if got := keysOf(t, s.NewIterator(nil, nil)); len(got) != expected {
			t.Errorf("%s has %q", s.prefix, got)
		}
	}
	if end := after([]byte{0xff, 0xff}); end != nil {
		t.Errorf("%x follows all", end)
	}
}

func TestAnIteratorShowsTheVersionOfItsBeginning(t *testing.T) {
	store := must(NewStore(startLedger(t), Options{}))(t)
	batch := store.NewBatch()
	for n := range 1500 {
		if err := batch.Put(fmt.Appendf(nil, "%04d", n), []byte{byte(n)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := batch.Write(); err != nil {
		t.Fatal(err)
	}
	all := store.NewIterator(nil, nil)
	if err := store.DeleteRange([]byte("0100"), nil); err != nil {
		t.Fatal(err)
	}
	if got := keysOf(t, all); len(got) != 1500 || all.Key() != nil || all.Value() != nil || all.Next() {
		t.Errorf("%d keys", len(got))
	}
	if got := keysOf(t, store.NewIterator(nil, nil)); len(got) != 100 {
		t.Errorf("%d keys", len(got))
	}
}

// only writes, and deletes no ranges.
type only struct{ ethdb.KeyValueWriter }

func TestOperationsOfABatchAreDoneInTheirOrder(t *testing.T) {
	store := must(NewStore(startLedger(t), Options{}))(t)
	batch := store.NewBatch()
	reused := []byte("a")
	for _, err := range []error{
		batch.Put(reused, []byte("1")), batch.DeleteRange([]byte("a"), []byte("c")), batch.Put([]byte("b"), []byte("2")),
		batch.DeleteRange([]byte("z"), []byte("a")), batch.DeleteRange(nil, []byte{}), batch.Put([]byte("c"), []byte("3")),
		batch.Delete([]byte("c")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	copy(reused, "x")
	if err := batch.Write(); err != nil {
		t.Fatal(err)
	}
	if got := keysOf(t, store.NewIterator(nil, nil)); len(got) != 1 || got[0] != "b" || batch.ValueSize() == 0 {
		t.Errorf("%q", got)
	}
	if err := batch.Replay(only{store}); err == nil {
		t.Error("a range is deleted by what can't")
	}
	if value := must(store.Get([]byte("b")))(t); !bytes.Equal(value, []byte("2")) {
		t.Errorf("%s", value)
	}
	batch.Close()
	if err := batch.Write(); err != nil || batch.ValueSize() != 0 {
		t.Error(err)
	}
	_ = store.Close()
	if i := store.NewIterator(nil, nil); i.Next() || i.Error() == nil || store.Close() != nil {
		t.Error("a closed store is read")
	}
}
