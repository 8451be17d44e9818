package coppice

import (
	"context"
	"errors"
	"iter"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// Journaled is a version that stands, with its journal.
type Journaled struct {
	// Header is the version's header, in canonical bytes.
	Header []byte
	verify.VersionJournal
}

// Journals gives the journals of a range of versions, oldest first, for verify.Replay to judge.
// Only a ledger that keeps its journals has them. A last version of 0 is head.
func (c *Client) Journals(ctx context.Context, first, last uint64) iter.Seq2[Journaled, error] {
	request := &v1.JournalRequest{FromVersion: first, ToVersion: last}
	return func(yield func(Journaled, error) bool) {
		var part *Journaled
		size := 0
		for message, err := range messages(ctx, c, "Journal", request, v1.LedgerClient.Journal, true) {
			if err != nil {
				yield(Journaled{}, err)
				return
			}
			if len(message.Header) > 0 {
				if part != nil && !yield(*part, nil) {
					return
				}
				part, size = &Journaled{Header: message.Header}, 0
				part.Entries, part.Lists = message.Entries, make(map[uint32][][]byte)
				continue
			}
			if err := part.add(message, &size); err != nil {
				yield(Journaled{}, distrust("Journal", err.Error()))
				return
			}
		}
		if part != nil {
			yield(*part, nil)
		}
	}
}

const (
	// versionBytesMax bounds what a client holds of one version at a time: far more than its batches
	// may have.
	versionBytesMax = 1 << 30
	// partBytes is what each part of a version takes beside its bytes.
	partBytes = 128
)

// add takes the operation lists of a shard.
func (j *Journaled) add(message *v1.JournalResponse, size *int) error {
	if j == nil {
		return errors.New("operation lists before their version")
	}
	if _, known := j.Lists[message.Shard]; known {
		return errors.New("the operation lists of a shard come twice")
	}
	*size += partBytes
	for _, list := range message.Lists {
		*size += partBytes + len(list)
	}
	if *size > versionBytesMax {
		return errors.New("a version has more operations than any that a ledger commits")
	}
	j.Lists[message.Shard] = message.Lists
	return nil
}
