package coppice

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"iter"
	"math"
	"reflect"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// JournalRead says what to read of journals besides their leaves.
type JournalRead struct {
	// Payload reads the envelopes. Not everybody may.
	Payload bool
	// Request reads what the authors signed. The proof then verifies their signatures.
	Request bool
}

// LedgerJournal is one journal of a ledger of members.
type LedgerJournal struct {
	Leaf *verify.Leaf
	// Envelope has payload, clues and nonce. It is nil unless it was asked for, and for a journal that
	// is occulted.
	Envelope *verify.Envelope
	// OccultedBy is the number of the journal whose order has occulted this one. It is nil if none
	// has, and if no payload was asked for.
	OccultedBy *uint64
	// Signed is what the author signed. It is nil unless it was asked for, and for an unverified
	// client.
	Signed []byte
}

// JournalPage has neighbouring journals of a ledger.
type JournalPage struct {
	Journals []LedgerJournal
	// LedgerMark is the mark at a version that may be older than head. DescribeLedger gives the mark
	// at head.
	LedgerMark
	// Proof is the proof file of the page. An unverified client gets none.
	Proof []byte
}

// Lineage has the journals with a clue, newest first.
type Lineage struct {
	Journals []LedgerJournal
	// Count is the number of all journals with the clue, also of those that are gone.
	Count uint64
	// Gone is how many of the oldest journals a purge has swept. Those of them that it has kept are
	// among the journals.
	Gone uint64
	// ReadAt is the version that was read.
	ReadAt Stamp
	// Proof is the proof file of the lineage. An unverified client gets none.
	Proof []byte
}

// toldJournals reads the journals of an answer.
func toldJournals(told []*v1.LedgerJournal, read JournalRead) ([]LedgerJournal, error) {
	journals := make([]LedgerJournal, len(told))
	for i, journal := range told {
		leaf, err := verify.DecodeLeaf(journal.GetLeaf())
		if err != nil {
			return nil, err
		}
		if leaf.JSN != journal.GetJsn() {
			return nil, errors.New("a leaf of another journal")
		}
		journals[i].Leaf = leaf
		if !read.Payload {
			continue
		}
		if journals[i].OccultedBy = journal.OccultedBy; journal.OccultedBy != nil {
			continue
		}
		if len(journal.GetEnvelope()) == 0 {
			return nil, &withheld{jsn: leaf.JSN, why: "the content of a journal is withheld: no order is named"}
		}
		if sha256.Sum256(journal.GetEnvelope()) != leaf.Commitment {
			return nil, errors.New("an envelope of another journal")
		}
		if journals[i].Envelope, err = verify.DecodeEnvelope(journal.GetEnvelope()); err != nil {
			return nil, err
		}
	}
	return journals, nil
}

// checkJournals compares the journals of an answer with those of its proof, which has what was
// signed.
func checkJournals(told []LedgerJournal, proven []verify.ProvenJournal, read JournalRead) error {
	if len(told) != len(proven) {
		return errDisagree
	}
	for i := range told {
		shown := &proven[i]
		if !reflect.DeepEqual(told[i].Leaf, shown.Leaf) ||
			read.Payload && !reflect.DeepEqual(told[i].Envelope, shown.Envelope) {
			return errDisagree
		}
		if !read.Request {
			continue
		}
		if shown.Signed == nil {
			return errors.New("the proof does not show what the author signed")
		}
		told[i].Signed = shown.Signed
	}
	return nil
}

// JournalPage reads a count of journals from a number on: 1 to 1,024, or fewer at the end of the
// ledger and where a purge has taken the next one. If it has taken the first one, the error is
// PurgedJournal. If the list was seen before, the proof must show that it has only grown since.
func (c *Client) JournalPage(
	ctx context.Context, ledger LedgerID, from uint64, limit uint32, read JournalRead, since *LedgerMark,
) (*JournalPage, error) {
	page, told, err := c.journalPage(ctx, ledger, from, limit, read, since)
	if err != nil {
		return nil, err
	}
	if err := c.checkOcculted(ctx, told.known, ledger, page.Journals, told.marksProof); err != nil {
		return nil, distrusted("GetJournals", err)
	}
	return page, nil
}

// toldPage is what came with a page, besides its journals.
type toldPage struct {
	known      known
	marksProof []byte
	// cluster and checkpoint are proven if a key is trusted.
	cluster    verify.ClusterID
	checkpoint []byte
}

// journalPage reads a page. The caller has to check that an order has occulted each journal without
// content.
func (c *Client) journalPage(
	ctx context.Context, ledger LedgerID, from uint64, limit uint32, read JournalRead, since *LedgerMark,
) (*JournalPage, *toldPage, error) {
	if since == nil {
		since = &LedgerMark{}
	}
	k := c.known()
	request := &v1.GetJournalsRequest{
		Ledger: identified(ledger), FromJsn: from, Limit: limit, WantPayload: read.Payload, WantRequest: read.Request,
		KnownSize: since.Size, Read: c.recordOptions(nil),
	}
	answer, err := invoke(ctx, c, "GetJournals", safe, request, v1.LedgerClient.GetJournals)
	if err != nil {
		if errors.Is(err, PurgedJournal) {
			if doubt := c.checkPurged(ctx, ledger, from); doubt != nil {
				err = doubt
			}
		}
		return nil, nil, err
	}
	page, whole, err := pageOf(answer, from, limit, read)
	if err == nil && !whole {
		// The answer ends before the first journal that a purge has taken.
		err = c.checkPurged(ctx, ledger, from+uint64(len(page.Journals)))
	}
	told := &toldPage{known: k, marksProof: answer.MarksProof}
	if err == nil && c.trust != nil {
		subject := verify.AboutJournals{Ledger: ledger, Numbers: numbers(page.Journals)}
		err = c.believe(ctx, k, answer.Proof, subject, func(v *verify.Verified) error {
			if since.Size > 0 && v.Journals.KnownSize != since.Size {
				return errDisagree
			}
			if since.Size > 0 && v.Journals.KnownRoot != since.Root {
				return errOtherList
			}
			if v.Journals.Size != page.Size || v.Journals.Root != page.Root {
				return errDisagree
			}
			if err := checkJournals(page.Journals, v.Journals.Journals, read); err != nil {
				return err
			}
			told.cluster, told.checkpoint = v.Cluster, bytes.Clone(v.Note)
			return checkAge(v, k)
		})
	}
	if err != nil {
		return nil, nil, distrusted("GetJournals", err)
	}
	return page, told, nil
}

// checkPurged checks that a purge has taken a journal which is not given: the ledger is purged
// above it, and its leaf is gone at head. A leaf stays where the purge keeps the journal.
func (c *Client) checkPurged(ctx context.Context, ledger LedgerID, jsn uint64) error {
	if c.trust == nil {
		return nil
	}
	head, leaf := ledger.HeadKey(), ledger.LeafKey(jsn)
	records, err := c.LedgerRecords(ctx, ledger, [][]byte{head, leaf})
	if errors.Is(err, PurgedJournal) {
		// Head proves that a leaf is gone. A refusal proves nothing.
		return distrust("GetLedgerRecords", "the leaf of a journal is refused at head")
	}
	if err != nil {
		return err
	}
	state, err := verify.DecodeLedgerState(records[string(head)])
	if err != nil {
		return distrusted("GetLedgerRecords", err)
	}
	hidden := &withheld{jsn: jsn}
	if jsn >= state.Purged {
		hidden.why = "a journal is withheld: no purge has taken it"
	} else if records[string(leaf)] != nil {
		hidden.why = "a journal is withheld: the purge below which it lies keeps it"
	} else {
		return nil
	}
	return distrusted("GetJournals", hidden)
}

// withheld is a journal, or its content, that is not given though nothing has taken it.
type withheld struct {
	jsn uint64
	why string
}

func (w *withheld) Error() string { return w.why }

// errOtherList says that a ledger's list had another root at a size than it should have had.
var errOtherList = errors.New("the list of the ledger had another root")

// pageOf reads an answer, and tells whether it has all journals that were asked for.
func pageOf(
	answer *v1.GetJournalsResponse, from uint64, limit uint32, read JournalRead,
) (page *JournalPage, whole bool, err error) {
	if len(answer.Root) != len(verify.Digest{}) {
		return nil, false, errors.New("a root of another length")
	}
	mark := LedgerMark{Size: answer.Size, Root: verify.Digest(answer.Root)}
	journals, err := toldJournals(answer.Journals, read)
	if err != nil {
		return nil, false, err
	}
	count := uint64(0)
	if mark.Size > from {
		count = min(mark.Size-from, uint64(limit))
	}
	if uint64(len(journals)) > count || len(journals) == 0 && count > 0 {
		return nil, false, errors.New("more or fewer journals than were asked for")
	}
	for i := range journals {
		if journals[i].Leaf.JSN != from+uint64(i) {
			return nil, false, errors.New("other journals than were asked for")
		}
	}
	page = &JournalPage{Journals: journals, LedgerMark: mark, Proof: answer.Proof}
	return page, uint64(len(journals)) == count, nil
}

func numbers(journals []LedgerJournal) []uint64 {
	all := make([]uint64, len(journals))
	for i := range journals {
		all[i] = journals[i].Leaf.JSN
	}
	return all
}

// journalsOfPage is how many journals LedgerJournals reads at one time, at most.
const journalsOfPage = 256

// LedgerJournals gives the journals of a ledger from a number on, to its end. They come in pages,
// and each page is proven to continue the list of the one before. If there is no journal of that
// number yet, the error is NotFound. If a purge has taken that one, it is PurgedJournal; if it has
// taken a later one, the journals go on at LedgerInfo.Purged.
func (c *Client) LedgerJournals(
	ctx context.Context, ledger LedgerID, from uint64, read JournalRead,
) iter.Seq2[LedgerJournal, error] {
	return func(yield func(LedgerJournal, error) bool) {
		var since *LedgerMark
		limit, next := uint32(journalsOfPage), from
		for {
			page, err := c.JournalPage(ctx, ledger, next, limit, read, since)
			if limit > 1 && TooLarge(err) {
				limit /= 2
				continue
			}
			if errors.Is(err, PurgedJournal) && next > from {
				// Those that are kept further on are read by their numbers.
				info, failed := c.DescribeLedger(ctx, ledger, nil)
				if failed == nil && info.Purged > next {
					next = info.Purged
					continue
				}
				if failed != nil {
					err = failed
				}
			}
			if err != nil {
				yield(LedgerJournal{}, err)
				return
			}
			for _, journal := range page.Journals {
				if !yield(journal, nil) {
					return
				}
			}
			next += uint64(len(page.Journals))
			if next >= page.Size || len(page.Journals) == 0 {
				return
			}
			since = &page.LedgerMark
		}
	}
}

// Lineage reads the journals with a clue, newest first, and none is left out: all of them if newest
// is 0, or that number of the newest. An answer has at most 4,096.
func (c *Client) Lineage(
	ctx context.Context, ledger LedgerID, clue []byte, newest uint32, read JournalRead,
) (*Lineage, error) {
	k := c.known()
	request := &v1.GetLineageRequest{
		Ledger: identified(ledger), Clue: clue, Newest: newest, WantPayload: read.Payload, WantRequest: read.Request,
		Read: c.recordOptions(nil),
	}
	answer, err := invoke(ctx, c, "GetLineage", safe, request, v1.LedgerClient.GetLineage)
	if err != nil {
		return nil, err
	}
	lineage, err := lineageOf(answer, newest, read)
	if err == nil && c.trust != nil {
		subject := verify.AboutLineage{Ledger: ledger, Clue: verify.ClueHash(ledger, clue)}
		if newest > 0 {
			wanted := uint64(newest)
			subject.Newest = &wanted
		}
		err = c.believe(ctx, k, answer.Proof, subject, func(v *verify.Verified) error {
			if v.Lineage.Count != lineage.Count || v.Lineage.Gone != lineage.Gone || v.Header.Stamp() != lineage.ReadAt {
				return errDisagree
			}
			if err := checkJournals(lineage.Journals, v.Lineage.Journals, read); err != nil {
				return err
			}
			return checkHead(v, k)
		})
	}
	if err == nil {
		err = c.checkOcculted(ctx, k, ledger, lineage.Journals, answer.MarksProof)
	}
	if err != nil {
		return nil, distrusted("GetLineage", err)
	}
	return lineage, nil
}

func lineageOf(answer *v1.GetLineageResponse, newest uint32, read JournalRead) (*Lineage, error) {
	journals, err := toldJournals(answer.Journals, read)
	if err != nil {
		return nil, err
	}
	wanted := uint64(newest)
	if newest == 0 {
		wanted = math.MaxUint64
	}
	// Of the oldest ones a purge may have kept any.
	most := min(answer.Count, wanted)
	least := answer.Count - max(answer.Count-most, min(answer.Gone, answer.Count))
	if count := uint64(len(journals)); count < least || count > most {
		return nil, errors.New("more or fewer journals than were asked for")
	}
	for i := range journals {
		if i > 0 && journals[i].Leaf.JSN >= journals[i-1].Leaf.JSN {
			return nil, errors.New("journals that do not descend")
		}
	}
	return &Lineage{
		Journals: journals, Count: answer.Count, Gone: answer.Gone, ReadAt: stampOf(answer.ReadAt), Proof: answer.Proof,
	}, nil
}
