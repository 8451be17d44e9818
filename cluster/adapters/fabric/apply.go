package fabric

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

// change is a put, or a deletion: a nil value.
type change struct{ key, value []byte }

// changeBytes is what a change takes in a message, besides its key and value.
const changeBytes = 16

func (c *change) size() int { return len(c.key) + len(c.value) }

// tagOf names changes together with the record that is written with them.
func tagOf(changes []change, next *state) (t tag) {
	hash := sha256.New()
	part := func(in []byte) {
		length := uint64(len(in))
		if in == nil {
			length = 1<<64 - 1
		}
		_ = binary.Write(hash, binary.LittleEndian, length)
		_, _ = hash.Write(in)
	}
	for i := range changes {
		part(changes[i].key)
		part(changes[i].value)
	}
	if next != nil {
		part((&state{phase: next.phase, savepoint: next.savepoint}).encode())
	}
	hash.Sum(t[:0])
	return t
}

// apply writes changes with a savepoint; nil leaves the savepoint as it is. The lock is held.
func (d *database) apply(changes []change, savepoint *height) error {
	if err := d.complete(); err != nil {
		return err
	}
	next := state{savepoint: savepoint}
	if savepoint == nil {
		next.savepoint = d.state.savepoint
	}
	size := spareBytes
	for i := range changes {
		if len(changes[i].value) > d.provider.valueBytes {
			return fmt.Errorf("%w: the value of %q has %d bytes, the ledger takes %d",
				ErrLimit, changes[i].key, len(changes[i].value), d.provider.valueBytes)
		}
		size += changes[i].size() + changeBytes
	}
	slices.SortFunc(changes, func(a, b change) int { return bytes.Compare(a.key, b.key) })
	if size <= d.provider.batchBytes {
		return d.write(changes, &next)
	}
	return d.applyLarge(changes, &next)
}

// applyLarge writes changes that do not fit one batch. They are parked first, by any number of
// commits that no read sees. One commit decides, with the savepoint. Then the changes are moved
// into place. Before the decision a crash leaves the state as it was. After it, the move goes on
// when the database is opened.
func (d *database) applyLarge(changes []change, next *state) error {
	kept := d.state
	low, high := d.keys.area(kindParked)
	// Changes may be left of a block that was never decided.
	if err := d.sweep(low, high, &kept); err != nil {
		return err
	}
	parked := make([]change, len(changes))
	for i, c := range changes {
		parked[i] = change{key: d.keys.parked(c.key), value: c.value}
		if c.value == nil {
			parked[i].value = deleted
		}
	}
	for page := range d.provider.pages(parked) {
		if err := d.write(page, &kept); err != nil {
			return err
		}
	}
	if err := d.write(nil, &state{phase: phaseMoving, savepoint: next.savepoint}); err != nil {
		return err
	}
	return d.complete()
}

// pages divides changes into those of one commit each.
func (p *provider) pages(changes []change) func(func([]change) bool) {
	return func(yield func([]change) bool) {
		for len(changes) > 0 {
			count, size := 0, 0
			for count < min(len(changes), pageChanges) {
				if size += changes[count].size(); count > 0 && size > p.pageBytes {
					break
				}
				count++
			}
			if !yield(changes[:count]) {
				return
			}
			changes = changes[count:]
		}
	}
}

// complete learns the outcome of a commit that is in doubt, and finishes what more than one commit
// does. The lock is held.
func (d *database) complete() error {
	if d.doubt {
		if err := d.settle(); err != nil {
			return err
		}
	}
	switch d.state.phase {
	case phaseMoving:
		return d.move()
	case phaseDropping:
		return d.drop()
	}
	return nil
}

// fill writes changes by pages, and a savepoint with the last of them. The lock is held.
func (d *database) fill(next func() (*change, error), savepoint *height) error {
	if err := d.complete(); err != nil {
		return err
	}
	kept := d.state
	var page []change
	size := 0
	for {
		c, err := next()
		if err != nil {
			return err
		}
		if c == nil {
			return d.write(page, &state{savepoint: savepoint})
		}
		if len(page) == pageChanges || len(page) > 0 && size+c.size() > d.provider.pageBytes {
			if err := d.write(page, &kept); err != nil {
				return err
			}
			page, size = nil, 0
		}
		page, size = append(page, *c), size+c.size()
	}
}

// move puts parked changes into place.
func (d *database) move() error {
	low, high := d.keys.area(kindParked)
	moving := state{phase: phaseMoving, savepoint: d.state.savepoint}
	err := d.eachPage(low, high, func(page []change) error {
		var changes []change
		for _, parked := range page {
			moved := change{key: d.keys.unparked(parked.key)}
			if !bytes.Equal(parked.value, deleted) {
				moved.value = parked.value
			}
			changes = append(changes, moved, change{key: parked.key})
		}
		return d.write(changes, &moving)
	})
	if err != nil {
		return err
	}
	return d.write(nil, &state{savepoint: d.state.savepoint})
}

// drop deletes the database by pages, its record last.
func (d *database) drop() error {
	if d.at == nil {
		return nil
	}
	// The first page makes the record say that the rest has to go, too.
	dropping := state{phase: phaseDropping}
	for _, kind := range []byte{kindData, kindParked} {
		low, high := d.keys.area(kind)
		if err := d.sweep(low, high, &dropping); err != nil {
			return err
		}
	}
	return d.write(nil, nil)
}

// sweep deletes the records of a range.
func (d *database) sweep(low, high []byte, next *state) error {
	return d.eachPage(low, high, func(page []change) error {
		for i := range page {
			page[i].value = nil
		}
		return d.write(page, next)
	})
}

// eachPage reads the records of a range, and calls with each page of them. The call takes the page
// out of the range.
func (d *database) eachPage(low, high []byte, call func([]change) error) error {
	for {
		count, err := d.pagesOnce(low, high, call)
		// The version that is read may be pruned while the range shrinks.
		if count == 0 || !errors.Is(err, coppice.Pruned) {
			return d.provider.closedOr(err)
		}
	}
}

// pagesOnce reads a range in one version, and counts the calls.
func (d *database) pagesOnce(low, high []byte, call func([]change) error) (count int, err error) {
	var page []change
	size := 0
	for record, err := range d.provider.client.Range(d.provider.life, low, high, nil) {
		if err != nil {
			return count, err
		}
		next := change{key: record.Key, value: record.Value}
		if len(page) == pageChanges/2 || len(page) > 0 && size+next.size() > d.provider.pageBytes {
			if err := call(page); err != nil {
				return count, err
			}
			page, size, count = nil, 0, count+1
		}
		page, size = append(page, next), size+next.size()
	}
	if len(page) == 0 {
		return count, nil
	}
	return count + 1, call(page)
}

// write is one commit: changes, and the record of the database, or its deletion if next is nil. It
// follows the change of the record that this process knows, or it is refused. The lock is held, and
// no commit is in doubt.
func (d *database) write(changes []change, next *state) error {
	if d.fenced != nil {
		return d.fenced
	}
	name := tagOf(changes, next)
	ctx, cancel, err := d.provider.call()
	if err != nil {
		return err
	}
	defer cancel()
	d.forget()
	if d.uncertain == name && d.wrote(name, next) {
		return nil
	}
	d.uncertain = name
	committed, err := d.commit(ctx, changes, next, name)
	switch {
	case err == nil:
		d.state, d.at, d.uncertain = state{}, nil, tag{}
		if next != nil {
			d.state, d.at = d.named(next, name), &committed.Stamp
		}
		d.floor = d.provider.cache.AtProven(committed.Stamp)
		return d.tell(committed, changes)
	case errors.Is(err, coppice.PreconditionFailed):
		// Either an earlier attempt was applied after all, or there is another writer.
		if failed := d.settleWithin(ctx); failed != nil {
			return failed
		}
		if d.wrote(name, next) {
			return nil
		}
		return d.fence("a commit was refused")
	}
	d.doubt = true
	return d.provider.closedOr(err)
}

// commit sends a batch, again and again as long as the client is patient. Its session sees to it
// that it is applied once.
func (d *database) commit(
	ctx context.Context,
	changes []change,
	next *state,
	name tag,
) (*coppice.Committed, error) {
	batch := new(coppice.Batch)
	for _, c := range changes {
		if c.value != nil {
			batch.Put(c.key, c.value)
		} else {
			batch.Delete(c.key)
		}
	}
	key := d.keys.state()
	if d.at == nil {
		batch.IfAbsent(key)
	} else {
		batch.IfChanged(key, *d.at)
	}
	if next == nil {
		batch.Delete(key)
	} else {
		named := d.named(next, name)
		batch.Put(key, named.encode())
	}
	committed, err := d.session.Commit(ctx, batch)
	if !errors.Is(err, coppice.UnknownSession) || coppice.OutcomeUnknown(err) {
		return committed, err
	}
	// The ledger has dropped a session that was idle for long.
	if d.session, err = d.provider.client.OpenSession(ctx, coppice.NewSessionID()); err != nil {
		return nil, err
	}
	return d.session.Commit(ctx, batch)
}

// tell gives the cache what a commit wrote, if that is all that its version wrote. The header is
// proven, and has the number of batches. Changes of versions with several come by the stream.
func (d *database) tell(committed *coppice.Committed, changes []change) error {
	header, err := verify.DecodeHeader(committed.Header)
	if err != nil || header.JournalLeaves != 1 {
		return err
	}
	writes := make(map[string][]byte, len(changes)+1)
	for _, c := range changes {
		writes[string(c.key)] = c.value
	}
	writes[string(d.keys.state())] = nil
	if d.at != nil {
		writes[string(d.keys.state())] = d.state.encode()
	}
	return d.provider.cache.Apply(committed.Stamp, writes)
}

func (d *database) named(next *state, name tag) state {
	named := *next
	named.writer, named.tag = d.provider.writer, name
	return named
}

// wrote tells whether the record is the one that a write leaves.
func (d *database) wrote(name tag, next *state) bool {
	if next == nil {
		return d.at == nil
	}
	return d.at != nil && d.state.tag == name
}

func (d *database) settle() error {
	ctx, cancel, err := d.provider.call()
	if err != nil {
		return err
	}
	defer cancel()
	return d.settleWithin(ctx)
}

// settleWithin reads the record again. If it has changed, then by the commit that was in doubt, or
// there is another writer.
func (d *database) settleWithin(ctx context.Context) error {
	before, dropping := d.at, d.state.phase == phaseDropping
	if err := d.load(ctx); err != nil {
		d.doubt = true
		return d.provider.closedOr(err)
	}
	unchanged := before == nil && d.at == nil || before != nil && d.at != nil && *before == *d.at
	ours := d.state.writer == d.provider.writer && d.state.tag == d.uncertain
	if d.at == nil {
		ours = dropping
	}
	if unchanged || ours {
		return nil
	}
	return d.fence("its record is not the one that this process wrote last")
}

func (d *database) fence(why string) error {
	d.fenced = fmt.Errorf("%w: channel %q: %s", ErrMoved, d.channel, why)
	return d.fenced
}

// closedOr gives ErrClosed in place of an error that closing has caused.
func (p *provider) closedOr(err error) error {
	if p.life.Err() != nil {
		return errors.Join(ErrClosed, err)
	}
	return err
}
