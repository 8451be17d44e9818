package coppice

import (
	"context"
	"errors"
	"fmt"

	"coppice.dev/sdk/verify"
)

// startReplay begins a replay at a version: from genesis, or from the proven state of the version
// before.
func (c *Client) startReplay(ctx context.Context, log *auditedLog, from uint64) (*verify.Replay, error) {
	if from <= 1 {
		return verify.NewReplay(&log.HeaderLog)
	}
	parts, err := c.readState(ctx, log, from-1)
	if err != nil {
		return nil, err
	}
	replay, err := verify.NewReplayAt(&log.HeaderLog, from-1, parts)
	if err != nil {
		return nil, distrusted("Range", err)
	}
	return replay, nil
}

// readState reads the trees of a version in proven ranges, which are read without values.
func (c *Client) readState(ctx context.Context, log *auditedLog, version uint64) (*verify.StateParts, error) {
	stamp := log.Header(version).Stamp()
	parts := new(verify.StateParts)
	span, limit, pages, more := Span{}, pageRecords, uint64(0), true
	read := func() error {
		for more {
			p, err := c.page(ctx, span, limit, &Read{At: &stamp}, keysAlone)
			// The proof of fewer records is smaller.
			if errors.Is(err, LimitExceeded) && limit > 1 {
				limit /= 2
				continue
			}
			if err != nil {
				return err
			}
			if err := parts.Take(p.proof); err != nil {
				return distrusted("Range", err)
			}
			if more = p.more; more {
				span = span.behind(p.records)
			}
			pages++
		}
		return nil
	}
	err := c.resume(ctx, func() uint64 { return pages }, read)
	if errors.Is(err, Pruned) {
		const advice = "begin later, or with version 1, since journals are kept"
		return nil, fmt.Errorf("coppice: the state of version %d, with which the audit begins: %w: %s", version, err, advice)
	}
	return parts, err
}
