package coppice

import (
	"bytes"
	"context"
	"errors"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// JournalClaim is what a verdict on a journal is about: the journal is in the ledger as its author
// signed it, and has a payload.
type JournalClaim struct {
	Ledger LedgerID
	JSN    uint64
	// Payload is the payload that the journal should have. Nil is an empty one.
	Payload []byte
	// AnyPayload leaves the payload out of the claim. Not everybody may read payloads.
	AnyPayload bool
}

// VerdictBy says who has verified a journal, and by what.
type VerdictBy string

// The levels of a verdict.
const (
	// ByCoordinator is the word of a coordinator.
	ByCoordinator VerdictBy = "coordinator"
	// ByProof is the client, by a proof under a signed checkpoint.
	ByProof VerdictBy = "proof"
	// ByAnchor is the client, by a path to a hash of a trusted anchor.
	ByAnchor VerdictBy = "anchor"
)

// The steps at which a claim fails. A coordinator may name a step of a proof as well
// (verify.Error).
const (
	// FailedPayload says that the journal has another payload.
	FailedPayload = "payload"
	// FailedOcculted says that the journal has no payload any more, because an order has occulted it.
	FailedOcculted = "occulted"
)

// JournalVerdict says whether a claim about a journal holds.
type JournalVerdict struct {
	By VerdictBy
	// Failed is the step at which the claim fails, or empty.
	Failed string
	Leaf   *verify.Leaf
	// OccultedBy is the number of the journal whose order has occulted this one. It is nil if none
	// has, if no payload was claimed, and for a coordinator's verdict.
	OccultedBy *uint64
	// Checkpoint is the signed note for which the verdict holds. It is verified only in a verdict by
	// proof, and nil in one by an anchor.
	Checkpoint []byte
}

// Valid tells whether the claim holds.
func (v *JournalVerdict) Valid() bool { return v.Failed == "" }

// CoordinatorVerdict asks a coordinator to verify a claim. The verdict is its word, also for a
// client that trusts a key.
func (c *Client) CoordinatorVerdict(
	ctx context.Context, claim JournalClaim) (*JournalVerdict, error,
) {
	request := &v1.VerifyJournalRequest{Ledger: identified(claim.Ledger), Jsn: claim.JSN}
	if !claim.AnyPayload {
		// An empty payload is one, too.
		request.Payload = append([]byte{}, claim.Payload...)
	}
	answer, err := invoke(ctx, c, "VerifyJournal", safe, request, v1.LedgerClient.VerifyJournal)
	if err != nil {
		return nil, err
	}
	leaf, err := verify.DecodeLeaf(answer.Leaf)
	if err != nil {
		return nil, distrusted("VerifyJournal", err)
	}
	if leaf.Ledger != claim.Ledger || leaf.JSN != claim.JSN {
		return nil, distrust("VerifyJournal", "the verdict is on another journal")
	}
	if answer.Valid != (answer.Failed == "") {
		return nil, distrust("VerifyJournal", "the verdict contradicts itself")
	}
	if _, err := verify.ClaimedCheckpoint(answer.Checkpoint); err != nil {
		return nil, distrusted("VerifyJournal", err)
	}
	return &JournalVerdict{
		By: ByCoordinator, Failed: printable(answer.Failed), Leaf: leaf, Checkpoint: answer.Checkpoint,
	}, nil
}

// VerifyJournal verifies a claim by a proof at head, and believes nobody. The author's signature is
// verified, too. An answer that is not proven is no verdict: the error is ErrUntrusted.
func (c *Client) VerifyJournal(ctx context.Context, claim JournalClaim) (*JournalVerdict, error) {
	if c.trust == nil {
		return nil, errNoKey("GetJournals")
	}
	read := JournalRead{Payload: !claim.AnyPayload, Request: true}
	page, told, err := c.journalPage(ctx, claim.Ledger, claim.JSN, 1, read, nil)
	if err != nil {
		return nil, err
	}
	err = c.checkOcculted(ctx, told.known, claim.Ledger, page.Journals, told.marksProof)
	if err != nil {
		return nil, distrusted("GetJournals", err)
	}
	return claim.judge(ByProof, page.Journals, told.checkpoint)
}

// VerifyJournalBelow verifies a claim by a trusted anchor of the ledger, as JournalsBelow does.
func (c *Client) VerifyJournalBelow(
	ctx context.Context, anchor *verify.TrustedAnchor, claim JournalClaim,
) (*JournalVerdict, error) {
	if claim.Ledger != anchor.Ledger || claim.JSN >= anchor.Size() {
		return nil, errors.New("coppice: the journal does not lie below the anchor")
	}
	journals, err := c.JournalsBelow(ctx, anchor, claim.JSN, 1, !claim.AnyPayload)
	if err != nil {
		return nil, err
	}
	return claim.judge(ByAnchor, journals, nil)
}

// judge compares the payload of a journal that was read and proven.
func (j *JournalClaim) judge(
	by VerdictBy, journals []LedgerJournal, checkpoint []byte) (*JournalVerdict, error,
) {
	if len(journals) != 1 {
		return nil, distrust("GetJournals", "no journal")
	}
	journal := journals[0]
	verdict := &JournalVerdict{
		By: by, Leaf: journal.Leaf, OccultedBy: journal.OccultedBy, Checkpoint: checkpoint,
	}
	switch {
	case j.AnyPayload:
	case journal.OccultedBy != nil:
		verdict.Failed = FailedOcculted
	case journal.Envelope == nil || !bytes.Equal(journal.Envelope.Payload, j.Payload):
		verdict.Failed = FailedPayload
	}
	return verdict, nil
}
