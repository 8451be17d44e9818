package state

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"coppice.dev/sdk/coppice"
)

const (
	changesOfBench  = 1000
	versionsOfBench = 50
	valueOfBench    = 200
	// keysVariable is the number of keys in the ledger, and loadedAtOnce that of a batch.
	keysVariable = "COPPICE_BENCH_KEYS"
	keysOfBench  = 100_000
	loadedAtOnce = 20_000
)

// keyOf is spread over the key space.
func keyOf(i int) []byte { return fmt.Appendf(nil, "%016x", uint64(i)*0x9e3779b97f4a7c15) }

// fill writes keys, in large batches.
func fill(b *testing.B, client *coppice.Client, count int) {
	b.Helper()
	for first := 0; first < count; first += loadedAtOnce {
		batch := new(coppice.Batch)
		for i := first; i < min(first+loadedAtOnce, count); i++ {
			batch.Put(keyOf(i), make([]byte, valueOfBench))
		}
		must(client.Commit(context.Background(), batch))(b)
	}
}

// BenchmarkVersion checks the changes of one version by its journal, and proves the same keys.
func BenchmarkVersion(b *testing.B) {
	count := keysOfBench
	if text := os.Getenv(keysVariable); text != "" {
		count = must(strconv.Atoi(text))(b)
	}
	l := startDev(b, b.TempDir(), "--shards", "4")
	client := l.client(b, l.Endpoint)
	fill(b, client, count)
	var batch *coppice.Batch
	var keys [][]byte
	random := rand.New(rand.NewPCG(1, 2))
	// The newest tree of the ledger has the changes of many versions.
	for range versionsOfBench {
		if batch != nil {
			must(client.Commit(context.Background(), batch))(b)
		}
		batch, keys = new(coppice.Batch), nil
		for _, i := range random.Perm(count)[:changesOfBench] {
			keys = append(keys, keyOf(i))
			batch.Put(keyOf(i), bytes.Repeat([]byte{byte(i)}, valueOfBench))
		}
	}
	ctx := context.Background()
	at := must(client.Commit(ctx, batch))(b).Stamp
	head := must(client.Head(ctx))(b)
	watch := coppice.Watch{From: head.LogSize - 1, ChangedKeys: true, ChangedValues: true, Journal: true}
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
			if writes, err := writesOf(&Options{}, &version); err != nil || len(writes) != changesOfBench {
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
