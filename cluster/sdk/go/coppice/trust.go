package coppice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"coppice.dev/sdk/verify"
)

const (
	growthInterval = 10 * time.Second
	// growthPatience is how long the proof that the log only grew may be missing. After that, no
	// answer is believed until it comes.
	growthPatience = 60 * time.Second
	growthTries    = 5
)

// Memory is what a client remembers of a ledger: the newest checkpoint that it proved to extend the
// ones before, and the key changes so far. A program keeps it from one run to the next, for
// instance as JSON.
type Memory struct {
	// Checkpoint is a signed note.
	Checkpoint []byte
	KeyChanges []verify.KeyChange
}

// seen is a checkpoint under a signature that was verified.
type seen struct {
	verify.Checkpoint
	note []byte
}

// trust has the ledger's keys, and the newest checkpoints under them.
type trust struct {
	mutex sync.Mutex
	// key is the newest key that is known: only it is trusted from then on.
	key     verify.VKey
	changes []verify.KeyChange
	// newest is the largest checkpoint that was seen, and proven the one that extends all before it.
	newest, proven *seen
	shards         []verify.Shard
	askedAt        time.Time
	// missingSince is when a proof of growth was first asked for since the last one.
	missingSince time.Time
	interval     time.Duration
	patience     time.Duration
}

func newTrust(key verify.VKey, memory *Memory) (*trust, error) {
	t := &trust{key: key, interval: growthInterval, patience: growthPatience}
	if memory == nil {
		return t, nil
	}
	t.changes = slices.Clone(memory.KeyChanges)
	known := key
	if n := len(t.changes); n > 0 {
		at := slices.IndexFunc(t.changes, func(c verify.KeyChange) bool { return c.Old == key.Key || c.New == key.Key })
		if at < 0 {
			return nil, errors.New("coppice: the memory is of a ledger with other keys")
		}
		known.Key = t.changes[n-1].New
	}
	if len(memory.Checkpoint) > 0 {
		size, err := verify.CheckpointSize(memory.Checkpoint)
		if err != nil {
			return nil, fmt.Errorf("coppice: the memory's checkpoint: %w", err)
		}
		signer := verify.VKey{Name: key.Name, Key: keyAt(key.Key, t.changes, size)}
		checkpoint, err := verify.OpenCheckpoint(memory.Checkpoint, signer)
		if err != nil {
			return nil, fmt.Errorf("coppice: the memory's checkpoint: %w", err)
		}
		t.proven = &seen{Checkpoint: checkpoint, note: bytes.Clone(memory.Checkpoint)}
		t.newest = t.proven
	}
	t.key = known
	return t, nil
}

// keyAt gives the key in force at a size. A key without changes is in force everywhere.
func keyAt(key verify.PublicKey, changes []verify.KeyChange, size uint64) verify.PublicKey {
	if len(changes) == 0 {
		return key
	}
	at := verify.InForce(changes, size)
	if at == 0 {
		return changes[0].Old
	}
	return changes[at-1].New
}

// known is what a client knew when it asked. An answer is judged by that: it may have been signed
// just before a key change that another answer tells of meanwhile.
type known struct {
	key     verify.VKey
	changes []verify.KeyChange
	size    uint64
}

func (t *trust) known() known {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	k := known{key: t.key, changes: t.changes}
	if t.newest != nil {
		k.size = t.newest.Size
	}
	return k
}

func (t *trust) memory() Memory {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	m := Memory{KeyChanges: slices.Clone(t.changes)}
	if t.proven != nil {
		m.Checkpoint = bytes.Clone(t.proven.note)
	}
	return m
}

// verifyProof judges a file by what was known when it was asked for. If its checkpoint is from
// before a key change, the client asks how the log went on.
func (c *Client) verifyProof(ctx context.Context, k known, file []byte) (*verify.Verified, error) {
	options := &verify.Options{Known: k.changes}
	if size, err := verify.ClaimedSize(file); err == nil && verify.InForce(k.changes, size) < len(k.changes) {
		answer, err := c.Checkpoint(ctx, size)
		if err != nil {
			return nil, err
		}
		options.Newer = answer.Standing
	}
	return verify.Verify(file, k.key, options)
}

// learn takes the checkpoint and the key changes of a proof that holds. The lock is held.
func (t *trust) learn(v *verify.Verified, file []byte) error {
	changes, err := verify.Join(t.changes, v.KeyChanges)
	if err != nil {
		return t.forked(v, file, err.Error())
	}
	if keyAt(v.SignedBy.Key, changes, v.Checkpoint.Size) != v.SignedBy.Key {
		return t.forked(v, file, "the checkpoint is signed by a key that the ledger had replaced before")
	}
	for _, old := range []*seen{t.newest, t.proven} {
		if old != nil && old.Size == v.Checkpoint.Size && old.Root != v.Checkpoint.Root {
			return t.forked(v, file, "two checkpoints of one size have other roots")
		}
	}
	t.changes = slices.Clone(changes)
	if n := len(changes); n > 0 {
		t.key.Key = changes[n-1].New
	}
	shown := &seen{Checkpoint: v.Checkpoint, note: bytes.Clone(v.Note)}
	if t.proven == nil {
		t.proven = shown
	}
	if t.newest == nil || t.newest.Size < shown.Size {
		t.newest = shown
	}
	return nil
}

func (t *trust) forked(v *verify.Verified, file []byte, why string) error {
	fork := &ForkError{Shown: bytes.Clone(v.Note), Proof: bytes.Clone(file), Why: why}
	if t.newest != nil {
		fork.Known = bytes.Clone(t.newest.note)
	}
	for _, old := range []*seen{t.newest, t.proven} {
		if old != nil && old.Size == v.Checkpoint.Size {
			fork.Known = bytes.Clone(old.note)
		}
	}
	return fork
}

// follow takes a proof that holds. From time to time, it demands a proof that the log only grew.
func (c *Client) follow(ctx context.Context, v *verify.Verified, file []byte) error {
	t := c.trust
	t.mutex.Lock()
	err := t.learn(v, file)
	now := time.Now()
	overdue := !t.missingSince.IsZero() && now.Sub(t.missingSince) >= t.patience
	due := err == nil && t.newest.Size > t.proven.Size && (now.Sub(t.askedAt) >= t.interval || overdue)
	if due {
		t.askedAt = now
		if t.missingSince.IsZero() {
			t.missingSince = now
		}
	}
	t.mutex.Unlock()
	if err != nil || !due {
		return err
	}
	return c.grow(ctx)
}

// grow demands that one log extends the checkpoint that was proven last and the newest one that was
// seen. It asks for both at one moment, until the two proofs end in one checkpoint.
func (c *Client) grow(ctx context.Context) error {
	t := c.trust
	for range growthTries {
		t.mutex.Lock()
		proven, newest := t.proven, t.newest
		t.mutex.Unlock()
		tied, err := c.tie(ctx, proven, newest)
		if errors.Is(err, ErrUntrusted) {
			return err
		}
		var failed *Error
		if errors.As(err, &failed) {
			break
		}
		if err != nil || tied {
			return err
		}
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if !t.missingSince.IsZero() && time.Since(t.missingSince) >= t.patience {
		return &Error{
			Call: "GetCheckpoint", Reason: Unavailable, OutcomeUnknown: true, Endpoint: "all endpoints", Attempts: growthTries,
			Message: "the ledger does not prove that its newest log extends the one that was proven last",
		}
	}
	// The answer at hand is proven all the same. A later call asks again.
	return nil
}

// tie gets both proofs, and tells whether they end in one checkpoint.
func (c *Client) tie(ctx context.Context, proven, newest *seen) (bool, error) {
	type ending struct {
		end *seen
		err error
	}
	other := make(chan ending, 1)
	go func() {
		end, err := c.growthFrom(ctx, newest)
		other <- ending{end, err}
	}()
	end, err := c.growthFrom(ctx, proven)
	last := <-other
	if err = errors.Join(err, last.err); err != nil {
		return false, err
	}
	if end.Size < newest.Size {
		return false, distrust("GetCheckpoint", "the proof ends below a checkpoint that was seen before it was asked for")
	}
	if end.Size != last.end.Size {
		return false, nil
	}
	if end.Root != last.end.Root {
		return false, &ForkError{
			Known: end.note,
			Shown: last.end.note,
			Why:   "two proofs of growth end in other logs of one size",
		}
	}
	t := c.trust
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.missingSince = time.Time{}
	if t.proven.Size < end.Size {
		t.proven = end
	}
	return true, nil
}

// growthFrom gives the checkpoint at the end of a proof that the log grew from an older one.
func (c *Client) growthFrom(ctx context.Context, old *seen) (*seen, error) {
	v, err := c.growthOf(ctx, old)
	if err != nil {
		return nil, err
	}
	return &seen{Checkpoint: v.Checkpoint, note: bytes.Clone(v.Note)}, nil
}

// growthOf gives the proof that the log grew from an older checkpoint, or from its first entry, and
// learns from it.
func (c *Client) growthOf(ctx context.Context, old *seen) (*verify.Verified, error) {
	v, _, err := c.growthFile(ctx, old)
	return v, err
}

// growthFile is growthOf, with the file of the proof.
func (c *Client) growthFile(ctx context.Context, old *seen) (*verify.Verified, []byte, error) {
	size := uint64(1)
	if old != nil {
		size = old.Size
	}
	k := c.trust.known()
	answer, err := c.Checkpoint(ctx, size)
	if err != nil {
		return nil, nil, err
	}
	v, err := verify.Verify(answer.Standing, k.key, &verify.Options{Known: k.changes})
	if err != nil {
		return nil, nil, &untrusted{call: "GetCheckpoint", err: err}
	}
	if err := v.Answers(verify.Question{Subject: verify.AboutGrowth{Size: size}}); err != nil {
		return nil, nil, &untrusted{call: "GetCheckpoint", err: err}
	}
	if old != nil && v.Standing.OldRoot != old.Root {
		return nil, nil, &ForkError{
			Known: old.note, Shown: bytes.Clone(v.Note), Proof: answer.Standing,
			Why: fmt.Sprintf("the log had another root at %d entries", old.Size),
		}
	}
	c.trust.mutex.Lock()
	defer c.trust.mutex.Unlock()
	return v, answer.Standing, c.trust.learn(v, answer.Standing)
}
