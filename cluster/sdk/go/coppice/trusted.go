package coppice

import (
	"context"
	"errors"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

const (
	// anchorBlocksMax bounds the memory of an anchor: these are the blocks of a thousand million
	// journals, in 128 MiB.
	anchorBlocksMax = 1 << 22
	// anchorCallsMax bounds the calls that move an anchor, also where each answer has few blocks.
	anchorCallsMax = 1 << 12
)

// TrustLedger makes a trusted anchor of a ledger's list. Keep its bytes: below the anchor,
// JournalsBelow proves a journal by 8 hashes.
func (c *Client) TrustLedger(ctx context.Context, ledger LedgerID) (*verify.TrustedAnchor, error) {
	if c.trust == nil {
		return nil, errNoKey("GetLedgerHashes")
	}
	seen, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	return c.AdvanceAnchor(ctx, verify.NewTrustedAnchor(seen.cluster, ledger))
}

func errNoKey(call string) error { return distrust(call, "no key is trusted that could prove it") }

// AdvanceAnchor gives a trusted anchor at a larger size of the ledger. A proof shows that size, its
// root, and that the list has only grown since the old anchor, which stays as it is. The size is
// that of a version that may be older than head: DescribeLedger gives the size at head.
func (c *Client) AdvanceAnchor(
	ctx context.Context, anchor *verify.TrustedAnchor) (*verify.TrustedAnchor, error,
) {
	if c.trust == nil {
		return nil, errNoKey("GetLedgerHashes")
	}
	var blocks []verify.Digest
	for range anchorCallsMax {
		reached := anchor.Blocks() + uint64(len(blocks))
		part, err := c.anchorPart(ctx, anchor, reached)
		if err != nil {
			return nil, distrusted("GetLedgerHashes", err)
		}
		blocks = append(blocks, part.blocks...)
		reached += uint64(len(part.blocks))
		wanted := part.size / verify.BlockJournals
		if reached == wanted {
			grown, err := anchor.Grown(part.size, blocks, part.rest, part.root)
			if err != nil {
				return nil, distrusted("GetLedgerHashes", err)
			}
			return grown, nil
		}
		if len(part.blocks) == 0 || reached > wanted || wanted > anchorBlocksMax {
			break
		}
	}
	return nil, distrust("GetLedgerHashes", "more or fewer hashes than the ledger's list has")
}

// anchorPart has hashes of a list. Its size and root are proven, and continue an anchor.
type anchorPart struct {
	size         uint64
	root         verify.Digest
	blocks, rest []verify.Digest
}

func (c *Client) anchorPart(
	ctx context.Context, anchor *verify.TrustedAnchor, from uint64) (*anchorPart, error,
) {
	k := c.known()
	request := &v1.GetLedgerHashesRequest{
		Ledger: identified(anchor.Ledger), FromBlock: from, KnownSize: anchor.Size(),
		Read: c.recordOptions(nil),
	}
	answer, err := invoke(ctx, c, "GetLedgerHashes", safe, request, v1.LedgerClient.GetLedgerHashes)
	if err != nil {
		return nil, err
	}
	if len(answer.Root) != len(verify.Digest{}) || answer.Size == 0 {
		return nil, errors.New("a ledger without journals, or a root of another length")
	}
	part := &anchorPart{size: answer.Size, root: verify.Digest(answer.Root)}
	if part.blocks, err = digestsOf(answer.Blocks); err != nil {
		return nil, err
	}
	if part.rest, err = digestsOf(answer.Rest); err != nil {
		return nil, err
	}
	subject := verify.AboutJournals{Ledger: anchor.Ledger, Numbers: []uint64{part.size - 1}}
	if anchor.Size() > 0 {
		subject.KnownSize, subject.KnownRoot = anchor.Size(), anchor.Root()
	}
	err = c.believe(ctx, k, answer.Proof, subject, func(v *verify.Verified) error {
		if v.Cluster != anchor.Cluster {
			return errors.New("the anchor is of another cluster")
		}
		if v.Journals.Size != part.size || v.Journals.Root != part.root {
			return errDisagree
		}
		return checkAge(v, k)
	})
	return part, err
}

// digestsOf reads hashes that lie one behind the other.
func digestsOf(hashes []byte) ([]verify.Digest, error) {
	const width = len(verify.Digest{})
	if len(hashes)%width != 0 {
		return nil, errors.New("a hash of another length")
	}
	all := make([]verify.Digest, len(hashes)/width)
	for i := range all {
		all[i] = verify.Digest(hashes[i*width:])
	}
	return all, nil
}

// JournalsBelow reads a count of journals below a trusted anchor: 1 to 1,024, or fewer at the end
// of the anchor and where a purge has taken the next one. The path of each to a hash of the anchor
// proves it, without a checkpoint, also to an unverified client. Only if content or journals are
// missing, a proof at head has to show why, which needs a key to trust.
func (c *Client) JournalsBelow(
	ctx context.Context, anchor *verify.TrustedAnchor, from uint64, limit uint32, payload bool,
) ([]LedgerJournal, error) {
	if from >= anchor.Size() {
		return nil, nil
	}
	limit = uint32(min(uint64(limit), anchor.Size()-from))
	request := &v1.GetJournalsRequest{
		Ledger: identified(anchor.Ledger), FromJsn: from, Limit: limit, WantPayload: payload,
		AnchorSize: anchor.Size(),
	}
	answer, err := invoke(ctx, c, "GetJournals", safe, request, v1.LedgerClient.GetJournals)
	if err != nil {
		if errors.Is(err, PurgedJournal) {
			if doubt := c.checkPurged(ctx, anchor.Ledger, from); doubt != nil {
				err = doubt
			}
		}
		return nil, err
	}
	journals, err := journalsOf(anchor, answer.Journals, from, JournalRead{Payload: payload})
	if count := uint64(len(journals)); err == nil && (count == 0 || count > uint64(limit)) {
		err = errors.New("more or fewer journals than were asked for")
	} else if err == nil && count < uint64(limit) {
		err = c.provenPurge(ctx, anchor.Ledger, from+count)
	}
	if err == nil {
		err = c.checkMarks(ctx, anchor.Ledger, journals)
	}
	if err != nil {
		return nil, distrusted("GetJournals", err)
	}
	return journals, nil
}

// journalsOf reads neighbouring journals, each with its path to a hash of an anchor.
func journalsOf(
	anchor *verify.TrustedAnchor, told []*v1.LedgerJournal, from uint64, read JournalRead,
) ([]LedgerJournal, error) {
	journals, err := toldJournals(told, read)
	if err != nil {
		return nil, err
	}
	for i := range journals {
		leaf := journals[i].Leaf
		if leaf.JSN != from+uint64(i) || !anchor.Holds(leaf, told[i].GetPath()) {
			return nil, errors.New("the journal is not in the anchor's list")
		}
	}
	return journals, nil
}

// provenPurge is checkPurged for an answer that is believed without a proof at head.
func (c *Client) provenPurge(ctx context.Context, ledger LedgerID, jsn uint64) error {
	if c.trust == nil {
		return errors.New("a journal is missing, and no key is trusted that could prove its purge")
	}
	return c.checkPurged(ctx, ledger, jsn)
}

// checkMarks is checkOcculted for journals that came without a proof of their marks.
func (c *Client) checkMarks(ctx context.Context, ledger LedgerID, journals []LedgerJournal) error {
	said := occultedOf(ledger, journals)
	if len(said.keys) == 0 {
		return nil
	}
	if c.trust == nil {
		return errors.New("content is missing, and no key is trusted that could prove an order")
	}
	marks, err := c.LedgerRecords(ctx, ledger, said.keys)
	if err != nil {
		return err
	}
	err = said.check(func(key []byte) ([]byte, bool, error) {
		mark, found := marks[string(key)]
		return mark, found, nil
	})
	if err != nil {
		return err
	}
	return c.checkOrders(ctx, ledger, said)
}
