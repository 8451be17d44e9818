package state

import (
	"context"
	"fmt"
	"testing"

	"coppice.dev/sdk/coppice"
)

const changesOfBench = 1000

// BenchmarkVersion checks the changes of one version by its journal, and proves as many keys.
func BenchmarkVersion(b *testing.B) {
	l := startDev(b, b.TempDir(), "--shards", "4")
	client := l.client(b, l.Endpoint)
	batch, keys := new(coppice.Batch), [][]byte{}
	for i := range changesOfBench {
		key := fmt.Appendf(nil, "%c%05d", 'a'+i%26, i)
		keys = append(keys, key)
		batch.Put(key, make([]byte, 200))
	}
	ctx := context.Background()
	at := must(client.Commit(ctx, batch))(b).Stamp
	watch := coppice.Watch{ChangedKeys: true, ChangedValues: true, Journal: true}
	var version coppice.Headed
	for headed, err := range client.WatchHeads(ctx, watch) {
		if err != nil {
			b.Fatal(err)
		}
		if headed.Header.Stamp() == at {
			version = headed
		}
	}
	b.Run("by its journal", func(b *testing.B) {
		for b.Loop() {
			if writes, err := writesOf(Proofs, &version); err != nil || len(writes) != changesOfBench {
				b.Fatal(err)
			}
		}
	})
	b.Run("key by key", func(b *testing.B) {
		for b.Loop() {
			must(client.BatchGet(ctx, keys, &coppice.Read{At: &at}))(b)
		}
	})
}

func BenchmarkHit(b *testing.B) {
	m := newModel()
	cache := must(New(m, Options{}))(b)
	cache.Begin(m.present())
	if err := cache.Apply(stamp(0, 1), put("a", "1").Writes()); err != nil {
		b.Fatal(err)
	}
	view, ctx, key := cache.At(stamp(0, 1)), context.Background(), []byte("a")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := view.Get(ctx, key); err != nil {
			b.Fatal(err)
		}
	}
}
