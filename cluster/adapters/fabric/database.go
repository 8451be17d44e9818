package fabric

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"coppice.dev/sdk/coppice"
)

// chunkKeys is how many keys are asked for at one time.
const chunkKeys = 4096

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
	// doubt tells that the outcome of a commit is unknown, and uncertain is what it writes.
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
//
// A cache of what simulations read would stand here: each answer is of one version, and of the
// database after the commit at d.at.
func (d *database) read(names []name) (map[name]*entry, error) {
	d.mutex.RLock()
	defer d.mutex.RUnlock()
	return d.readLocked(names)
}

// readLocked is like read. The lock is held.
func (d *database) readLocked(names []name) (map[name]*entry, error) {
	entries := make(map[name]*entry, len(names))
	for _, n := range names {
		if err := checkName(n.namespace, n.key); err != nil {
			return nil, err
		}
		entries[n] = nil
	}
	ctx, cancel, err := d.provider.call()
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := d.ready(); err != nil {
		return nil, err
	}
	var at coppice.Read
	for chunk := range slices.Chunk(names, chunkKeys) {
		if err := d.readChunk(ctx, chunk, &at, entries); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// readChunk asks for keys at once, or in parts if the answer would be too large. The first answer
// fixes the version.
func (d *database) readChunk(
	ctx context.Context,
	chunk []name,
	at *coppice.Read,
	entries map[name]*entry,
) error {
	asked := make([][]byte, len(chunk))
	for i, n := range chunk {
		asked[i] = d.keys.data(n.namespace, n.key)
	}
	got, err := d.provider.client.BatchGet(ctx, asked, at)
	if err != nil {
		if half := len(chunk) / 2; half > 0 && divisible(err) {
			if err := d.readChunk(ctx, chunk[:half], at, entries); err != nil {
				return err
			}
			return d.readChunk(ctx, chunk[half:], at, entries)
		}
		return err
	}
	at.At = &got.ReadAt
	for i, record := range got.Records {
		if record == nil {
			continue
		}
		if entries[chunk[i]], err = decodeEntry(record.Value); err != nil {
			return fmt.Errorf("key %q of %q: %w", chunk[i].key, chunk[i].namespace, err)
		}
	}
	return nil
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
