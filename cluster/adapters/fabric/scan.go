package fabric

import (
	"bytes"
	"context"
	"iter"

	"coppice.dev/sdk/coppice"
)

// found is a record of a scan.
type found struct {
	name
	entry
}

// scan gives the records of a range of one version, in the order of namespace and key. One
// goroutine at a time uses it.
type scan struct {
	database *database
	// context lives as long as the scan: each page has its time limit from the client.
	context context.Context
	cancel  context.CancelFunc
	next    func() (coppice.Record, error, bool)
	stop    func()
	// left is how many records are still given; below 0 there is no limit.
	left int
	err  error
}

// scan begins a scan from low and below high. A limit of 0 is no limit.
func (d *database) scan(low, high []byte, read *coppice.Read, limit int) (*scan, error) {
	d.mutex.RLock()
	defer d.mutex.RUnlock()
	if d.provider.life.Err() != nil {
		return nil, ErrClosed
	}
	if err := d.ready(); err != nil {
		return nil, err
	}
	s := &scan{database: d, left: limit}
	if limit <= 0 {
		s.left = -1
	}
	s.context, s.cancel = context.WithCancel(d.provider.life)
	s.begin(low, high, read)
	return s, nil
}

func (s *scan) begin(low, high []byte, read *coppice.Read) {
	if bytes.Compare(low, high) >= 0 {
		s.next = func() (record coppice.Record, err error, more bool) { return }
		s.stop = func() {}
		return
	}
	s.next, s.stop = iter.Pull2(s.database.provider.client.Range(s.context, low, high, read))
}

// rangeOf gives the range of a namespace's keys from start on and below end. An empty end is that
// of the namespace.
func (d *database) rangeOf(namespace, start, end string) (low, high []byte, err error) {
	if err := checkName(namespace, ""); err != nil {
		return nil, nil, err
	}
	low, high = d.keys.namespace(namespace)
	if end != "" {
		high = append(bytes.Clone(low), end...)
	}
	// A bound beyond the longest key is as good as the key before it.
	return cut(append(low, start...)), cut(high), nil
}

// cut makes the bound of a range as short as a ledger takes it, without a record between the two.
func cut(bound []byte) []byte { return bound[:min(len(bound), ledgerKeyMax+1)] }

// step gives the next record, or nil at the end. It gives an error again and again.
func (s *scan) step() (*found, error) {
	if s.err != nil || s.left == 0 {
		return nil, s.err
	}
	next, err := s.ahead()
	if err != nil {
		s.err = err
		return nil, err
	}
	if s.left > 0 {
		s.left--
	}
	return next, nil
}

// ahead reads a record, without a limit.
func (s *scan) ahead() (*found, error) {
	record, err, more := s.next()
	if err != nil {
		return nil, s.database.provider.closedOr(err)
	}
	if !more {
		return nil, nil
	}
	f := &found{}
	if f.namespace, f.key, err = s.database.keys.split(record.Key); err != nil {
		return nil, err
	}
	decoded, err := decodeEntry(record.Value)
	if err != nil {
		return nil, err
	}
	f.entry = *decoded
	return f, nil
}

// bookmark gives the key after those that were given, or "" at the end, and ends the scan.
func (s *scan) bookmark() string {
	defer s.close()
	if s.err != nil {
		return ""
	}
	next, err := s.ahead()
	if err != nil || next == nil {
		return ""
	}
	return next.key
}

func (s *scan) close() {
	s.stop()
	s.cancel()
}

// whole is a scan of all namespaces, without those that are skipped.
type whole struct {
	*scan
	read *coppice.Read
	skip func(string) bool
}

// wholeScan begins a scan of everything at head.
func (d *database) wholeScan(skip func(string) bool) (*whole, error) {
	ctx, cancel, err := d.provider.call()
	if err != nil {
		return nil, err
	}
	defer cancel()
	// The scan begins again behind each namespace that is skipped, so its version is chosen first.
	got, err := d.provider.client.Get(ctx, d.keys.state(), nil)
	if err != nil {
		return nil, d.provider.closedOr(err)
	}
	w := &whole{read: &coppice.Read{At: &got.ReadAt}, skip: skip}
	low, high := d.keys.area(kindData)
	w.scan, err = d.scan(low, high, w.read, 0)
	return w, err
}

func (w *whole) step() (*found, error) {
	for {
		next, err := w.scan.step()
		if err != nil || next == nil || !w.skip(next.namespace) {
			return next, err
		}
		w.stop()
		_, low := w.database.keys.namespace(next.namespace)
		_, high := w.database.keys.area(kindData)
		w.begin(low, high, w.read)
	}
}
