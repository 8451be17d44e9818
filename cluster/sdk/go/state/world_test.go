package state

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"coppice.dev/sdk/coppice"
)

const testPatience = 30 * time.Second

// world is a cache that follows a model, with what the model said of every version it ever had.
type world struct {
	*model
	cache *Cache
	// history has the values of each name of a version, also of those that were rolled back.
	history map[coppice.Stamp]map[string]string
	cancel  context.CancelFunc
	follows sync.WaitGroup
	ended   error
}

func newWorld(t testing.TB, options Options) *world {
	t.Helper()
	w := &world{model: newModel(), history: map[coppice.Stamp]map[string]string{{}: {}}}
	if options.Wait == 0 {
		options.Wait = 1
	}
	cache, err := New(w.model, options)
	if err != nil {
		t.Fatal(err)
	}
	w.cache, cache.pause = cache, 1
	return w
}

// follow begins to follow the model, and waits for the first header.
func (w *world) follow() error {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.follows.Go(func() { w.ended = w.cache.Follow(ctx) })
	return w.settle()
}

func (w *world) close() {
	w.cancel()
	w.follows.Wait()
}

// settle waits until the cache has applied what the stream shows.
func (w *world) settle() error {
	limit := time.NewTimer(testPatience)
	defer limit.Stop()
	for {
		w.cache.mutex.Lock()
		moved, reached := w.cache.moved, w.cache.broken.IsZero()
		w.cache.mutex.Unlock()
		w.model.mutex.Lock()
		shown, whole := w.shown, w.shown == uint64(len(w.log)) && !w.cut
		w.model.mutex.Unlock()
		if err := w.cache.Err(); err != nil {
			return err
		}
		// A part of the log is not covered by the checkpoint alone: nothing is applied then.
		if !whole || reached && w.cache.size.Load() >= shown {
			return nil
		}
		select {
		case <-moved:
		case <-limit.C:
			return fmt.Errorf("the cache has %d of %d headers", w.cache.size.Load(), shown)
		}
	}
}

// remember notes what the model says of its head.
func (w *world) remember() {
	values := map[string]string{}
	for key, value := range w.head().values {
		values[key] = value
	}
	w.history[w.present()] = values
}

func (w *world) write(writes map[string]*string) coppice.Stamp {
	stamp := w.commit(writes)
	w.remember()
	return stamp
}

func (w *world) back(base uint64) coppice.Stamp {
	stamp := w.rollback(base)
	w.remember()
	return stamp
}

// let shows the stream all headers, and waits for the cache.
func (w *world) let() error {
	w.model.mutex.Lock()
	w.show()
	w.model.mutex.Unlock()
	return w.settle()
}

// cutStream breaks the stream, and heals lets it go on.
func (w *world) cutStream(cut bool) error {
	w.model.mutex.Lock()
	w.cut = cut
	close(w.moved)
	w.moved = make(chan struct{})
	w.model.mutex.Unlock()
	if cut {
		return nil
	}
	return w.settle()
}

// slow is a read that the model holds.
type slow struct {
	view  *View
	key   string
	gate  *gate
	ended chan struct{}
	value []byte
	err   error
}

// hold begins a read that the model answers now, and whose answer comes later.
func (w *world) hold(view *View, key string) *slow {
	s := &slow{view: view, key: key, ended: make(chan struct{})}
	s.gate = &gate{begun: make(chan struct{}), open: make(chan struct{})}
	w.model.mutex.Lock()
	w.gates[key] = s.gate
	w.model.mutex.Unlock()
	go func() {
		s.value, s.err = view.Get(context.Background(), []byte(key))
		close(s.ended)
	}()
	select {
	case <-s.gate.begun:
	case <-s.ended:
	}
	w.model.mutex.Lock()
	delete(w.gates, key)
	w.model.mutex.Unlock()
	return s
}

func (s *slow) land() {
	close(s.gate.open)
	<-s.ended
}

func limited(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	t.Cleanup(cancel)
	return ctx
}

func text(s string) *string { return &s }

func stamp(epoch, version uint64) coppice.Stamp {
	return coppice.Stamp{Epoch: epoch, Version: version}
}
