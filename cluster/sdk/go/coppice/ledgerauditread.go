package coppice

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

const (
	// auditLeaves is how many leaves an audit reads at a time.
	auditLeaves = 1024
	// auditJournals is how many journals it reads at a time with what was signed or content, and
	// auditRecords how many records. They are fewer where these are large.
	auditJournals = 64
	auditRecords  = 1024
)

// read reads neighbouring journals without a proof: the log commits to their leaves. It gives at
// least one.
func (r *ledgerReplay) read(
	ctx context.Context, from uint64, limit uint32, payload bool) ([]*v1.LedgerJournal, error,
) {
	request := &v1.GetJournalsRequest{
		Ledger: identified(r.Ledger), FromJsn: from, Limit: limit, WantPayload: payload,
	}
	answer, err := invoke(ctx, r.Client, "GetJournals", safe, request, v1.LedgerClient.GetJournals)
	var failed *Error
	gone := errors.As(err, &failed) && (failed.Code == codes.NotFound || errors.Is(err, PurgedJournal))
	if gone || err == nil && len(answer.Journals) == 0 {
		return nil, r.missing(ctx, from)
	}
	if err != nil {
		return nil, err
	}
	if len(answer.Journals) > int(limit) {
		return nil, r.offence(verify.OffenceAnswer, from, "more journals than were asked for")
	}
	return answer.Journals, nil
}

// missing tells why a journal is not given that the log has.
func (r *ledgerReplay) missing(ctx context.Context, jsn uint64) error {
	if err := r.checkPurged(ctx, r.Ledger, jsn); err != nil {
		return r.found(jsn, err)
	}
	return fmt.Errorf("coppice: the ledger was swept since the audit began, audit again: %w", PurgedJournal)
}

// tell asks for what the log does not have of an append.
func (r *ledgerReplay) tell(ctx context.Context, entry *verify.Entry) (verify.Told, error) {
	if r.aheadFrom != entry.FirstJSN {
		r.ahead, r.aheadFrom = nil, entry.FirstJSN
	}
	count := int(entry.Journals)
	for len(r.ahead) < count {
		journals, err := r.read(ctx, r.aheadFrom+uint64(len(r.ahead)), auditLeaves, false)
		if err != nil {
			return verify.Told{}, err
		}
		for _, journal := range journals {
			r.ahead = append(r.ahead, journal.Leaf)
		}
	}
	told := verify.Told{Leaves: slices.Clone(r.ahead[:count])}
	r.ahead, r.aheadFrom = r.ahead[count:], r.aheadFrom+uint64(count)
	leaf, err := verify.DecodeLeaf(told.Leaves[0])
	if err != nil || count > 1 || leaf.Kind == verify.JournalData {
		// The auditor judges leaves.
		return told, nil
	}
	journals, err := r.read(ctx, entry.FirstJSN, 1, true)
	if err == nil {
		told.Envelope = journals[0].Envelope
	}
	return told, err
}

// records reads records as a version has them, proven by its header in the audited log. Those that
// are not there are missing.
func (r *ledgerReplay) records(
	ctx context.Context, version uint64, keys [][]byte) (map[string][]byte, error,
) {
	header, hash := r.log.entry(version)
	stamp := header.Stamp()
	check := func(v *verify.Verified, k known) error {
		if v.Entry != hash {
			return errMoved
		}
		return checkAge(v, k)
	}
	all := make(map[string][]byte, len(keys))
	for limit := auditRecords; len(keys) > 0; {
		part := keys[:min(limit, len(keys))]
		records, err := r.ledgerRecords(ctx, r.Ledger, part, &Read{At: &stamp}, check)
		if limit > 1 && TooLarge(err) {
			limit /= 2
			continue
		}
		if err != nil {
			return nil, err
		}
		for key, value := range records {
			all[key] = value
		}
		keys = keys[len(part):]
	}
	return all, nil
}

// checkPayloads reads the content of all journals that were judged again.
func (r *ledgerReplay) checkPayloads(ctx context.Context) error {
	limit := uint32(auditJournals)
	for next := r.auditor.First(); next < r.auditor.Size(); {
		journals, err := r.read(ctx, next, limit, true)
		if limit > 1 && TooLarge(err) {
			limit /= 2
			continue
		}
		if err != nil {
			return err
		}
		for _, journal := range journals {
			if next == r.auditor.Size() {
				break
			}
			if err := r.checkPayload(ctx, next, journal); err != nil {
				return err
			}
			next++
		}
	}
	return nil
}

func (r *ledgerReplay) checkPayload(ctx context.Context, jsn uint64, told *v1.LedgerJournal) error {
	hash, _ := r.auditor.Leaf(jsn)
	leaf, err := verify.DecodeLeaf(told.Leaf)
	if err != nil || verify.LeafHash(told.Leaf) != hash {
		return r.offence(verify.OffenceAnswer, jsn, "the leaf is not the one that was appended")
	}
	at := leaf.Stamp.Version
	if r.auditor.IsOcculted(jsn) {
		if len(told.Envelope) > 0 {
			return r.offenceAt(at, verify.OffenceShown, &jsn, "an order has occulted it, and its content is given")
		}
		return nil
	}
	switch {
	case len(told.Envelope) > 0:
	case told.OccultedBy == nil:
		return r.offenceAt(at, verify.OffenceWithheld, &jsn, "its content is not given, and no order is named")
	default:
		// An order behind the audited log may have occulted it.
		said := []LedgerJournal{{Leaf: leaf, OccultedBy: told.OccultedBy}}
		return r.found(jsn, r.checkMarks(ctx, r.Ledger, said))
	}
	if sha256.Sum256(told.Envelope) != leaf.Commitment {
		return r.offenceAt(at, verify.OffenceAnswer, &jsn, "its content is not what its author signed")
	}
	if err := r.auditor.CheckEnvelope(leaf, told.Envelope); err != nil {
		return &verify.LedgerOffence{Kind: verify.OffenceRequest, Stamp: leaf.Stamp, JSN: &jsn, Err: err}
	}
	r.report.Payloads++
	return nil
}
