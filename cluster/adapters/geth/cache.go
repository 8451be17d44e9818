package geth

import (
	"container/list"
	"math"
	"slices"
	"sync"

	"coppice.dev/sdk/coppice"
)

const (
	// intervalsMax is how many intervals of one key the cache holds. Beyond that, the oldest is
	// dropped.
	intervalsMax = 4
	// cutsMax is how many rollbacks the cache remembers. Beyond that, older views are no longer
	// served.
	cutsMax = 1024
	// entryBytes is what an interval takes besides its key and value.
	entryBytes = 160
)

// open is the end of an interval that holds up to the frontier, also when the frontier moves.
const open = math.MaxUint64

// interval says that a key had a value in the versions from..to of the present lineage.
type interval struct {
	from, to uint64
	// value is nil if the key had none.
	value []byte
}

// cut is a rollback: of the versions of older epochs, those up to the base stand.
type cut struct {
	epoch, base uint64
}

// cache holds what was read or written of the present lineage of a ledger, by versions.
//
// The frontier is the newest version that this process has written or read. An interval that is
// open holds up to it, since each write of this process closes those of its keys. Fills of views
// that a rollback ended are refused by their epoch, however late they come.
type cache struct {
	mutex    sync.Mutex
	frontier coppice.Stamp
	// cuts are in ascending order, of epochs and of bases.
	cuts []cut
	// generation grows whenever cuts are forgotten. Views of an older generation are not served, since
	// it is unknown whether they stand.
	generation uint64
	keys       map[string]*list.Element
	// recent has the keys, the one that was used last in front.
	recent   *list.List
	bytes    int
	bytesMax int
	hits     uint64
	misses   uint64
}

// place is a version that a view reads, as it was found in a generation of the cache.
type place struct {
	stamp      coppice.Stamp
	generation uint64
}

// cached are the intervals of a key, in ascending order. Where two overlap, they have one value.
type cached struct {
	key       string
	intervals []interval
}

func newCache(bytesMax int) *cache {
	c := &cache{bytesMax: bytesMax}
	c.reset(coppice.Stamp{})
	return c
}

// reset drops everything, and begins at a frontier. Older views are no longer served.
func (c *cache) reset(frontier coppice.Stamp) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.frontier, c.cuts = frontier, nil
	c.generation++
	c.keys, c.recent, c.bytes = make(map[string]*list.Element), list.New(), 0
}

// place gives the place of a version that stands now.
func (c *cache) place(at coppice.Stamp) place {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return place{stamp: at, generation: c.generation}
}

// stands tells whether a version is of the present lineage, and not above the frontier.
func (c *cache) stands(at place) bool {
	if at.generation != c.generation || at.stamp.Version > c.frontier.Version {
		return false
	}
	for _, cut := range c.cuts {
		if cut.epoch > at.stamp.Epoch && at.stamp.Version > cut.base {
			return false
		}
	}
	return true
}

// get gives the value of a key in a version, if it is known.
func (c *cache) get(key []byte, at place) (value []byte, known bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	element := c.keys[string(key)]
	if element != nil && c.stands(at) {
		for _, held := range element.Value.(*cached).intervals {
			if held.from <= at.stamp.Version && at.stamp.Version <= held.to {
				c.recent.MoveToFront(element)
				c.hits++
				return held.value, true
			}
		}
	}
	c.misses++
	return nil, false
}

// fill adds the result of a read in a version: a value with the version of its last change, or nil.
// The proof of the read says that nothing came between the two.
func (c *cache) fill(key []byte, at place, value []byte, changed uint64) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.stands(at) {
		return
	}
	version := at.stamp.Version
	held := interval{from: changed, to: version, value: value}
	if value == nil {
		held.from = version
	}
	if version == c.frontier.Version {
		held.to = open
	}
	c.put(string(key), held)
}

// write adds the values of a version that this process wrote: nil for a key without one.
func (c *cache) write(at coppice.Stamp, values map[string][]byte) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.frontier = at
	for key, value := range values {
		c.change(key, func(held []interval) []interval {
			for i := range held {
				if held[i].to == open {
					held[i].to = at.Version - 1
				}
			}
			return held
		})
		c.put(key, interval{from: at.Version, to: open, value: value})
	}
}

// rollback follows a rollback: head is the base in the epoch that begins. Intervals that reach the
// base hold at head again, since all that closed them is undone.
func (c *cache) rollback(head coppice.Stamp) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.frontier = head
	// A cut whose base is not below the new base is covered by the new cut.
	c.cuts = slices.DeleteFunc(c.cuts, func(old cut) bool { return old.base >= head.Version })
	c.cuts = append(c.cuts, cut{epoch: head.Epoch, base: head.Version})
	if len(c.cuts) > cutsMax {
		c.generation++
		c.cuts = slices.Delete(c.cuts, 0, 1)
	}
	for element := c.recent.Front(); element != nil; {
		next := element.Next()
		c.change(element.Value.(*cached).key, func(held []interval) []interval {
			held = slices.DeleteFunc(held, func(i interval) bool { return i.from > head.Version })
			for i := range held {
				if held[i].to >= head.Version {
					held[i].to = open
				}
			}
			return held
		})
		element = next
	}
}

// put adds an interval to those of its key. An interval that begins with the same version has the
// same value, and extends the known one.
func (c *cache) put(key string, held interval) {
	c.change(key, func(all []interval) []interval {
		for i := range all {
			if all[i].from <= held.to && held.from <= all[i].to {
				all[i].from, all[i].to = min(all[i].from, held.from), max(all[i].to, held.to)
				return all
			}
		}
		at, _ := slices.BinarySearchFunc(all, held.from, func(i interval, from uint64) int {
			if i.from < from {
				return -1
			}
			return 1
		})
		all = slices.Insert(all, at, held)
		if len(all) > intervalsMax {
			all = slices.Delete(all, 0, 1)
		}
		return all
	})
	if element := c.keys[key]; element != nil {
		c.recent.MoveToFront(element)
	}
	for c.bytes > c.bytesMax {
		c.change(c.recent.Back().Value.(*cached).key, func([]interval) []interval { return nil })
	}
}

// change replaces the intervals of a key, and counts their bytes.
func (c *cache) change(key string, to func([]interval) []interval) {
	element := c.keys[key]
	if element == nil {
		element = c.recent.PushBack(&cached{key: key})
		c.keys[key] = element
	}
	entry := element.Value.(*cached)
	c.bytes -= entry.bytes()
	entry.intervals = to(entry.intervals)
	c.bytes += entry.bytes()
	if len(entry.intervals) == 0 {
		c.recent.Remove(element)
		delete(c.keys, key)
	}
}

func (e *cached) bytes() (sum int) {
	for i := range e.intervals {
		sum += entryBytes + len(e.key) + len(e.intervals[i].value)
	}
	return sum
}

func (c *cache) stats() (hits, misses uint64) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.hits, c.misses
}
