package state

import (
	"bytes"
	"container/list"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"coppice.dev/sdk/coppice"
)

const (
	// intervalsMax is how many intervals of one key are held. Beyond that, the oldest is dropped.
	intervalsMax = 4
	// entryBytes is what an interval takes besides its key and value.
	entryBytes = 192
)

// open is the end of an interval that holds up to the frontier, also when the frontier moves.
const open = math.MaxUint64

// interval says that a key had a value in the versions from..to of the present lineage. A value
// begins with the version of its last change. The absence of one may have begun earlier.
type interval struct {
	from, to uint64
	// value is nil if the key had none.
	value []byte
}

// holding are the intervals of a key, in ascending order. No two overlap.
type holding struct {
	key       string
	intervals []interval
	// at is the place in the list of all.
	at int
}

func (h *holding) bytes() (sum int) {
	for i := range h.intervals {
		sum += entryBytes + len(h.key) + len(h.intervals[i].value)
	}
	return sum
}

func (h *holding) isOpen() bool {
	n := len(h.intervals)
	return n > 0 && h.intervals[n-1].to == open
}

// store holds the values of keys by intervals of versions, within a bound of bytes.
//
// Each interval was true of the lineage when it was added, and rollbacks cut what they undo. An
// open interval holds up to the frontier, since each version that moves the frontier closes the
// intervals of all keys that it wrote: those that it names, or all if they are not known.
type store struct {
	mutex sync.Mutex
	line  lineage
	// window has the keys of the newest versions.
	window window
	keys   map[string]*list.Element
	all    []*holding
	// recent has the holdings, the one that was used last in front.
	recent   *list.List
	bytes    int
	bytesMax int
	// opened counts the open intervals.
	opened int
	counts *counters
	// planted is a bug that a test of the model puts in, and must then find.
	planted bug
}

// bug is a deliberate bug. None is in the product.
type bug int

const (
	noBug bug = iota
	// deadFills admits fills of epochs that a rollback ended.
	deadFills
	// skippedFrontier moves the frontier over versions whose changes are not known.
	skippedFrontier
	// reopenedWrongly reopens, at a rollback, intervals that ended below its base.
	reopenedWrongly
)

func newStore(bytesMax int, counts *counters) *store {
	s := &store{bytesMax: bytesMax, counts: counts}
	s.clear()
	return s
}

func (s *store) clear() {
	s.keys, s.all, s.recent = make(map[string]*list.Element), nil, list.New()
	s.bytes, s.opened = 0, 0
}

// begin drops everything, and begins at a version. Older views read through from then on.
func (s *store) begin(at coppice.Stamp, boundary uint64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.clear()
	s.line.begin(at, boundary)
	s.window.forget(at.Version)
}

// end drops everything.
func (s *store) end() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.clear()
	s.line.end()
	s.window.forget(0)
}

// head gives the place of the frontier, if it is known.
func (s *store) head() (place, bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return place{stamp: s.line.frontier, generation: s.line.generation}, s.line.known
}

// place gives the place of a version, whether it stands or not.
func (s *store) place(at coppice.Stamp) place {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return place{stamp: at, generation: s.line.generation}
}

// confirmed gives what a view keeps of an answer by the ledger at its stamp.
func (s *store) confirmed() uint64 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.line.frontier.Epoch + 1
}

func (s *store) above(at coppice.Stamp) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.line.above(at)
}

// get gives the value of a key in a version, if it is known. The stamp must certainly name a
// version: the lineage knows it, or the ledger has confirmed it in an epoch (see confirmed).
func (s *store) get(key []byte, at place, confirmed uint64) (value []byte, known bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	element := s.keys[string(key)]
	if element == nil || !s.line.stands(at) ||
		!s.line.names(at.stamp) && !s.line.confirms(at.stamp, confirmed) {
		return nil, false
	}
	for _, held := range element.Value.(*holding).intervals {
		if held.from <= at.stamp.Version && at.stamp.Version <= held.to {
			s.recent.MoveToFront(element)
			return held.value, true
		}
	}
	return nil, false
}

// fill adds what a read of a version gave: a value with the version of its last change, or nil. Its
// error is a contradiction to what is held. A fill of a version that does not stand, or that is
// above the frontier, is refused: held is false.
func (s *store) fill(
	key []byte,
	at place,
	value []byte,
	changed uint64,
) (held bool, err *Evidence) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.planted == deadFills && at.generation == s.line.generation &&
		at.stamp.Version <= s.line.frontier.Version {
		at.stamp.Epoch = s.line.frontier.Epoch
	}
	if !s.line.stands(at) {
		return false, nil
	}
	version := at.stamp.Version
	filled := interval{from: changed, to: version, value: value}
	if value == nil {
		filled.from = version
	} else if changed > version {
		return false, &Evidence{Why: "a value was changed after the version that has it"}
	}
	if s.window.untouched(string(key), version) {
		filled.to = open
	}
	return true, s.put(string(key), filled)
}

// commit moves the frontier to a version. Its writes are nil for each key that it deletes; without
// a map, they are not known. With keysOnly, the values in the map are not known. A version that the
// frontier has passed changes nothing. If it is not the next one, it is taken only with gaps, and
// what lies between is not known.
func (s *store) commit(
	at coppice.Stamp,
	writes map[string][]byte,
	keysOnly, gaps bool,
) (moved bool, err *Evidence) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.line.above(at) {
		return false, nil
	}
	before := s.line.frontier
	next := s.line.known && at == coppice.Stamp{Epoch: before.Epoch, Version: before.Version + 1}
	switch {
	case !next && !gaps:
		return false, nil
	case !s.line.known || at.Epoch != before.Epoch:
		s.clear()
		s.line.begin(at, s.line.boundary)
		s.window.forget(at.Version)
	case !next || writes == nil:
		s.skip(before.Version, at.Version)
	}
	s.line.frontier = at
	if next && writes != nil {
		s.window.add(at.Version, writes)
	}
	for key, value := range writes {
		if s.keys[key] != nil {
			s.change(key, closedAt(at.Version-1))
		}
		if keysOnly {
			continue
		}
		if err := s.put(key, interval{from: at.Version, to: open, value: value}); err != nil {
			return true, err
		}
	}
	return true, nil
}

// late adds what a version wrote that the frontier has reached. The stream may have brought no more
// than its keys.
func (s *store) late(at coppice.Stamp, writes map[string][]byte) *Evidence {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.line.above(at) || !s.line.names(at) || at.Version < s.line.boundary {
		return nil
	}
	for key, value := range writes {
		written := interval{from: at.Version, to: at.Version, value: value}
		if s.window.untouched(key, at.Version) {
			written.to = open
		}
		if err := s.put(key, written); err != nil {
			return err
		}
	}
	return nil
}

// skip ends all that is open with the frontier so far. It stays true up to there.
func (s *store) skip(before, floor uint64) {
	if s.planted == skippedFrontier {
		return
	}
	s.counts.unknown.Add(1)
	s.window.forget(floor)
	if s.opened > 0 {
		s.changeAll(closedAt(before))
	}
}

// closedAt ends the open interval with a version.
func closedAt(version uint64) func([]interval) []interval {
	return func(held []interval) []interval {
		for i := range held {
			if held[i].to == open {
				held[i].to = version
			}
		}
		return held
	}
}

// rollback follows a rollback: head is its base, in the epoch that begins. Intervals that hold at
// the base hold at head again, since all that closed them is undone. A rollback that is known
// already changes nothing.
func (s *store) rollback(head coppice.Stamp) (moved bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	switch {
	case s.line.known && head.Epoch <= s.line.frontier.Epoch:
		return false
	case !s.line.known || head.Epoch != s.line.frontier.Epoch+1 ||
		head.Version > s.line.frontier.Version:
		// Rollbacks or commits in between are not known.
		s.clear()
		s.line.begin(head, s.line.boundary)
		s.window.forget(head.Version)
		return true
	}
	s.line.rollback(head)
	s.window.rollback(head.Version)
	s.changeAll(func(held []interval) []interval {
		held = slices.DeleteFunc(held, func(i interval) bool { return i.from > head.Version })
		if n := len(held); n > 0 && (held[n-1].to >= head.Version || s.planted == reopenedWrongly) {
			held[n-1].to = open
		}
		return held
	})
	return true
}

// prune follows a prune: versions below the boundary are no longer served.
func (s *store) prune(boundary uint64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.line.boundary = max(s.line.boundary, boundary)
	s.changeAll(func(held []interval) []interval {
		return slices.DeleteFunc(held, func(i interval) bool { return i.to < boundary })
	})
}

func (s *store) changeAll(to func([]interval) []interval) {
	for element := s.recent.Front(); element != nil; {
		next := element.Next()
		s.change(element.Value.(*holding).key, to)
		element = next
	}
}

// put adds an interval to those of its key, and joins it with one that it overlaps: that has the
// same value, which began with the same version, or there is a contradiction.
func (s *store) put(key string, added interval) (contradiction *Evidence) {
	s.change(key, func(all []interval) []interval {
		joined := added
		all = slices.DeleteFunc(all, func(held interval) bool {
			if held.from > joined.to || joined.from > held.to {
				return false
			}
			if (held.value == nil) != (joined.value == nil) || !bytes.Equal(held.value, joined.value) ||
				held.value != nil && held.from != joined.from {
				contradiction = &Evidence{Why: "a key has two values, or two last changes, in one version"}
			}
			joined.from, joined.to = min(joined.from, held.from), max(joined.to, held.to)
			return true
		})
		at, _ := slices.BinarySearchFunc(all, joined.from, func(i interval, from uint64) int {
			if i.from < from {
				return -1
			}
			return 1
		})
		all = slices.Insert(all, at, joined)
		if len(all) > intervalsMax {
			all = slices.Delete(all, 0, 1)
		}
		return all
	})
	if element := s.keys[key]; element != nil {
		s.recent.MoveToFront(element)
	}
	for s.bytes > s.bytesMax {
		s.change(s.recent.Back().Value.(*holding).key, func([]interval) []interval { return nil })
	}
	return contradiction
}

// change replaces the intervals of a key, and counts what they take.
func (s *store) change(key string, to func([]interval) []interval) {
	element := s.keys[key]
	if element == nil {
		element = s.recent.PushBack(&holding{key: key, at: len(s.all)})
		s.keys[key] = element
		s.all = append(s.all, element.Value.(*holding))
	}
	held := element.Value.(*holding)
	s.bytes -= held.bytes()
	if held.isOpen() {
		s.opened--
	}
	held.intervals = to(held.intervals)
	s.bytes += held.bytes()
	if held.isOpen() {
		s.opened++
	}
	if len(held.intervals) == 0 {
		s.recent.Remove(element)
		delete(s.keys, key)
		last := len(s.all) - 1
		s.all[held.at] = s.all[last]
		s.all[held.at].at = held.at
		s.all[last] = nil
		s.all = s.all[:last]
	}
}

// picked is a cached key, and its value at the frontier.
type picked struct {
	key   string
	value []byte
}

// sample picks keys at random, each as likely as any other, and gives those that are open.
func (s *store) sample(count int) (at place, keys []picked) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	at = place{stamp: s.line.frontier, generation: s.line.generation}
	seen := make(map[int]bool, count)
	for range 4 * count {
		if len(keys) == count || len(seen) == len(s.all) {
			break
		}
		i := rand.IntN(len(s.all))
		if held := s.all[i]; !seen[i] && held.isOpen() {
			keys = append(keys, picked{key: held.key, value: held.intervals[len(held.intervals)-1].value})
		}
		seen[i] = true
	}
	return at, keys
}

// size gives the keys and bytes that are held.
func (s *store) size() (keys, bytes int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return len(s.keys), s.bytes
}
