package verify

import (
	"bytes"
	"errors"
	"slices"
)

const (
	targetsMax   = 1024
	approvalsMax = 256
	absentMax    = 256
)

// Target is a journal that an order occults, with the hash of its leaf.
type Target struct {
	JSN  uint64
	Leaf Digest
}

// Absent is a member without a key, in whose place a regulator signs a purge.
type Absent struct {
	Member MemberID
	// Revocation is the number of the journal that ended its last key.
	Revocation uint64
}

// PurgeOrder orders to take the oldest journals out of a ledger, after a time of notice.
type PurgeOrder struct {
	// Before is the number below which journals go, but for those that are kept.
	Before uint64
	// Closes tells whether the ledger takes nothing but orders from then on.
	Closes bool
	// Size and Root are those of the list that the signers have seen.
	Size uint64
	Root Digest
	// Authors is how many members have a journal below Before.
	Authors uint32
	// Absent are those of them that have no key any more, and ascend.
	Absent []Absent
}

// RetainOrder keeps journals, which ascend, from the purge that a journal has ordered.
type RetainOrder struct {
	Purge    uint64
	Journals []uint64
}

// RecallOrder takes a purge back in its time of notice.
type RecallOrder struct{ Purge uint64 }

// SweepOrder deletes the next journals of a purge: those from From up to below To.
type SweepOrder struct{ Purge, From, To uint64 }

// Approval is a member's signature over an order.
type Approval struct {
	Member    MemberID
	Signature [64]byte
}

// Order is the payload of a journal that orders (section 18). It does one thing: it has Targets, or
// one of Purge, Retain, Recall and Sweep.
type Order struct {
	// Until is the largest size of the ledger at which the order can be applied.
	Until uint64
	// Targets are the journals that the order occults. They ascend by their numbers.
	Targets []Target
	Purge   *PurgeOrder
	Retain  *RetainOrder
	Recall  *RecallOrder
	Sweep   *SweepOrder
	// Approvals are by members other than the author, and ascend. Only an order that occults or
	// purges has any.
	Approvals []Approval
}

// DecodeOrder reads the payload of a journal that orders.
func DecodeOrder(payload []byte) (*Order, error) {
	r := &reader{rest: payload}
	if r.u8() != 1 {
		r.fail("an order of another format")
	}
	o := &Order{Until: r.u64()}
	o.readAction(r)
	approvals, most := r.count16(80), 0
	if o.Targets != nil || o.Purge != nil {
		most = approvalsMax
	}
	if approvals > most {
		r.fail("an order has more than %d approvals", most)
		approvals = 0
	}
	for range approvals {
		approval := Approval{Member: MemberID(r.id())}
		copy(approval.Signature[:], r.take(64))
		o.Approvals = append(o.Approvals, approval)
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	if !ascend(o.Targets, func(a, b Target) bool { return a.JSN < b.JSN }) ||
		o.Retain != nil && !ascend(o.Retain.Journals, func(a, b uint64) bool { return a < b }) ||
		o.Purge != nil && !ascend(o.Purge.Absent, func(a, b Absent) bool { return before(a.Member, b.Member) }) ||
		!ascend(o.Approvals, func(a, b Approval) bool { return before(a.Member, b.Member) }) {
		return nil, errors.New("an order has its journals, members and approvals in ascending order, each once")
	}
	return o, nil
}

func before(a, b MemberID) bool { return bytes.Compare(a[:], b[:]) < 0 }

// ascend tells whether each element is less than the next one.
func ascend[T any](all []T, less func(a, b T) bool) bool {
	for i := 1; i < len(all); i++ {
		if !less(all[i-1], all[i]) {
			return false
		}
	}
	return true
}

// readAction reads what the order does.
func (o *Order) readAction(r *reader) {
	switch r.u8() {
	case 0:
		for range o.countJournals(r, 40) {
			o.Targets = append(o.Targets, Target{JSN: r.u64(), Leaf: r.digest()})
		}
	case 1:
		p := &PurgeOrder{Before: r.u64(), Closes: r.flag(), Size: r.u64(), Root: r.digest(), Authors: r.u32()}
		absent := r.count16(24)
		if p.Before == 0 || p.Before > p.Size || p.Authors > approvalsMax+1+absentMax || absent > absentMax {
			r.fail("a purge of other journals or members than there can be")
			absent = 0
		}
		for range absent {
			p.Absent = append(p.Absent, Absent{Member: MemberID(r.id()), Revocation: r.u64()})
		}
		o.Purge = p
	case 2:
		o.Retain = &RetainOrder{Purge: r.u64()}
		for range o.countJournals(r, 8) {
			o.Retain.Journals = append(o.Retain.Journals, r.u64())
		}
	case 3:
		o.Recall = &RecallOrder{Purge: r.u64()}
	case 4:
		s := &SweepOrder{Purge: r.u64(), From: r.u64(), To: r.u64()}
		if s.To <= s.From || s.To-s.From > targetsMax {
			r.fail("a sweep takes 1 to 1,024 journals")
		}
		o.Sweep = s
	default:
		r.fail("an order of another kind")
	}
}

func (o *Order) countJournals(r *reader, each int) int {
	count := r.count16(each)
	if r.err == nil && (count == 0 || count > targetsMax) {
		r.fail("an order has 1 to 1,024 journals")
		return 0
	}
	return count
}

// Message is what a member signs to approve the order.
func (o *Order) Message(cluster ClusterID, ledger LedgerID) []byte {
	w := writer{}
	w.u8(tagSigned)
	w.bytes([]byte("coppice-order"))
	w.bytes(cluster[:])
	w.bytes(ledger[:])
	w.bytes(o.encodeSigned())
	return w
}

// encodeSigned gives what members sign of an order.
func (o *Order) encodeSigned() []byte {
	w := writer{}
	w.u8(1)
	w.u64(o.Until)
	switch {
	case o.Purge != nil:
		w.u8(1)
		w.u64(o.Purge.Before)
		w.flag(o.Purge.Closes)
		w.u64(o.Purge.Size)
		w.digest(o.Purge.Root)
		w.u32(o.Purge.Authors)
		w.u16(uint16(len(o.Purge.Absent)))
		for _, absent := range o.Purge.Absent {
			w.bytes(absent.Member[:])
			w.u64(absent.Revocation)
		}
	case o.Retain != nil:
		w.u8(2)
		w.u64(o.Retain.Purge)
		w.u16(uint16(len(o.Retain.Journals)))
		for _, jsn := range o.Retain.Journals {
			w.u64(jsn)
		}
	case o.Recall != nil:
		w.u8(3)
		w.u64(o.Recall.Purge)
	case o.Sweep != nil:
		w.u8(4)
		w.u64(o.Sweep.Purge)
		w.u64(o.Sweep.From)
		w.u64(o.Sweep.To)
	default:
		w.u8(0)
		w.u16(uint16(len(o.Targets)))
		for _, target := range o.Targets {
			w.u64(target.JSN)
			w.digest(target.Leaf)
		}
	}
	return w
}

// Encode gives the payload of a journal that orders. It refuses what no ledger takes.
func (o *Order) Encode() ([]byte, error) {
	actions := 0
	for _, does := range []bool{
		o.Targets != nil, o.Purge != nil, o.Retain != nil, o.Recall != nil, o.Sweep != nil,
	} {
		if does {
			actions++
		}
	}
	if actions != 1 || len(o.Approvals) > approvalsMax || len(o.Targets) > targetsMax ||
		o.Retain != nil && len(o.Retain.Journals) > targetsMax || o.Purge != nil && len(o.Purge.Absent) > absentMax {
		return nil, errors.New("an order does one thing, has 1 to 1,024 journals, and at most 256 approvals")
	}
	w := writer(o.encodeSigned())
	w.u16(uint16(len(o.Approvals)))
	for _, approval := range o.Approvals {
		w.bytes(approval.Member[:])
		w.bytes(approval.Signature[:])
	}
	// The decoder has the other rules.
	_, err := DecodeOrder(w)
	return w, err
}

// SignedBy tells whether a key has signed an approval of the order.
func (o *Order) SignedBy(key PublicKey, approval Approval, cluster ClusterID, ledger LedgerID) bool {
	return verifySignature(key, o.Message(cluster, ledger), approval.Signature[:])
}

// Names tells whether the order is to occult a journal.
func (o *Order) Names(target Target) bool { return slices.Contains(o.Targets, target) }

// Hash is the hash of the journal in the list of its ledger.
func (l *Leaf) Hash() Digest { return LeafHash(l.encode()) }

// ApprovedBy tells whether a member approves the order. Its author may not.
func (o *Order) ApprovedBy(member MemberID) bool {
	return slices.ContainsFunc(o.Approvals, func(a Approval) bool { return a.Member == member })
}

// MarkKey is the reserved key of the mark of an occulted journal.
func (l LedgerID) MarkKey(jsn uint64) []byte { return l.key(be64(jsn/256), []byte{3}, be64(jsn)) }

// DecodeMark reads a mark: the number of the journal that is the order.
func DecodeMark(encoded []byte) (uint64, error) {
	r := &reader{rest: encoded}
	if r.u8() != 1 {
		r.fail("a mark of another format")
	}
	order := r.u64()
	return order, r.end()
}

func encodeMark(order uint64) []byte {
	w := writer{}
	w.u8(1)
	w.u64(order)
	return w
}
