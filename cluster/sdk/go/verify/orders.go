package verify

import (
	"bytes"
	"errors"
	"slices"
)

const (
	targetsMax   = 1024
	approvalsMax = 16
)

// Target is a journal that an order occults, with the hash of its leaf.
type Target struct {
	JSN  uint64
	Leaf Digest
}

// Approval is a member's signature over an order.
type Approval struct {
	Member    MemberID
	Signature [64]byte
}

// Order is the payload of a journal that occults others (section 18).
type Order struct {
	// Until is the largest size of the ledger at which the order can be applied.
	Until uint64
	// Targets ascend by their numbers.
	Targets []Target
	// Approvals are by members other than the author, and ascend.
	Approvals []Approval
}

// DecodeOrder reads the payload of a journal that orders.
func DecodeOrder(payload []byte) (*Order, error) {
	r := &reader{rest: payload}
	if r.u8() != 1 {
		r.fail("an order of another format")
	}
	o := &Order{Until: r.u64()}
	if r.u8() != 0 {
		r.fail("an order of another kind")
	}
	targets := r.count16(40)
	if r.err == nil && (targets == 0 || targets > targetsMax) {
		r.fail("an order has 1 to 1,024 journals")
		targets = 0
	}
	for range targets {
		o.Targets = append(o.Targets, Target{JSN: r.u64(), Leaf: r.digest()})
	}
	approvals := r.count16(80)
	if approvals > approvalsMax {
		r.fail("an order has more than 16 approvals")
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
	byNumber := slices.IsSortedFunc(o.Targets, func(a, b Target) int {
		if a.JSN < b.JSN {
			return -1
		}
		return 1
	})
	byMember := slices.IsSortedFunc(o.Approvals, func(a, b Approval) int {
		if bytes.Compare(a.Member[:], b.Member[:]) < 0 {
			return -1
		}
		return 1
	})
	if !byNumber || !byMember {
		return nil, errors.New("an order has its journals and approvals in ascending order, each once")
	}
	return o, nil
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
	w.u8(0)
	w.u16(uint16(len(o.Targets)))
	for _, target := range o.Targets {
		w.u64(target.JSN)
		w.digest(target.Leaf)
	}
	return w
}

// Encode gives the payload of a journal that orders. It refuses what no ledger takes.
func (o *Order) Encode() ([]byte, error) {
	if len(o.Targets) > targetsMax || len(o.Approvals) > approvalsMax {
		return nil, errors.New("an order has 1 to 1,024 journals, and at most 16 approvals")
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

// occult gives a ledger's rule about the members that may occult.
func (r *Round) occult(ledger LedgerID) (uint8, error) {
	founding, err := DecodeFounding(r.get(ledger.FoundingKey()))
	if err != nil {
		return 0, err
	}
	return founding.Policy.Occult, nil
}

// judgeOrder takes rule 8.
func (r *Round) judgeOrder(p *parsedRequest, ledger *roundLedger) error {
	author, err := r.member(p.id, ledger, p.Member)
	if err != nil {
		return err
	}
	roles, message := author.Roles, p.order.Message(p.Cluster, p.id)
	for _, approval := range p.order.Approvals {
		member, err := r.member(p.id, ledger, approval.Member)
		if err != nil {
			return err
		}
		if member == nil || member.Agency != nil {
			return RefusedApproval
		}
		key, has := member.KeyAt(ledger.head.size)
		if !has || !verifySignature(key, message, approval.Signature[:]) {
			return RefusedApproval
		}
		roles |= member.Roles
	}
	occult, err := r.occult(p.id)
	switch {
	case err != nil:
		return err
	case occult == 0:
		return RefusedOrder
	case roles&RoleOwner == 0 || occult == 1 && roles&RoleRegulator == 0:
		return RefusedApproval
	case ledger.head.size > p.order.Until:
		return RefusedOrder
	}
	for _, target := range p.order.Targets {
		if err := r.judgeTarget(p.id, ledger, target); err != nil {
			return err
		}
	}
	return nil
}

func (r *Round) judgeTarget(id LedgerID, ledger *roundLedger, target Target) error {
	encoded := r.get(id.leafKey(target.JSN))
	if r.get(id.MarkKey(target.JSN)) != nil || target.JSN >= ledger.before || encoded == nil {
		return RefusedOrder
	}
	leaf, err := DecodeLeaf(encoded)
	if err != nil {
		return err
	}
	if LeafHash(encoded) != target.Leaf || leaf.Kind != JournalData {
		return RefusedOrder
	}
	return nil
}
