package geth

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"coppice.dev/sdk/coppice"
)

// model is a ledger of one writer: its versions, and all that were rolled back.
type model struct {
	// versions are the versions that stand. The first is empty.
	versions []modelVersion
	epoch    uint64
}

type modelVersion struct {
	stamp  coppice.Stamp
	values map[string]string
	// changed is the version of the last change of each key with a value.
	changed map[string]uint64
}

// late is a read that was answered, and has not filled the cache yet.
type late struct {
	key     string
	at      place
	version modelVersion
}

func (m *model) head() *modelVersion { return &m.versions[len(m.versions)-1] }

// write gives some keys values, or takes them away.
func (m *model) write(random *rand.Rand, keys []string) (coppice.Stamp, map[string][]byte) {
	last := m.head()
	next := modelVersion{
		stamp:  coppice.Stamp{Epoch: m.epoch, Version: last.stamp.Version + 1},
		values: map[string]string{}, changed: map[string]uint64{},
	}
	for key, value := range last.values {
		next.values[key], next.changed[key] = value, last.changed[key]
	}
	written := map[string][]byte{}
	for range 1 + random.IntN(3) {
		key := keys[random.IntN(len(keys))]
		if random.IntN(4) == 0 {
			delete(next.values, key)
			delete(next.changed, key)
			written[key] = nil
			continue
		}
		value := fmt.Sprintf("%s at %s", key, next.stamp)
		next.values[key], next.changed[key], written[key] = value, next.stamp.Version, []byte(value)
	}
	m.versions = append(m.versions, next)
	return next.stamp, written
}

func fillFrom(c *cache, l late) {
	if value, has := l.version.values[l.key]; has {
		c.fill([]byte(l.key), l.at, []byte(value), l.version.changed[l.key])
	} else {
		c.fill([]byte(l.key), l.at, nil, 0)
	}
}

// checkView compares the cache's values for a version with the true ones.
func checkView(t *testing.T, seed uint64, c *cache, keys []string, at place, version modelVersion) (hits int) {
	t.Helper()
	for _, key := range keys {
		value, known := c.get([]byte(key), at)
		if !known {
			continue
		}
		hits++
		expected, has := version.values[key]
		if has != (value != nil) || string(value) != expected {
			t.Fatalf("seed %d: %s at %s is %q, and %q is cached", seed, key, at.stamp, expected, value)
		}
	}
	return hits
}

// Reads, writes, rollbacks and fills that come late, in any order: the cache never contradicts what
// the ledger said of a version, whether that version still stands or not.
func TestTheCacheSaysOfEachVersionWhatTheLedgerDid(t *testing.T) {
	keys := []string{"a", "b", "c", "d", "e"}
	hits, dead, afterRollback := 0, 0, 0
	for seed := range uint64(10_000) {
		random := rand.New(rand.NewPCG(seed, 1))
		m := &model{versions: []modelVersion{{}}}
		c := newCache(2000 + random.IntN(20_000))
		type view struct {
			at      place
			version modelVersion
		}
		var views []view
		var waiting []late
		rolled := false
		for range 60 {
			switch random.IntN(8) {
			case 0, 1:
				at, written := m.write(random, keys)
				c.write(at, written)
			case 2:
				if len(m.versions) > 1 {
					base := random.IntN(len(m.versions))
					m.versions = m.versions[:base+1]
					m.epoch++
					c.rollback(coppice.Stamp{Epoch: m.epoch, Version: m.head().stamp.Version})
					rolled = true
				}
			case 3:
				if random.IntN(10) == 0 {
					c.reset(m.head().stamp)
				}
			case 4:
				version := m.versions[random.IntN(len(m.versions))]
				views = append(views, view{at: c.place(version.stamp), version: version})
			case 5, 6:
				if len(views) > 0 {
					v := views[random.IntN(len(views))]
					waiting = append(waiting, late{key: keys[random.IntN(len(keys))], at: v.at, version: v.version})
				}
			case 7:
				if len(waiting) > 0 {
					at := random.IntN(len(waiting))
					fillFrom(c, waiting[at])
					waiting = append(waiting[:at], waiting[at+1:]...)
				}
			}
			for _, v := range views {
				got := checkView(t, seed, c, keys, v.at, v.version)
				hits += got
				if rolled {
					afterRollback += got
				}
				if !c.stands(v.at) {
					dead++
				}
			}
			if c.bytes > c.bytesMax || len(c.keys) != c.recent.Len() {
				t.Fatalf("seed %d: %d bytes, %d keys of %d", seed, c.bytes, len(c.keys), c.recent.Len())
			}
		}
	}
	if hits == 0 || dead == 0 || afterRollback == 0 {
		t.Errorf("%d hits, %d of them after a rollback, %d dead views", hits, afterRollback, dead)
	}
}

func stamp(epoch, version uint64) coppice.Stamp { return coppice.Stamp{Epoch: epoch, Version: version} }

func TestAFillOfADeadEpochIsRefusedHoweverLateItComes(t *testing.T) {
	c := newCache(1 << 20)
	c.write(stamp(0, 1), map[string][]byte{"k": []byte("1")})
	c.write(stamp(0, 2), map[string][]byte{"k": []byte("2")})
	dead := c.place(stamp(0, 2))
	c.rollback(stamp(1, 1))
	c.write(stamp(1, 2), map[string][]byte{"other": []byte("x")})
	c.fill([]byte("k"), dead, []byte("2"), 2)
	if value, _ := c.get([]byte("k"), c.place(stamp(1, 2))); string(value) != "1" {
		t.Errorf("%q", value)
	}
	if _, known := c.get([]byte("k"), dead); known {
		t.Error("a dead version is served")
	}
}

func TestOldRollbacksAreForgottenWithTheirViews(t *testing.T) {
	c := newCache(1 << 20)
	c.write(stamp(0, 1), map[string][]byte{"k": []byte("1")})
	old := c.place(stamp(0, 1))
	for i := range uint64(cutsMax + 1) {
		if _, known := c.get([]byte("k"), old); !known {
			t.Fatalf("after %d rollbacks nothing is known", i)
		}
		c.write(stamp(i, i+2), map[string][]byte{"other": {1}})
		c.write(stamp(i, i+3), map[string][]byte{"other": {2}})
		c.rollback(stamp(i+1, i+2))
	}
	if _, known := c.get([]byte("k"), old); known || len(c.cuts) > cutsMax {
		t.Errorf("a view of before %d rollbacks is served", len(c.cuts))
	}
	if value, _ := c.get([]byte("k"), c.place(stamp(0, 1))); string(value) != "1" {
		t.Errorf("%q", value)
	}
}
