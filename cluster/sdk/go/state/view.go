package state

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"coppice.dev/sdk/coppice"
)

// ErrDropped refuses reads of a view over a batch that was dropped: see View.Over.
var ErrDropped = errors.New("state: the staged batch of the view was dropped")

// View is the state of one version, or of batches that are staged on it. It may be read from
// several goroutines.
type View struct {
	cache *Cache
	at    place
	// confirmed is one above the epoch of the frontier when the ledger answered a read at the stamp,
	// or 0 before that.
	confirmed atomic.Uint64
	// waited tells that a read has waited for the frontier in vain. Others then do not.
	waited atomic.Bool
	// staged is the newest batch over the version, or nil.
	staged *staged
}

// staged is a batch that is not committed.
type staged struct {
	parent  *staged
	writes  map[string][]byte
	dropped atomic.Bool
}

// Stamp is the version that the view reads.
func (v *View) Stamp() coppice.Stamp { return v.at.stamp }

// Get reads a key: nil if it has no value. An empty value is not nil. The bytes are shared with the
// cache, and must not be changed.
func (v *View) Get(ctx context.Context, key []byte) ([]byte, error) {
	value, known, err := v.look(ctx, key)
	if err != nil {
		return nil, err
	}
	if known {
		v.cache.counts.hits.Add(1)
		return value, nil
	}
	v.cache.counts.misses.Add(1)
	return v.cache.flights.get(ctx, v, key)
}

// look reads a key without asking the ledger.
func (v *View) look(ctx context.Context, key []byte) (value []byte, known bool, err error) {
	for batch := v.staged; batch != nil; batch = batch.parent {
		if batch.dropped.Load() {
			return nil, false, ErrDropped
		}
		if held, writes := batch.writes[string(key)]; writes && !known {
			value, known = held, true
		}
	}
	if known {
		return value, true, nil
	}
	if !v.waited.Load() && v.cache.await(ctx, v.at.stamp) {
		v.waited.Store(true)
	}
	if err := v.cache.Err(); err != nil {
		return nil, false, err
	}
	value, known = v.cache.store.get(key, v.at, v.confirmed.Load())
	return value, known, nil
}

// GetAll reads keys, many at one time: nil for each without a value, in the order of the keys. As
// with Get, the bytes must not be changed.
func (v *View) GetAll(ctx context.Context, keys [][]byte) ([][]byte, error) {
	values, misses, err := v.all(ctx, keys)
	if err != nil {
		return nil, err
	}
	v.cache.counts.hits.Add(uint64(len(keys) - misses))
	v.cache.counts.misses.Add(uint64(misses))
	return values, nil
}

// Prefetch reads keys into the cache, as GetAll does. Those that are known already cost nothing. A
// key may be named twice. It returns once all are there, or with the first error. What was read of
// a version that is not cached is read again by Get.
func (v *View) Prefetch(ctx context.Context, keys [][]byte) error {
	_, _, err := v.all(ctx, keys)
	return err
}

// all reads keys, and counts those that the cache did not have.
func (v *View) all(ctx context.Context, keys [][]byte) (values [][]byte, misses int, err error) {
	values = make([][]byte, len(keys))
	var missing [][]byte
	var places []int
	for i, key := range keys {
		value, known, err := v.look(ctx, key)
		if err != nil {
			return nil, 0, err
		}
		if values[i] = value; !known {
			missing, places = append(missing, key), append(places, i)
		}
	}
	if misses = len(missing); misses == 0 {
		return values, 0, nil
	}
	slices.SortFunc(missing, bytes.Compare)
	missing = slices.CompactFunc(missing, bytes.Equal)
	read, err := v.cache.flights.all(ctx, v, missing)
	if err != nil {
		return nil, 0, err
	}
	for _, i := range places {
		values[i] = read[string(keys[i])]
	}
	return values, misses, nil
}

// Over gives a view of a batch that is staged on this one, and not committed: the last value of
// each key, and nil for a key that the batch deletes (coppice.Batch.Writes). The ledger has no
// reads of stages, so they are answered from the batch, and from the version below it.
func (v *View) Over(writes map[string][]byte) *View {
	over := &View{cache: v.cache, at: v.at, staged: &staged{parent: v.staged, writes: writes}}
	over.confirmed.Store(v.confirmed.Load())
	return over
}

// Drop refuses all further reads of this view and of those over it, as the ledger does after
// Discard or StageLost. A view of a version has nothing to drop.
func (v *View) Drop() {
	if v.staged != nil {
		v.staged.dropped.Store(true)
	}
}
