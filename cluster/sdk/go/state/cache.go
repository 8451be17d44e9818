package state

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"coppice.dev/sdk/coppice"
)

// waitsMax is how many reads wait for the frontier without seeing it move. Then the others read
// through at once, until it moves.
const waitsMax = 100

// errFollowing refuses a second call of Follow.
var errFollowing = errors.New("state: the cache follows the ledger already")

// Cache holds values of a ledger's state. Its methods may be called from several goroutines.
type Cache struct {
	ledger  Ledger
	options Options
	store   *store
	flights flights
	counts  counters
	// grown is the newest checkpoint that was proven, or nil.
	grown atomic.Pointer[coppice.Grown]
	// size counts the entries of the log that the follower has applied.
	size atomic.Uint64

	mutex sync.Mutex
	// evidence is why all reads are refused, or nil.
	evidence  *Evidence
	following bool
	// broken is since when the stream has not reached the ledger's head; zero if it has.
	broken time.Time
	// moved is closed when the frontier moves, or reads are refused.
	moved chan struct{}
	// waits counts the reads that waited since the frontier moved.
	waits int
	// pause is between two attempts. Between streams that break, it grows up to 40 times.
	pause time.Duration
}

// New makes an empty cache, which connects to nothing.
func New(ledger Ledger, options Options) (*Cache, error) {
	if err := options.fill(); err != nil {
		return nil, err
	}
	c := &Cache{
		ledger:  ledger,
		options: options,
		moved:   make(chan struct{}),
		pause:   5 * time.Millisecond,
	}
	c.store = newStore(options.Bytes, &c.counts)
	c.flights = newFlights(options.Parallel)
	return c, nil
}

// Begin drops everything, and begins at a version: the head, as a program found it that is the only
// writer. Older views read through from then on.
func (c *Cache) Begin(head coppice.Stamp) {
	c.mutex.Lock()
	c.evidence = nil
	c.mutex.Unlock()
	c.counts.drops.Add(1)
	c.store.begin(head, 0)
	c.announce()
}

// Apply takes a version that this program has committed, with all that the version wrote: see
// coppice.Batch.Writes. The batch must have been alone in its version: coppice.Batch.Exclusive sees
// to that, and a header with one journal leaf shows it. The cache keeps the values. While Follow
// runs, a version behind the next one is left to the stream. Otherwise all that is not known of the
// versions before it is given up.
func (c *Cache) Apply(at coppice.Stamp, writes map[string][]byte) error {
	c.mutex.Lock()
	gaps := !c.following
	c.mutex.Unlock()
	if writes == nil {
		writes = map[string][]byte{}
	}
	if moved, err := c.commit(at, writes, false, gaps); moved || err != nil {
		return err
	}
	if contradiction := c.store.late(at, writes); contradiction != nil {
		return c.fail(contradiction)
	}
	return nil
}

func (c *Cache) commit(
	at coppice.Stamp,
	writes map[string][]byte,
	keysOnly, gaps bool,
) (moved bool, err error) {
	moved, contradiction := c.store.commit(at, writes, keysOnly, gaps)
	if contradiction != nil {
		return moved, c.fail(contradiction)
	}
	if moved {
		c.counts.versions.Add(1)
		c.announce()
	}
	return moved, nil
}

// RolledBack takes a rollback that this program has ordered. Its head is the base, in the epoch
// that begins: coppice.Ordered.Head.
func (c *Cache) RolledBack(head coppice.Stamp) {
	if c.store.rollback(head) {
		c.counts.rollbacks.Add(1)
		c.announce()
	}
}

// Err is the evidence for which all reads are refused, or nil.
func (c *Cache) Err() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.evidence == nil {
		return nil
	}
	return c.evidence
}

// fail drops everything, and refuses all reads.
func (c *Cache) fail(evidence *Evidence) error {
	if grown := c.grown.Load(); grown != nil && evidence.Known == nil {
		evidence.Known = grown.Proof
	}
	c.mutex.Lock()
	if c.evidence == nil {
		c.evidence = evidence
	}
	c.mutex.Unlock()
	c.drop()
	return evidence
}

func (c *Cache) drop() {
	c.counts.drops.Add(1)
	c.store.end()
	c.announce()
}

// announce wakes all that wait for the frontier.
func (c *Cache) announce() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	close(c.moved)
	c.moved, c.waits = make(chan struct{}), 0
}

// Head gives a view of the frontier, and waits for the first one. If the stream has been broken for
// Options.StaleMax, it is a view of what the ledger says is its head.
func (c *Cache) Head(ctx context.Context) (*View, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	for {
		c.mutex.Lock()
		moved, evidence, broken := c.moved, c.evidence, c.broken
		c.mutex.Unlock()
		if evidence != nil {
			return nil, evidence
		}
		at, known := c.store.head()
		if !broken.IsZero() && time.Since(broken) >= c.options.StaleMax {
			head, err := c.ledger.Head(ctx)
			if err != nil {
				return nil, err
			}
			if grown := c.grown.Load(); grown != nil && head.LogSize < grown.Size {
				return nil, &Evidence{
					Why:   "the ledger's head is older than a checkpoint of it",
					Known: grown.Proof,
				}
			}
			return c.At(head.Stamp), nil
		}
		if known {
			return &View{cache: c, at: at}, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return nil, fmt.Errorf("state: no head is known: %w", context.Cause(ctx))
		}
	}
}

// At gives a view of a version. If the cache does not know that the stamp names a version, the
// first read asks the ledger.
func (c *Cache) At(stamp coppice.Stamp) *View { return &View{cache: c, at: c.store.place(stamp)} }

// AtProven gives a view of a version that the caller knows to stand: for instance that of the last
// change of a record that was read at head.
func (c *Cache) AtProven(stamp coppice.Stamp) *View {
	v := c.At(stamp)
	v.confirmed.Store(c.store.confirmed())
	return v
}

// await waits a short time for a version that the stream has not reached. It tells whether that was
// in vain.
func (c *Cache) await(ctx context.Context, at coppice.Stamp) bool {
	if !c.store.above(at) {
		return false
	}
	timer := time.NewTimer(c.options.Wait)
	defer timer.Stop()
	for waited := false; ; waited = true {
		c.mutex.Lock()
		moved, pointless := c.moved, !c.following || !waited && c.waits >= waitsMax || c.evidence != nil
		if !waited && !pointless {
			c.waits++
			c.counts.waits.Add(1)
		}
		c.mutex.Unlock()
		if pointless || !c.store.above(at) {
			return false
		}
		select {
		case <-moved:
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}
