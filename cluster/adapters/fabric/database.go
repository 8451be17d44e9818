package fabric

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"coppice.dev/sdk/coppice"
	cached "coppice.dev/sdk/state"
)

// goneMax is how often a read begins again because the version that it reads is gone.
const goneMax = 5

// database is the state of a channel.
type database struct {
	provider *provider
	channel  string
	keys     keys
	// mutex is held by reads together, and by a write alone.
	mutex sync.RWMutex
	// state is the record as it was last read or written, and at its last change: nil if there is
	// none.
	state   state
	at      *coppice.Stamp
	session *coppice.Session
	// floor is the oldest state that reads may see: that after the last commit of this process, or
	// the one in which the record was read.
	floor *cached.View
	// doubt tells that the outcome of a commit is unknown. That commit, or the one that is under way,
	// writes what uncertain names.
	doubt     bool
	uncertain tag
	// fenced is the error of all writes, once there was another writer.
	fenced error
	// versionsMutex is for versions: heights of the keys that a block's validation reads, nil for
	// those that have no value.
	versionsMutex sync.Mutex
	versions      map[name]*height
}

// name is a key of Fabric's state.
type name struct{ namespace, key string }

// forget drops the versions.
func (d *database) forget() {
	d.versionsMutex.Lock()
	defer d.versionsMutex.Unlock()
	d.versions = make(map[name]*height)
}

// load reads the record of the database, and opens a session.
func (d *database) load(ctx context.Context) error {
	got, err := d.provider.client.Get(ctx, d.keys.state(), nil)
	if err != nil {
		return err
	}
	next, at := &state{}, (*coppice.Stamp)(nil)
	if got.Record != nil {
		if next, err = decodeState(got.Record.Value); err != nil {
			return err
		}
		at = &got.Record.LastChanged
	}
	session, err := d.provider.client.OpenSession(ctx, coppice.NewSessionID())
	if err != nil {
		return err
	}
	d.session, d.state, d.at, d.doubt = session, *next, at, false
	d.floor = d.provider.cache.AtProven(got.ReadAt)
	return nil
}

// ready tells whether the state may be read.
func (d *database) ready() error {
	if d.state.phase == phaseReady {
		return nil
	}
	return ErrUnfinished
}

// read gives the entries of keys, nil for those without a value. All are of one version.
func (d *database) read(names []name) (map[name]*entry, error) {
	d.mutex.RLock()
	defer d.mutex.RUnlock()
	return d.readLocked(names)
}

// readLocked is like read. The lock is held.
func (d *database) readLocked(names []name) (map[name]*entry, error) {
	keys := make([][]byte, len(names))
	for i, n := range names {
		if err := checkName(n.namespace, n.key); err != nil {
			return nil, err
		}
		keys[i] = d.keys.data(n.namespace, n.key)
	}
	ctx, cancel, err := d.provider.call()
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := d.ready(); err != nil {
		return nil, err
	}
	values, err := d.values(ctx, keys)
	if err != nil {
		return nil, d.provider.closedOr(err)
	}
	entries := make(map[name]*entry, len(names))
	for i, n := range names {
		entries[n] = nil
		if values[i] == nil {
			continue
		}
		if entries[n], err = decodeEntry(values[i]); err != nil {
			return nil, fmt.Errorf("key %q of %q: %w", n.key, n.namespace, err)
		}
	}
	return entries, nil
}

// values reads keys of one version. A version that was pruned, or rolled back, before the cache has
// heard of that is given up for the ledger's head. The lock is held.
func (d *database) values(ctx context.Context, keys [][]byte) ([][]byte, error) {
	view, err := d.view(ctx)
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		values, err := view.GetAll(ctx, keys)
		isGone := errors.Is(err, coppice.Pruned) || errors.Is(err, coppice.RolledBack)
		if !isGone || try == goneMax {
			return values, err
		}
		head, err := d.provider.client.Get(ctx, d.keys.state(), nil)
		if err != nil {
			return nil, err
		}
		view = d.provider.cache.AtProven(head.ReadAt)
	}
}

// view gives the state that reads see: the newest one that the cache follows. If the cache is not
// there yet, it is the state after the last commit of this process. No commit of this channel lies
// between the two, unless there is another writer. The lock is held.
func (d *database) view(ctx context.Context) (*cached.View, error) {
	head, err := d.provider.cache.Head(ctx)
	if err != nil {
		return nil, err
	}
	at, floor := head.Stamp(), d.floor.Stamp()
	if at.Epoch < floor.Epoch || at.Epoch == floor.Epoch && at.Version < floor.Version {
		return d.floor, nil
	}
	return head, nil
}

// loadVersions reads the heights of keys, as far as they are not known.
func (d *database) loadVersions(names []name) error {
	// No write comes between reading versions and keeping them.
	d.mutex.RLock()
	defer d.mutex.RUnlock()
	d.versionsMutex.Lock()
	var missing []name
	for _, n := range names {
		if _, known := d.versions[n]; !known {
			missing = append(missing, n)
		}
	}
	d.versionsMutex.Unlock()
	if len(missing) == 0 {
		return nil
	}
	entries, err := d.readLocked(missing)
	if err != nil {
		return err
	}
	d.versionsMutex.Lock()
	defer d.versionsMutex.Unlock()
	for n, e := range entries {
		d.versions[n] = nil
		if e != nil {
			d.versions[n] = &e.at
		}
	}
	return nil
}

func (d *database) cachedVersion(n name) (at *height, known bool) {
	d.versionsMutex.Lock()
	defer d.versionsMutex.Unlock()
	at, known = d.versions[n]
	return at, known
}
