package coppice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// auditedEntriesMax bounds the memory of the headers and hashes that an audit keeps: some 450 bytes
// for each entry of the root log.
const auditedEntriesMax = 1 << 24

// auditedLog is the whole root log below a signed checkpoint.
type auditedLog struct {
	verify.HeaderLog
	roots      verify.LogRoots
	checkpoint verify.Checkpoint
	note       []byte
	// broken is the first header that breaks a rule. Those behind it are read for the root alone.
	broken *verify.AuditError
	stamp  Stamp
}

// readLog reads all headers below the newest checkpoint. The ledger's key is trusted for one thing:
// that they are its own. Without an error, the log is the one that the key has signed.
func (c *Client) readLog(ctx context.Context) (*auditedLog, error) {
	k := c.known()
	v, file, err := c.growthFile(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := checkAge(v, k); err != nil {
		return nil, distrusted("GetCheckpoint", err)
	}
	if err := c.follow(ctx, v, file); err != nil {
		return nil, err
	}
	log := &auditedLog{checkpoint: v.Checkpoint, note: bytes.Clone(v.Note)}
	if log.checkpoint.Size > auditedEntriesMax {
		return nil, fmt.Errorf("coppice: the root log has more than %d entries: %w", auditedEntriesMax, LimitExceeded)
	}
	read := func() error { return log.read(ctx, c) }
	if err := c.resume(ctx, log.roots.Size, read); err != nil {
		return nil, err
	}
	if root, _ := log.roots.Root(log.checkpoint.Size); root != log.checkpoint.Root {
		return nil, distrust("WatchHeads", "the headers are not those that the checkpoint signs")
	}
	return log, log.checkKeys(v)
}

// read reads headers from the next one on.
func (l *auditedLog) read(ctx context.Context, c *Client) error {
	request := &v1.WatchHeadsRequest{FromSequence: l.roots.Size()}
	for message, err := range messages(ctx, c, "WatchHeads", request, v1.LedgerClient.WatchHeads, true) {
		if err != nil {
			return err
		}
		l.take(message.Header)
		if l.roots.Size() == l.checkpoint.Size {
			return nil
		}
	}
	return streamError(ctx, "WatchHeads", errEnded)
}

func (l *auditedLog) take(header []byte) {
	l.roots.Push(header)
	if l.broken != nil {
		return
	}
	if err := l.Append(header); err != nil && !errors.As(err, &l.broken) {
		l.broken = &verify.AuditError{Rule: 1, Sequence: l.roots.Size() - 1, Err: err}
	}
	if l.broken != nil {
		l.stamp.Version = l.broken.Version
		if decoded, err := verify.DecodeHeader(header); err == nil {
			l.stamp = decoded.Stamp()
		}
	}
}

// checkKeys checks what ties the log to its checkpoint: the origin, and the keys by which the
// checkpoint was proven.
func (l *auditedLog) checkKeys(v *verify.Verified) error {
	if l.broken != nil {
		return nil
	}
	first := keyAt(v.SignedBy.Key, v.KeyChanges, 0)
	if l.Checkpoint().Origin != l.checkpoint.Origin || l.Genesis().Key != first {
		l.broken = &verify.AuditError{Rule: 1, Err: errors.New("genesis names another origin or key than the checkpoint")}
		return nil
	}
	same := func(a, b verify.KeyChange) bool {
		return a.Sequence == b.Sequence && a.Number == b.Number && a.Old == b.Old && a.New == b.New
	}
	if !slices.EqualFunc(l.KeyChanges(), v.KeyChanges, same) {
		return distrust("WatchHeads", "the log has other key changes than the proof of its checkpoint")
	}
	return nil
}

// offence gives the first broken header, or nil.
func (l *auditedLog) offence() error {
	if l.broken == nil {
		return nil
	}
	return &verify.LedgerOffence{Kind: verify.OffenceHeader, Stamp: l.stamp, Err: l.broken}
}

// entry gives the header of a version that stands, and the hash of its entry.
func (l *auditedLog) entry(version uint64) (*verify.Header, verify.Digest) {
	header := l.Header(version)
	if header == nil {
		return nil, verify.Digest{}
	}
	hash, _ := l.roots.Entry(header.Sequence)
	return header, hash
}

// resume calls a function again, as long as it breaks off where another coordinator may go on, and
// as it gets further.
func (c *Client) resume(ctx context.Context, place func() uint64, read func() error) error {
	until, pause := time.Now().Add(c.patience), pauseMin
	for {
		before := place()
		err := read()
		if err == nil || !mayResume(err) {
			return err
		}
		if place() > before {
			until, pause = time.Now().Add(c.patience), pauseMin
		}
		if time.Now().Add(pause).After(until) || sleep(ctx, spread(pause)) != nil {
			return err
		}
		pause = min(2*pause, pauseMax)
	}
}
