package verify

import (
	"bytes"
	"slices"
)

// Question is what was asked. A valid proof may answer another question (section 13, step 13), so
// the asking side compares the two.
type Question struct {
	// Version and Epoch are nil if any is an answer.
	Version *uint64
	Epoch   *uint64
	// Subject is nil if any is an answer.
	Subject Subject
}

// Subject is what a question is about: one of AboutKeys, AboutRange, AboutBatch, AboutTime,
// AboutGrowth, AboutJournals, AboutRequest, AboutLineage and AboutEntry.
type Subject interface {
	check(v *Verified) error
}

// Answers refuses a proof of anything but what was asked, with the step question.
func (v *Verified) Answers(q Question) error {
	if q.Version != nil && (v.Header == nil || v.Header.Version != *q.Version) ||
		q.Epoch != nil && (v.Header == nil || v.Header.Epoch != *q.Epoch) {
		return fail(StepQuestion, "the proof is for another version")
	}
	if q.Subject == nil {
		return nil
	}
	return q.Subject.check(v)
}

func otherKind() error { return fail(StepQuestion, "the proof is of another kind") }

// AboutKeys asks for keys. The proof may be of more.
type AboutKeys [][]byte

func (q AboutKeys) check(v *Verified) error {
	if v.Query == nil || v.Query.IsRange {
		return otherKind()
	}
	for _, key := range q {
		if _, found := v.Query.Answer(key); !found {
			return fail(StepQuestion, "the proof is for other keys")
		}
	}
	return nil
}

// Answer gives what a proof of keys says of one of them, and whether it says anything.
func (q *Query) Answer(key []byte) (Answer, bool) {
	at, found := slices.BinarySearchFunc(q.Keys, key, func(a Answer, key []byte) int { return bytes.Compare(a.Key, key) })
	if !found {
		return Answer{}, false
	}
	return q.Keys[at], true
}

// AboutRange asks for all records with Low <= key < High. A nil High is the end of the key space.
type AboutRange struct{ Low, High []byte }

func (q AboutRange) check(v *Verified) error {
	if v.Query == nil || !v.Query.IsRange {
		return otherKind()
	}
	if !bytes.Equal(v.Query.Low, q.Low) || !equalBytes(v.Query.High, q.High) {
		return fail(StepQuestion, "the proof is for another range")
	}
	return nil
}

// AboutBatch asks for the receipt of a batch, by the JournalLeafHash of its entry.
type AboutBatch Digest

func (q AboutBatch) check(v *Verified) error {
	if v.Receipt == nil {
		return otherKind()
	}
	if v.Receipt.Hash != Digest(q) {
		return fail(StepQuestion, "the proof is for another batch")
	}
	return nil
}

// AboutTime asks for the newest version at a time, in ms since 1970.
type AboutTime uint64

func (q AboutTime) check(v *Verified) error {
	if v.Time == nil {
		return otherKind()
	}
	if v.Time.TimeMS != uint64(q) {
		return fail(StepQuestion, "the proof is for another time")
	}
	return nil
}

// AboutGrowth asks how a checkpoint was extended. Without a root, the root of the old checkpoint is
// not compared.
type AboutGrowth struct {
	Size uint64
	Root *Digest
}

func (q AboutGrowth) check(v *Verified) error {
	if v.Standing == nil {
		return otherKind()
	}
	if v.Standing.OldSize != q.Size || q.Root != nil && v.Standing.OldRoot != *q.Root {
		return fail(StepQuestion, "the proof extends another checkpoint")
	}
	return nil
}

// AboutJournals asks for journals of a ledger by their numbers, and for the continuation of a known
// state if KnownSize is not 0.
type AboutJournals struct {
	Ledger    LedgerID
	Numbers   []uint64
	KnownSize uint64
	KnownRoot Digest
}

func (q AboutJournals) check(v *Verified) error {
	same := func(journal ProvenJournal, number uint64) bool { return journal.Leaf.JSN == number }
	switch {
	case v.Journals == nil:
		return otherKind()
	case v.Journals.Ledger != q.Ledger:
		return fail(StepQuestion, "the proof is for another ledger")
	case !slices.EqualFunc(v.Journals.Journals, q.Numbers, same):
		return fail(StepQuestion, "the proof is for other journals")
	case q.KnownSize != 0 && (v.Journals.KnownSize != q.KnownSize || v.Journals.KnownRoot != q.KnownRoot):
		return fail(StepQuestion, "the proof continues another state of the ledger than the known one")
	}
	return nil
}

// AboutRequest asks for all journals of a request, by the SHA-256 of what was signed.
type AboutRequest Digest

func (q AboutRequest) check(v *Verified) error {
	if v.Journals == nil {
		return otherKind()
	}
	for i, journal := range v.Journals.Journals {
		leaf := journal.Leaf
		if leaf.Request != Digest(q) || uint64(leaf.Index) != uint64(i) ||
			uint64(leaf.Of) != uint64(len(v.Journals.Journals)) {
			return fail(StepQuestion, "the proof is not for all journals of the request")
		}
	}
	return nil
}

// AboutLineage asks for the journals with a clue: for all, or for a number of the newest. Those
// that a purge has taken count, too, and are not shown.
type AboutLineage struct {
	Ledger LedgerID
	Clue   Digest
	Newest *uint64
}

func (q AboutLineage) check(v *Verified) error {
	switch {
	case v.Lineage == nil:
		return otherKind()
	case v.Lineage.Ledger != q.Ledger || v.Lineage.Clue != q.Clue:
		return fail(StepQuestion, "the proof is for another clue")
	}
	// A purge may have taken some of these, but the range of the proof has all that are left.
	after := uint64(0)
	if q.Newest != nil {
		after = v.Lineage.Count - min(v.Lineage.Count, *q.Newest)
	}
	if v.Lineage.After != after {
		return fail(StepQuestion, "the proof is for another number of journals")
	}
	return nil
}

// AboutEntry asks for an interval proof of an entry of the log. The hash is Verified.Entry of the
// proof that the interval is for. Without it, the bytes of the entry are not compared.
type AboutEntry struct {
	Sequence uint64
	Hash     *Digest
}

func (q AboutEntry) check(v *Verified) error {
	if v.Interval == nil {
		return otherKind()
	}
	if v.Header.Sequence != q.Sequence || q.Hash != nil && v.Entry != *q.Hash {
		return fail(StepQuestion, "the proof is for another entry")
	}
	return nil
}
