package state

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"coppice.dev/sdk/coppice"
)

var seedsFlag = flag.Uint64(
	"seeds",
	0,
	"seeds of the model test; without it, as many as 4 seconds allow",
)

const modelTime = 4 * time.Second

// trial is one run of a cache beside its model, which follows from a seed.
type trial struct {
	*world
	random *rand.Rand
	keys   []string
	views  []*View
	slow   []*slow
	// late are own writes that the cache has not heard of.
	late []written
	// stale tells that the stream has not shown everything.
	stale bool
	tally map[string]int
}

const stepsOfTrial = 60

// run gives the first difference between cache and model.
func runTrial(t testing.TB, seed uint64, planted bug, tally map[string]int) error {
	random := rand.New(rand.NewPCG(seed, 1))
	// Small caches evict, and large ones keep everything.
	w := newWorld(t, Options{
		Bytes: 1500 + random.IntN(20_000), Samples: random.IntN(2), KeysOnly: random.IntN(3) == 0,
	})
	w.cache.store.planted = planted
	r := &trial{world: w, random: random, keys: []string{"a", "b", "c", "d"}, tally: tally}
	err := w.follow()
	defer w.close()
	for step := 0; step < stepsOfTrial && err == nil; step++ {
		if err = r.step(); err != nil {
			err = fmt.Errorf("seed %d, step %d: %w", seed, step, err)
		}
	}
	for _, s := range r.slow {
		s.land()
	}
	metrics := w.cache.Metrics()
	tally["hits"] += int(metrics.Hits)
	tally["refused fills"] += int(metrics.RefusedFills)
	tally["unknown versions"] += int(metrics.Unknown)
	tally["cuts"] += int(metrics.Cuts)
	if keys, bytes := w.cache.store.size(); bytes > w.cache.options.Bytes ||
		keys != w.cache.store.recent.Len() ||
		keys != len(w.cache.store.all) {
		return fmt.Errorf("seed %d: %d bytes, %d keys", seed, bytes, keys)
	}
	return err
}

func (r *trial) step() error {
	switch n := r.random.IntN(32); {
	case n < 6:
		r.write(r.writes())
		if r.random.IntN(10) == 0 {
			r.listsGone[uint64(len(r.log)-1)] = true
		}
		return r.next()
	case n < 8:
		if base := uint64(r.random.IntN(len(r.versions))); base >= r.boundary && len(r.versions) > 1 {
			r.back(base)
			r.tally["rollbacks"]++
			return r.next()
		}
	case n == 8:
		if boundary := uint64(r.random.IntN(len(r.versions))); boundary > r.boundary &&
			r.random.IntN(3) == 0 {
			r.prune(boundary)
			return r.next()
		}
	case n == 9:
		r.stale = true
		return r.cutStream(true)
	case n < 12:
		return r.whole()
	case n < 15:
		r.look()
	case n < 18:
		r.holdOne()
	case n < 20:
		return r.landOne()
	case n < 22:
		return r.own()
	case n == 22:
		return r.answer()
	default:
		return r.readSome()
	}
	return nil
}

// writes are some values, and some deletions.
func (r *trial) writes() map[string]*string {
	writes := map[string]*string{}
	for range 1 + r.random.IntN(2) {
		key := r.keys[r.random.IntN(len(r.keys))]
		if writes[key] = nil; r.random.IntN(4) > 0 {
			writes[key] = text(fmt.Sprintf("%s, the %d. header", key, len(r.log)))
		}
	}
	return writes
}

// next shows the newest headers at once, or leaves them for later.
func (r *trial) next() error {
	if r.stale || r.random.IntN(5) == 0 {
		r.stale = true
		return nil
	}
	return r.let()
}

// whole heals the stream, and lets the cache reach the head.
func (r *trial) whole() error {
	r.stale = false
	r.model.mutex.Lock()
	r.oldHeads, r.oldCheckpoints = r.random.IntN(2), r.random.IntN(4)
	r.show()
	r.model.mutex.Unlock()
	return r.cutStream(false)
}

// written is a commit of this process.
type written struct {
	stamp  coppice.Stamp
	values map[string][]byte
}

// own is a write of this process, which the cache hears of at once, or later.
func (r *trial) own() error {
	writes := r.writes()
	own := written{stamp: r.write(writes), values: map[string][]byte{}}
	for key, value := range writes {
		if own.values[key] = nil; value != nil {
			own.values[key] = []byte(*value)
		}
	}
	if r.random.IntN(2) == 0 {
		r.late = append(r.late, own)
		return r.next()
	}
	if err := r.cache.Apply(own.stamp, own.values); err != nil {
		return err
	}
	return r.next()
}

// answer tells the cache of a commit whose answer was slow.
func (r *trial) answer() error {
	if len(r.late) == 0 {
		return nil
	}
	at := r.random.IntN(len(r.late))
	own := r.late[at]
	r.late = slices.Delete(r.late, at, at+1)
	r.tally["late answers"]++
	return r.cache.Apply(own.stamp, own.values)
}

// look opens a view of some version: of one that stands, that was rolled back, or that never was.
func (r *trial) look() {
	names := make([]coppice.Stamp, 0, len(r.history))
	for name := range r.history {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b coppice.Stamp) int {
		return int(a.Epoch<<32+a.Version) - int(b.Epoch<<32+b.Version)
	})
	name := names[r.random.IntN(len(names))]
	switch r.random.IntN(8) {
	case 0:
		name.Epoch++
	case 1:
		name.Version++
	case 2, 3, 4:
		name = r.present()
	}
	r.views = append(r.views, r.cache.At(name))
	if len(r.views) > 8 {
		r.views = r.views[1:]
	}
}

func (r *trial) readSome() error {
	if len(r.views) == 0 || r.random.IntN(4) == 0 {
		r.model.mutex.Lock()
		r.behind = r.random.IntN(3)
		r.model.mutex.Unlock()
		view, err := r.cache.Head(context.Background())
		if err != nil {
			return err
		}
		r.views = append(r.views, view)
	}
	view := r.views[r.random.IntN(len(r.views))]
	var keys []string
	for _, key := range r.keys {
		held := slices.ContainsFunc(
			r.slow,
			func(s *slow) bool { return s.key == key && s.view.Stamp() == view.Stamp() },
		)
		if !held {
			keys = append(keys, key)
		}
	}
	if r.random.IntN(3) == 0 {
		return r.readAll(view, keys)
	}
	for _, key := range keys {
		value, err := view.Get(context.Background(), []byte(key))
		if err := r.judge(view, key, value, err); err != nil {
			return err
		}
	}
	return nil
}

// readAll reads keys at once, and one of them twice.
func (r *trial) readAll(view *View, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	keys = append(keys, keys[0])
	asked := make([][]byte, len(keys))
	for i, key := range keys {
		asked[i] = []byte(key)
	}
	r.model.mutex.Lock()
	r.keysMax = r.random.IntN(3)
	r.model.mutex.Unlock()
	values, err := view.GetAll(context.Background(), asked)
	r.model.mutex.Lock()
	r.keysMax = 0
	r.model.mutex.Unlock()
	if err != nil {
		return r.judge(view, keys[0], nil, err)
	}
	for i, key := range keys {
		if err := r.judge(view, key, values[i], nil); err != nil {
			return err
		}
	}
	r.tally["reads of several keys"]++
	return nil
}

// judge compares a read with what the model said of the version.
func (r *trial) judge(view *View, key string, value []byte, err error) error {
	stamp := view.Stamp()
	r.model.mutex.Lock()
	_, reason := r.find(stamp)
	r.model.mutex.Unlock()
	if err != nil {
		var refused *coppice.Error
		if !errors.As(err, &refused) {
			return fmt.Errorf("%s at %s: %w", key, stamp, err)
		}
		if reason == "" && refused.Reason != coppice.NotYet {
			return fmt.Errorf("%s at %s is refused: %w", key, stamp, err)
		}
		r.tally["refused reads"]++
		return nil
	}
	values, existed := r.history[stamp]
	if expected, has := values[key]; !existed || has != (value != nil) || expected != string(value) {
		return fmt.Errorf("%s at %s is %q, and not %q", key, stamp, value, expected)
	}
	if reason != "" && !r.stale {
		return fmt.Errorf("%s at %s is served, and the ledger says %s", key, stamp, reason)
	}
	return nil
}

func (r *trial) holdOne() {
	if len(r.views) == 0 || len(r.slow) > 3 {
		return
	}
	view, key := r.views[r.random.IntN(len(r.views))], r.keys[r.random.IntN(len(r.keys))]
	for _, s := range r.slow {
		if s.key == key && s.view.Stamp() == view.Stamp() {
			return
		}
	}
	r.slow = append(r.slow, r.hold(view, key))
}

// landOne ends a slow read. Its answer is from when it began, so it may be of a version that is
// gone.
func (r *trial) landOne() error {
	if len(r.slow) == 0 {
		return nil
	}
	at := r.random.IntN(len(r.slow))
	s := r.slow[at]
	r.slow = slices.Delete(r.slow, at, at+1)
	s.land()
	r.tally["slow reads"]++
	before := r.stale
	r.stale = true
	defer func() { r.stale = before }()
	return r.judge(s.view, s.key, s.value, s.err)
}

// Commits, rollbacks, prunes, own writes, cut streams, journals that are gone, coordinators that
// are behind and slow reads, in any order: no read differs from what the ledger said of its
// version.
func TestNoReadDiffersFromTheLedgers(t *testing.T) {
	tally := map[string]int{}
	until := time.Now().Add(modelTime)
	seed := uint64(0)
	for ; seed < *seedsFlag || *seedsFlag == 0 && time.Now().Before(until); seed++ {
		if err := runTrial(t, seed, noBug, tally); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d seeds: %v", seed, tally)
	for _, what := range []string{
		"hits", "refused fills", "unknown versions", "cuts", "rollbacks", "refused reads", "slow reads",
		"reads of several keys", "late answers",
	} {
		if tally[what] == 0 {
			t.Errorf("no %s", what)
		}
	}
}

// The model finds each of the bugs that caches of this kind have had.
func TestTheModelFindsPlantedBugs(t *testing.T) {
	const seeds = 3000
	for planted, name := range map[bug]string{
		deadFills: "fills of dead epochs are admitted", skippedFrontier: "the frontier skips versions",
		reopenedWrongly: "intervals are reopened wrongly",
	} {
		found := func() error {
			for seed := range uint64(seeds) {
				if err := runTrial(t, seed, planted, map[string]int{}); err != nil {
					return err
				}
			}
			return nil
		}()
		if found == nil {
			t.Errorf("%s, and %d seeds do not find it", name, seeds)
		}
		t.Logf("%s: %v", name, found)
	}
}
