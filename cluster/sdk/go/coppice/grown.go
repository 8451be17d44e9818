package coppice

import (
	"bytes"
	"context"

	"coppice.dev/sdk/verify"
)

// Grown is a signed checkpoint of a log that only grew, with the newest header under it.
type Grown struct {
	// Size counts the entries of the log.
	Size uint64
	// Newest is the last of them, and NewestEntry the verify.EntryHash of its bytes. Each header names
	// the hash of the one before, so a chain of headers that ends in this hash is the ledger's log.
	Newest      *verify.Header
	NewestEntry verify.Digest
	// Note is the signed checkpoint, and Proof the file that shows the growth.
	Note, Proof []byte
}

// Grown asks for the newest checkpoint, and demands a proof that its log extends the newest one
// that the client has seen. It needs a key to trust.
func (c *Client) Grown(ctx context.Context) (*Grown, error) {
	if c.trust == nil {
		return nil, errNoKey("GetCheckpoint")
	}
	c.trust.mutex.Lock()
	newest := c.trust.newest
	c.trust.mutex.Unlock()
	v, file, err := c.growthFile(ctx, newest)
	if err == nil {
		err = c.follow(ctx, v, file)
	}
	if err != nil {
		return nil, err
	}
	return &Grown{
		Size: v.Checkpoint.Size, Newest: v.Newest, NewestEntry: v.NewestEntry,
		Note: bytes.Clone(v.Note), Proof: file,
	}, nil
}
