package coppice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"coppice.dev/sdk/verify"
)

const (
	// authorsPage is how many authors are read at a time.
	authorsPage = 256
	// affectedMax is how many members a purge can affect: those that sign, and 256 absent ones.
	affectedMax = ordersSignersMax + 256
)

// Affected is a member that has journals below a purge.
type Affected struct {
	Member *verify.Member
	// Revocation is the number of the journal that ended the member's last key. It is nil if the
	// member has a key, and signs.
	Revocation *uint64
}

// PurgeDraft is an order to purge, for those that sign it.
type PurgeDraft struct {
	OrderFile
	// Affected are the members whose journals go, in the order of their first journals.
	Affected []Affected
	// Founding has the ledger's rules: the time of notice, how many journals a member may retain, and
	// after how many days a regulator may sign for a member without a key.
	Founding *verify.Founding
}

// Signers are the names of the affected members that sign the order. An owner signs as well, and if
// a member is absent, a regulator.
func (p *PurgeDraft) Signers() (names []string, absent bool) {
	for _, affected := range p.Affected {
		if affected.Revocation == nil {
			names = append(names, affected.Member.Name)
		} else {
			absent = true
		}
	}
	return names, absent
}

// PreparePurge prepares an order to take the journals below a number out of a ledger. It can be
// applied until the ledger has grown by `within` journals. The signers sign size and root of the
// ledger's list as this client has seen them proven.
func (c *Client) PreparePurge(
	ctx context.Context, ledger LedgerID, before, within uint64) (*PurgeDraft, error,
) {
	return c.preparePurge(ctx, ledger, &before, within)
}

// PrepareClosing prepares an order to purge all journals, and to close the ledger. It can be
// applied as long as the ledger does not grow. Once all is swept, the ledger's name is free.
func (c *Client) PrepareClosing(ctx context.Context, ledger LedgerID) (*PurgeDraft, error) {
	return c.preparePurge(ctx, ledger, nil, 0)
}

func (c *Client) preparePurge(
	ctx context.Context, ledger LedgerID, before *uint64, within uint64) (*PurgeDraft, error,
) {
	records, err := c.LedgerRecords(ctx, ledger, [][]byte{ledger.HeadKey(), ledger.FoundingKey()})
	if err != nil {
		return nil, err
	}
	state, authors, err := verify.DecodeLedgerHead(records[string(ledger.HeadKey())])
	if err != nil {
		return nil, distrusted("GetLedgerRecords", err)
	}
	draft := &PurgeDraft{}
	if draft.Founding, err = verify.DecodeFounding(records[string(ledger.FoundingKey())]); err != nil {
		return nil, distrusted("GetLedgerRecords", err)
	}
	order := &verify.PurgeOrder{
		Before: state.Size, Closes: before == nil, Size: state.Size, Root: state.Root,
	}
	if before != nil {
		order.Before = *before
	}
	if order.Before <= state.Purged || order.Before > state.Size {
		return nil, fmt.Errorf("coppice: the ledger has journals %d to below %d, none below %d: %w",
			state.Purged, state.Size, order.Before, NotPossible)
	}
	members, err := c.authorsBelow(ctx, ledger, authors, order.Before)
	if err == nil {
		draft.Affected, err = c.affected(ctx, ledger, members)
	}
	if err != nil {
		return nil, err
	}
	order.Authors = uint32(len(members))
	for i, affected := range draft.Affected {
		if affected.Revocation != nil {
			absent := verify.Absent{Member: members[i], Revocation: *affected.Revocation}
			order.Absent = append(order.Absent, absent)
		}
	}
	slices.SortFunc(order.Absent, func(a, b verify.Absent) int {
		return bytes.Compare(a.Member[:], b.Member[:])
	})
	whole := &verify.Order{Purge: order}
	file, err := c.orderFileFor(ctx, ledger, draft.Founding.Name, state.Size, within, whole)
	if err != nil {
		return nil, err
	}
	draft.OrderFile = *file
	return draft, nil
}

// authorsBelow gives the members that have journals below a number. Authors are numbered in the
// order of their first journals.
func (c *Client) authorsBelow(
	ctx context.Context, ledger LedgerID, authors, before uint64) ([]verify.MemberID, error,
) {
	var members []verify.MemberID
	for from := uint64(1); from <= authors; from += authorsPage {
		var keys [][]byte
		for number := from; number <= min(authors, from+authorsPage-1); number++ {
			keys = append(keys, ledger.AuthorKey(number))
		}
		records, err := c.LedgerRecords(ctx, ledger, keys)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			member, first, err := verify.DecodeAuthor(records[string(key)])
			if err != nil {
				return nil, distrusted("GetLedgerRecords", err)
			}
			if first >= before {
				return members, nil
			}
			if members = append(members, member); len(members) > affectedMax {
				return nil, fmt.Errorf("coppice: more than %d members have journals there: purge fewer: %w",
					affectedMax, NotPossible)
			}
		}
	}
	return members, nil
}

// affected reads the records of members that a purge affects.
func (c *Client) affected(
	ctx context.Context, ledger LedgerID, members []verify.MemberID) ([]Affected, error,
) {
	var keys [][]byte
	for _, id := range members {
		keys = append(keys, ledger.MemberKey(id))
	}
	records, err := c.LedgerRecords(ctx, ledger, keys)
	if err != nil {
		return nil, err
	}
	var all []Affected
	for i, id := range members {
		member, err := memberOf("GetLedgerRecords", id, records[string(keys[i])])
		if err != nil {
			return nil, err
		}
		affected := Affected{Member: member}
		if n := len(member.Keys); n > 0 && member.Keys[n-1].Until != nil {
			// A key ends behind the journal that revokes it.
			revocation := max(*member.Keys[n-1].Until, 1) - 1
			affected.Revocation = &revocation
		}
		all = append(all, affected)
	}
	return all, nil
}

// PurgeStatus says how far the newest purge of a ledger has come.
type PurgeStatus struct {
	verify.Purge
	// Purged is the number below which journals are swept, but for those that are kept.
	Purged uint64
	// Pruned tells whether no version is left that has swept journals. It is the coordinator's word.
	Pruned bool
}

// PurgeStatus reads the newest purge of a ledger. It is nil if none was ever ordered.
func (c *Client) PurgeStatus(ctx context.Context, ledger LedgerID) (*PurgeStatus, error) {
	records, err := c.LedgerRecords(ctx, ledger, [][]byte{ledger.HeadKey(), ledger.PurgeKey()})
	if err != nil {
		return nil, err
	}
	state, err := verify.DecodeLedgerState(records[string(ledger.HeadKey())])
	if err != nil {
		return nil, distrusted("GetLedgerRecords", err)
	}
	encoded, has := records[string(ledger.PurgeKey())]
	if !has {
		return nil, nil
	}
	purge, err := verify.DecodePurge(encoded)
	if err != nil {
		return nil, distrusted("GetLedgerRecords", err)
	}
	status := &PurgeStatus{Purge: *purge, Purged: state.Purged}
	if purge.State == verify.PurgeSwept {
		head, err := c.Head(ctx)
		if err != nil {
			return nil, err
		}
		status.Pruned = head.PrunedBoundary >= purge.Swept
	}
	return status, nil
}

// newestPurge is PurgeStatus for a call that needs a purge in one of these states.
func (c *Client) newestPurge(
	ctx context.Context, ledger LedgerID, states ...verify.PurgeState) (*PurgeStatus, error,
) {
	status, err := c.PurgeStatus(ctx, ledger)
	if err != nil {
		return nil, err
	}
	if status == nil {
		return nil, fmt.Errorf("coppice: no purge of the ledger was ordered: %w", NotFound)
	}
	if !slices.Contains(states, status.State) {
		return nil, fmt.Errorf(
			"coppice: the purge in journal %d is %s: %w", status.Order, status.State, NotPossible)
	}
	return status, nil
}

// PrepareRetain makes the draft of an order that keeps journals from the newest purge, in its time
// of notice. Each journal is kept together with all others of its request: 1 to 1,024 in the end. A
// member with a journal there appends the draft.
func (c *Client) PrepareRetain(
	ctx context.Context, ledger LedgerID, jsns ...uint64) (*Draft, error,
) {
	purge, err := c.newestPurge(ctx, ledger, verify.PurgePending)
	if err != nil {
		return nil, err
	}
	var whole []uint64
	for _, jsn := range slices.Sorted(slices.Values(jsns)) {
		if n := len(whole); n > 0 && jsn <= whole[n-1] {
			continue
		}
		page, err := c.JournalPage(ctx, ledger, jsn, 1, JournalRead{}, nil)
		if err != nil {
			return nil, err
		}
		leaf := page.Journals[0].Leaf
		if leaf.Kind != verify.JournalData || jsn >= purge.Before {
			return nil, fmt.Errorf("coppice: no purge takes journal %d: %w", jsn, NotPossible)
		}
		first := jsn - uint64(leaf.Index)
		for next := range uint64(leaf.Of) {
			whole = append(whole, first+next)
		}
		if len(whole) > orderJournalsMax {
			break
		}
	}
	if len(whole) == 0 || len(whole) > orderJournalsMax {
		return nil, errors.New("coppice: an order keeps 1 to 1,024 journals, with all of their requests")
	}
	retain := &verify.RetainOrder{Purge: purge.Order, Journals: whole}
	return new(Draft).Order(&verify.Order{Until: math.MaxUint64, Retain: retain}), nil
}

// PrepareRecall makes the draft of an order that takes the newest purge back, in its time of
// notice. Owners, regulators and members whose journals would go append the draft.
func (c *Client) PrepareRecall(ctx context.Context, ledger LedgerID) (*Draft, error) {
	purge, err := c.newestPurge(ctx, ledger, verify.PurgePending)
	if err != nil {
		return nil, err
	}
	order := &verify.Order{Until: math.MaxUint64, Recall: &verify.RecallOrder{Purge: purge.Order}}
	return new(Draft).Order(order), nil
}

// Sweep deletes the journals of the ledger's newest purge, oldest first and up to 1,024 at a time.
// After each step it gives the number below which they are gone. It goes on where an earlier Sweep
// was interrupted, and may be called again after any error. Before the time of notice is over, the
// error is NotPossible. Bytes leave the disks once the cluster is pruned.
func (a *Author) Sweep(ctx context.Context) iter.Seq2[uint64, error] {
	return func(yield func(uint64, error) bool) {
		// A step whose outcome is unknown comes first. A refusal says that it was not applied.
		if _, err := a.Settle(ctx); a.pending != nil {
			yield(0, err)
			return
		}
		purge, err := a.client.newestPurge(ctx, a.place.Ledger, verify.PurgePending, verify.PurgeSweeping)
		if err != nil {
			yield(0, err)
			return
		}
		for from := purge.Purged; from < purge.Before; {
			to := min(purge.Before, from+orderJournalsMax)
			sweep := &verify.SweepOrder{Purge: purge.Order, From: from, To: to}
			draft := new(Draft).Order(&verify.Order{Until: math.MaxUint64, Sweep: sweep})
			if _, err := a.Append(ctx, draft); err != nil {
				yield(from, err)
				return
			}
			if from = to; !yield(from, nil) {
				return
			}
		}
	}
}
