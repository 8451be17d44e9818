package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

const (
	// gapMax is how far the stream is read with all changes. Behind a longer gap, headers alone are
	// read up to the head.
	gapMax = 1024
	// headersMax is how many headers are read to bridge a gap. Behind a longer one, all is dropped.
	headersMax = 1 << 16
	// queueBytesMax bounds the writes that wait for a checkpoint. Those beyond it are given up.
	queueBytesMax = 64 << 20
	// checkPatience is how long a checkpoint may lag behind the stream.
	checkPatience = 10 * time.Second
	// sampleFailuresMax is how many samples in a row may not be proven. Then all is dropped.
	sampleFailuresMax = 16
)

// entry is a header on the stream.
type entry struct {
	header *verify.Header
	hash   verify.Digest
	// encoded has the bytes of the header.
	encoded []byte
	// writes are those of a commit, or nil if they are not known. With Options.KeysOnly, only the keys
	// count.
	writes map[string][]byte
}

// follower reads the root log for a cache, from one stream to the next.
type follower struct {
	*Cache
	// last is the newest entry that was applied, or nil at first.
	last *entry
	// queue has the entries behind it that no checkpoint covers yet, or that lie before the newest one
	// under it. They take so many bytes.
	queue []*entry
	bytes int
	// bare tells that changes can't be had: headers alone are read up to the head.
	bare     bool
	boundary uint64
	// unproven counts samples in a row that the ledger did not prove.
	unproven int
}

// Follow needs a client that trusts a key. It reads the root log until the context ends, and moves
// the frontier. It goes on after broken streams. If the ledger is caught in a contradiction, it
// ends with an Evidence, and reads are refused until it is called again, which begins with an empty
// cache.
func (c *Cache) Follow(ctx context.Context) error {
	c.mutex.Lock()
	if c.following {
		c.mutex.Unlock()
		return errFollowing
	}
	c.following, c.broken, c.evidence = true, time.Now(), nil
	c.mutex.Unlock()
	defer func() {
		c.mutex.Lock()
		c.following = false
		c.mutex.Unlock()
	}()
	c.drop()
	f := &follower{Cache: c}
	for pause := c.pause; ; pause = min(2*pause, 40*c.pause) {
		before := f.last
		err := f.run(ctx)
		if f.last != before {
			pause = c.pause
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if evidence := f.judge(err); evidence != nil {
			return c.fail(f.signed(ctx, evidence))
		}
		if err == nil {
			continue
		}
		c.counts.cuts.Add(1)
		c.mutex.Lock()
		if c.broken.IsZero() {
			c.broken = time.Now()
		}
		c.mutex.Unlock()
		if sleep(ctx, pause) != nil {
			return context.Cause(ctx)
		}
	}
}

// judge tells whether an error of a stream shows that the ledger is not to be believed.
func (f *follower) judge(err error) *Evidence {
	if evidence := evidenceOf(err); evidence != nil {
		return evidence
	}
	if errors.Is(err, coppice.ErrUntrusted) {
		return contradiction("the stream is not proven", nil, err)
	}
	// Changes of a version can't be had if the one before is pruned. The next stream goes without.
	f.bare = errors.Is(err, coppice.Pruned) || errors.Is(err, coppice.RolledBack)
	return nil
}

// signed looks for the ledger's signature under what contradicts a checkpoint: if the log was
// forked, its next checkpoint shows that.
func (f *follower) signed(ctx context.Context, found *Evidence) *Evidence {
	if _, err := f.askGrown(ctx); err != nil {
		if fork := evidenceOf(err); fork != nil {
			return fork
		}
	}
	return found
}

// askGrown asks for the newest checkpoint, and keeps it.
func (f *follower) askGrown(ctx context.Context) (*coppice.Grown, error) {
	ctx, cancel := context.WithTimeout(ctx, f.options.Timeout)
	defer cancel()
	grown, err := f.ledger.Grown(ctx)
	if err != nil {
		return nil, err
	}
	for known := f.grown.Load(); known == nil || known.Size < grown.Size; known = f.grown.Load() {
		if f.grown.CompareAndSwap(known, grown) {
			break
		}
	}
	return grown, nil
}

func contradiction(why string, shown []byte, err error) *Evidence {
	return &Evidence{Why: why, Shown: bytes.Clone(shown), Err: err}
}

// run reads one stream. It gives no error if headers were read without changes up to the head, and
// another stream can go on with changes.
func (f *follower) run(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, f.options.Timeout)
	head, err := f.ledger.Head(limited)
	cancel()
	if err != nil {
		return err
	}
	if head.LogSize == 0 {
		return errors.New("state: a log without genesis")
	}
	f.queue, f.bytes = nil, 0
	from, bare := head.LogSize-1, true
	if f.last != nil && head.LogSize > f.last.header.Sequence+headersMax {
		f.last = nil
	}
	if f.last != nil {
		from = f.last.header.Sequence + 1
		bare = f.bare && from < head.LogSize || head.LogSize > from+gapMax
	}
	f.bare, f.boundary = false, head.PrunedBoundary
	if grown := f.grown.Load(); from >= head.LogSize && (grown == nil || from >= grown.Size) {
		f.reached()
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	f.size.Store(from)
	go f.mind(ctx, end)
	err = f.stream(ctx, from, head.LogSize, bare)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// errSilent ends a stream.
var errSilent = errors.New("state: the stream is silent, and the log has grown")

// mind ends a stream that stays behind the log for Options.StaleMax, or for twice that time.
func (f *follower) mind(ctx context.Context, end context.CancelCauseFunc) {
	for size := uint64(0); ; {
		if sleep(ctx, f.options.StaleMax) != nil {
			return
		}
		grown, err := f.askGrown(ctx)
		now := f.size.Load()
		switch {
		case errors.Is(err, coppice.ErrUntrusted):
			end(err)
			return
		case err == nil && now < grown.Size && now == size:
			end(errSilent)
			return
		}
		size = now
	}
}

// stream reads the headers from a sequence on.
func (f *follower) stream(ctx context.Context, from, size uint64, bare bool) error {
	watch := coppice.Watch{From: from, Follow: true}
	if !bare {
		watch.Journal = f.options.Level == Proofs
		// A journal has the keys as well.
		watch.ChangedKeys = !watch.Journal || !f.options.KeysOnly
		watch.ChangedValues = !f.options.KeysOnly
	}
	for headed, err := range f.ledger.WatchHeads(ctx, watch) {
		if err != nil {
			return err
		}
		if err := f.take(ctx, &headed, bare); err != nil {
			return err
		}
		if len(f.queue) > 0 {
			continue
		}
		if bare && f.last.header.Sequence+1 >= size {
			return nil
		}
		f.reached()
	}
	return errors.New("state: the stream ended")
}

// reached notes that the stream has come to the head.
func (f *follower) reached() {
	f.mutex.Lock()
	f.broken = time.Time{}
	f.mutex.Unlock()
	f.announce()
}

// take checks the next header. It is applied once the log is proven to have it.
func (f *follower) take(ctx context.Context, headed *coppice.Headed, bare bool) error {
	e := &entry{header: headed.Header, hash: verify.EntryHash(headed.Encoded), encoded: headed.Encoded}
	before := f.last
	if n := len(f.queue); n > 0 {
		before = f.queue[n-1]
	}
	if before != nil &&
		(e.header.Sequence != before.header.Sequence+1 || e.header.Previous != before.hash) {
		return contradiction("a header does not follow the one before", e.encoded, nil)
	}
	if e.header.Kind == verify.KindCommit && !bare {
		writes, err := writesOf(&f.options, headed)
		if err != nil {
			return contradiction("a version's changes are not those of its journal", e.encoded, err)
		}
		e.writes = writes
	}
	if f.bytes += sizeOf(e.writes); f.bytes > queueBytesMax && len(f.queue) > 0 {
		e.writes = nil
	}
	f.queue = append(f.queue, e)
	return f.prove(ctx)
}

func sizeOf(writes map[string][]byte) (sum int) {
	for key, value := range writes {
		sum += entryBytes + len(key) + len(value)
	}
	return sum
}

// prove demands a checkpoint that covers the queue. The newest header under it is one of the
// stream, in the queue or still to come, and has the same hash there. All headers before it are
// named by that hash, so they are applied then.
func (f *follower) prove(ctx context.Context) error {
	newest := f.queue[len(f.queue)-1]
	until := time.Now().Add(checkPatience)
	grown := f.grown.Load()
	for grown == nil || grown.Size <= newest.header.Sequence {
		var err error
		if grown, err = f.askGrown(ctx); err != nil {
			return err
		}
		if grown.Size > newest.header.Sequence {
			break
		}
		if time.Now().After(until) {
			return errors.New("state: the checkpoint lags behind the stream")
		}
		if err := sleep(ctx, f.pause); err != nil {
			return err
		}
	}
	if newest.header.Sequence < grown.Size-1 {
		return nil
	}
	if newest.hash != grown.NewestEntry {
		return contradiction(
			"the log under the checkpoint has another header than the stream",
			newest.encoded,
			nil,
		)
	}
	applied := f.queue
	f.queue, f.bytes = nil, 0
	for _, e := range applied {
		if err := f.apply(e); err != nil {
			return err
		}
	}
	return f.sample(ctx, len(applied))
}

// apply moves the frontier.
func (f *follower) apply(e *entry) error {
	stamp := e.header.Stamp()
	first := f.last == nil
	f.last = e
	defer f.size.Store(e.header.Sequence + 1)
	switch {
	case first:
		f.store.begin(stamp, f.boundary)
		f.announce()
	case e.header.Kind == verify.KindCommit:
		_, err := f.commit(stamp, e.writes, f.options.KeysOnly, true)
		return err
	case e.header.Kind == verify.KindRollback:
		f.RolledBack(stamp)
	case e.header.Kind == verify.KindPrune:
		f.store.prune(e.header.Prune.Boundary)
		f.counts.prunes.Add(1)
		f.announce()
	}
	return nil
}

// sample proves cached keys at the frontier, so many for each version. A ledger that refuses to
// prove them makes the cache drop everything after a while.
func (f *follower) sample(ctx context.Context, versions int) error {
	if f.options.Samples == 0 {
		return nil
	}
	at, keys := f.store.sample(min(f.options.Samples*versions, partKeys))
	if len(keys) == 0 {
		return nil
	}
	wanted := make([][]byte, len(keys))
	for i := range keys {
		wanted[i] = []byte(keys[i].key)
	}
	ctx, cancel := context.WithTimeout(ctx, f.options.Timeout)
	defer cancel()
	got, err := f.read(ctx, at.stamp, wanted, true)
	if errors.Is(err, coppice.ErrUntrusted) {
		return err
	}
	if err != nil {
		f.counts.sampleFailures.Add(1)
		if f.unproven++; f.unproven >= sampleFailuresMax {
			f.unproven, f.last = 0, nil
			f.drop()
			return fmt.Errorf("state: the ledger proves no cached keys: %w", err)
		}
		return nil
	}
	f.unproven = 0
	for i := range keys {
		if value := valueOf(got.Records[i]); !same(value, keys[i].value) {
			why := fmt.Sprintf("the cached value of %q is not the proven one at %s", keys[i].key, at.stamp)
			return contradiction(why, got.Proof, nil)
		}
	}
	return nil
}

// same compares values: nil is none.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// valueOf gives the value of a record, which is nil only if there is none.
func valueOf(record *coppice.Record) []byte {
	if record == nil {
		return nil
	}
	return append([]byte{}, record.Value...)
}

// sleep waits, and gives the error of the context if that ends first.
func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
