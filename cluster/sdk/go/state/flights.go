package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"coppice.dev/sdk/coppice"
)

const (
	// partKeys is how many keys one call reads.
	partKeys = 256
	// gather is how long a read waits for others to join it, while another call is under way.
	gather = 100 * time.Microsecond
	// behindMax is how often a read is repeated that met a coordinator which is behind.
	behindMax = 100
)

// flights are the calls that read keys, by versions. A key of a version is asked for once at a
// time, and reads that come while a call is under way share the next one.
type flights struct {
	mutex sync.Mutex
	lanes map[coppice.Stamp]*lane
	// slots bound the calls that are under way.
	slots chan struct{}
}

// lane has the calls of one version.
type lane struct {
	// wanted are the keys of all calls that have not ended.
	wanted map[string]*flight
	// waiting is the call that others may join, or nil.
	waiting *flight
	// airborne counts the calls that were sent, and landed is closed when one ends.
	airborne int
	landed   chan struct{}
}

// flight is one call. Its result is there once done is closed.
type flight struct {
	keys   [][]byte
	full   chan struct{}
	done   chan struct{}
	values map[string][]byte
	err    error
	// confirmed is what a view of the version keeps of the answer.
	confirmed uint64
}

func newFlights(parallel int) flights {
	return flights{lanes: make(map[coppice.Stamp]*lane), slots: make(chan struct{}, parallel)}
}

func newFlight() *flight { return &flight{full: make(chan struct{}), done: make(chan struct{})} }

// lane gives the lane of a version. The lock is held.
func (fs *flights) lane(at coppice.Stamp) *lane {
	l := fs.lanes[at]
	if l == nil {
		l = &lane{wanted: make(map[string]*flight), landed: make(chan struct{})}
		fs.lanes[at] = l
	}
	return l
}

// get reads a key with the call that has it, or with the next one.
func (fs *flights) get(ctx context.Context, v *View, key []byte) ([]byte, error) {
	fs.mutex.Lock()
	l := fs.lane(v.at.stamp)
	f := l.wanted[string(key)]
	if f == nil {
		f = l.waiting
		if f == nil {
			f = newFlight()
			l.waiting = f
			go fs.fly(ctx, v, l, f, true)
		}
		f.add(l, key)
		if len(f.keys) == partKeys {
			l.waiting = nil
			close(f.full)
		}
	}
	fs.mutex.Unlock()
	if err := f.wait(ctx, v); err != nil {
		return nil, err
	}
	return f.values[string(key)], nil
}

func (f *flight) add(l *lane, key []byte) {
	f.keys = append(f.keys, append([]byte{}, key...))
	l.wanted[string(key)] = f
}

// wait waits for the result of a call, which lives on if the caller's context ends.
func (f *flight) wait(ctx context.Context, v *View) error {
	select {
	case <-f.done:
	case <-ctx.Done():
		return fmt.Errorf("state: a read at %s: %w", v.at.stamp, context.Cause(ctx))
	}
	if f.err == nil {
		v.confirmed.Store(f.confirmed)
	}
	return f.err
}

// all reads keys, in ascending order and each once, by calls that have some each. Other keys may be
// in the result.
func (fs *flights) all(ctx context.Context, v *View, keys [][]byte) (map[string][]byte, error) {
	fs.mutex.Lock()
	l := fs.lane(v.at.stamp)
	awaited := make(map[*flight]bool)
	var parts []*flight
	for _, key := range keys {
		f := l.wanted[string(key)]
		if f == nil {
			if n := len(parts); n == 0 || len(parts[n-1].keys) == partKeys {
				parts = append(parts, newFlight())
			}
			f = parts[len(parts)-1]
			f.add(l, key)
		}
		awaited[f] = true
	}
	l.airborne += len(parts)
	fs.mutex.Unlock()
	for _, f := range parts {
		go fs.fly(ctx, v, l, f, false)
	}
	values := make(map[string][]byte, len(keys))
	for f := range awaited {
		if err := f.wait(ctx, v); err != nil {
			return nil, err
		}
		maps.Copy(values, f.values)
	}
	return values, nil
}

// fly makes a call, after others had the chance to join it.
func (fs *flights) fly(ctx context.Context, v *View, l *lane, f *flight, joined bool) {
	c := v.cache
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.options.Timeout)
	defer cancel()
	if joined {
		fs.gather(l, f)
	}
	select {
	case fs.slots <- struct{}{}:
		f.confirmed = c.store.confirmed()
		f.values = make(map[string][]byte, len(f.keys))
		f.err = c.load(ctx, v.at, f.keys, f.values)
		<-fs.slots
	case <-ctx.Done():
		f.err = fmt.Errorf("state: no room for a read at %s: %w", v.at.stamp, context.Cause(ctx))
	}
	fs.mutex.Lock()
	defer fs.mutex.Unlock()
	for _, key := range f.keys {
		delete(l.wanted, string(key))
	}
	l.airborne--
	close(l.landed)
	l.landed = make(chan struct{})
	if len(l.wanted) == 0 {
		delete(fs.lanes, v.at.stamp)
	}
	close(f.done)
}

// gather waits for others to join a call, if another one of the version is under way: until that
// lands, the call is full, or a short time is over.
func (fs *flights) gather(l *lane, f *flight) {
	fs.mutex.Lock()
	busy, landed := l.airborne > 0, l.landed
	fs.mutex.Unlock()
	if busy {
		timer := time.NewTimer(gather)
		defer timer.Stop()
		select {
		case <-landed:
		case <-f.full:
		case <-timer.C:
		}
	}
	fs.mutex.Lock()
	defer fs.mutex.Unlock()
	if l.waiting == f {
		l.waiting = nil
	}
	l.airborne++
}

// load reads keys of a version from the ledger, and fills the cache. An answer that would be too
// large is read in halves.
func (c *Cache) load(
	ctx context.Context,
	at place,
	keys [][]byte,
	values map[string][]byte,
) error {
	got, err := c.read(ctx, at.stamp, keys, c.options.proven())
	if err == nil && c.options.picks() {
		err = c.compare(ctx, at, keys, got)
	}
	if half := len(keys) / 2; half > 0 && coppice.TooLarge(err) {
		if err := c.load(ctx, at, keys[:half], values); err != nil {
			return err
		}
		return c.load(ctx, at, keys[half:], values)
	}
	if err != nil {
		if evidence := evidenceOf(err); evidence != nil {
			return c.fail(evidence)
		}
		return fmt.Errorf("state: a read at %s: %w", at.stamp, err)
	}
	for i, key := range keys {
		value, changed := valueOf(got.Records[i]), uint64(0)
		if value != nil {
			changed = got.Records[i].LastChanged.Version
		}
		values[string(key)] = value
		held, contradiction := c.store.fill(key, at, value, changed)
		if contradiction != nil {
			contradiction.Shown = got.Proof
			return c.fail(contradiction)
		}
		if held {
			c.counts.fills.Add(1)
		} else {
			c.counts.refusedFills.Add(1)
		}
	}
	return nil
}

// compare proves what a read took on trust.
func (c *Cache) compare(
	ctx context.Context,
	at place,
	keys [][]byte,
	told *coppice.BatchGot,
) error {
	got, err := c.read(ctx, at.stamp, keys, true)
	if err != nil {
		return err
	}
	for i := range keys {
		a, b := told.Records[i], got.Records[i]
		if !same(valueOf(a), valueOf(b)) || a != nil && a.LastChanged != b.LastChanged {
			why := fmt.Sprintf(
				"the value of %q was read, and is not the proven one at %s",
				keys[i],
				at.stamp,
			)
			return &Evidence{Why: why, Shown: got.Proof}
		}
	}
	return nil
}

// read asks the ledger for keys of a version. A coordinator that is behind, and does not know a
// version yet that the stream has shown, is asked again for a while.
func (c *Cache) read(
	ctx context.Context, at coppice.Stamp, keys [][]byte, proven bool,
) (*coppice.BatchGot, error) {
	for tries := 0; ; tries++ {
		c.counts.reads.Add(1)
		got, err := c.ledger.BatchGet(ctx, keys, &coppice.Read{At: &at, Unproven: !proven})
		if err == nil && len(got.Records) != len(keys) {
			err = errors.New("state: the answer has other keys than the question")
		}
		if err == nil && proven {
			c.counts.proven.Add(uint64(len(keys)))
		}
		if !errors.Is(err, coppice.NotYet) || tries == behindMax || c.store.above(at) {
			return got, err
		}
		if sleep(ctx, c.pause) != nil {
			return nil, err
		}
	}
}
