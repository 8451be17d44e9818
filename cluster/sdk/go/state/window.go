package state

const (
	// windowMax is of how many versions the changed keys are remembered, and windowKeysMax how many
	// keys those may have together. A read of an older version fills the cache up to that version
	// alone.
	windowMax     = 128
	windowKeysMax = 1 << 16
)

// touched is a version with the keys that it wrote.
type touched struct {
	version uint64
	keys    map[string]struct{}
}

// window has the keys that the newest versions wrote. Those above its floor are all there.
type window struct {
	floor    uint64
	versions []touched
	keys     int
}

// forget knows nothing of versions up to a floor.
func (w *window) forget(floor uint64) { *w = window{floor: floor} }

// add takes the version after the newest one.
func (w *window) add(version uint64, writes map[string][]byte) {
	keys := make(map[string]struct{}, len(writes))
	for key := range writes {
		keys[key] = struct{}{}
	}
	w.versions = append(w.versions, touched{version: version, keys: keys})
	w.keys += len(keys)
	for len(w.versions) > windowMax || w.keys > windowKeysMax && len(w.versions) > 0 {
		w.floor = w.versions[0].version
		w.keys -= len(w.versions[0].keys)
		w.versions[0] = touched{}
		w.versions = w.versions[1:]
	}
}

// rollback drops the versions above a base.
func (w *window) rollback(base uint64) {
	for len(w.versions) > 0 && w.versions[len(w.versions)-1].version > base {
		w.keys -= len(w.versions[len(w.versions)-1].keys)
		w.versions = w.versions[:len(w.versions)-1]
	}
	w.floor = min(w.floor, base)
}

// untouched tells whether certainly no version behind this one wrote a key.
func (w *window) untouched(key string, version uint64) bool {
	if version < w.floor {
		return false
	}
	for i := len(w.versions) - 1; i >= 0 && w.versions[i].version > version; i-- {
		if _, wrote := w.versions[i].keys[key]; wrote {
			return false
		}
	}
	return true
}
