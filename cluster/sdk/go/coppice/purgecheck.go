package coppice

import (
	"context"
	"errors"
	"slices"

	"coppice.dev/sdk/verify"
)

// CheckPurge checks that the newest purge of a ledger was signed by all whose journals it takes,
// and gives its order. Author and approving members have signed under their keys in force at the
// order, the signers saw the list as the ledger had it, and each author below the purge is among
// them or named absent. Which roles they had then, no record says any more. The error is NotFound
// if no purge was ordered.
func (c *Client) CheckPurge(ctx context.Context, ledger LedgerID) (*GivenOrder, error) {
	if c.trust == nil {
		return nil, errNoKey("GetJournals")
	}
	purge, err := c.newestPurge(ctx, ledger,
		verify.PurgePending, verify.PurgeSweeping, verify.PurgeSwept, verify.PurgeRecalled)
	if err != nil {
		return nil, err
	}
	return c.checkPurge(ctx, ledger, &purge.Purge)
}

// checkPurge is CheckPurge for a purge whose record is proven.
func (c *Client) checkPurge(ctx context.Context, ledger LedgerID, purge *verify.Purge) (*GivenOrder, error) {
	given, err := c.LedgerOrder(ctx, ledger, purge.Order)
	if err != nil {
		return nil, err
	}
	if !orders(given, purge) {
		err := &badOrder{"the order is that of another purge than the record says"}
		return nil, distrusted("GetJournals", err)
	}
	order := given.Order.Purge
	seen := &LedgerMark{Size: order.Size, Root: order.Root}
	if _, err := c.JournalPage(ctx, ledger, purge.Order, 1, JournalRead{}, seen); err != nil {
		return nil, err
	}
	// A member without a journal at the order comes later in the row of authors, and lies above it.
	head, err := c.LedgerRecords(ctx, ledger, [][]byte{ledger.HeadKey()})
	if err != nil {
		return nil, err
	}
	_, authors, err := verify.DecodeLedgerHead(head[string(ledger.HeadKey())])
	if err != nil {
		return nil, distrusted("GetLedgerRecords", err)
	}
	members, err := c.authorsBelow(ctx, ledger, authors, order.Before)
	if errors.Is(err, NotPossible) {
		err = distrusted("GetLedgerRecords", &badOrder{"the purge takes journals of more members than can sign"})
	}
	if err != nil {
		return nil, err
	}
	if err := signedByAll(given, members); err != nil {
		return nil, distrusted("GetJournals", err)
	}
	return given, nil
}

// orders tells whether an order is that of a purge, as the purge's record has it.
func orders(given *GivenOrder, purge *verify.Purge) bool {
	order := given.Order.Purge
	return order != nil && order.Before == purge.Before && order.Closes == purge.Closes &&
		given.Leaf.Stamp == purge.Stamp
}

// signedByAll checks that each affected member has signed a purge, or is named absent.
func signedByAll(given *GivenOrder, affected []verify.MemberID) error {
	order := given.Order.Purge
	if uint64(len(affected)) != uint64(order.Authors) {
		return &badOrder{"the purge takes journals of more or fewer members than its order says"}
	}
	for _, id := range affected {
		isAbsent := func(absent verify.Absent) bool { return absent.Member == id }
		if id != given.Leaf.Member && !given.Order.ApprovedBy(id) &&
			!slices.ContainsFunc(order.Absent, isAbsent) {
			return &badOrder{"a member whose journals the purge takes has not signed it"}
		}
	}
	return nil
}
