package coppice

import (
	"context"
	"errors"

	"coppice.dev/sdk/verify"
)

// GivenOrder is an order in a ledger, which has done what it says.
type GivenOrder struct {
	// Leaf is the leaf of the order's own journal.
	Leaf  *verify.Leaf
	Order *verify.Order
	// Signers are the author of the order, and the members that approved it. Each has signed by its
	// key in force at the order.
	Signers []*verify.Member
}

// LedgerOrder reads an order by the number of its journal, and who signed it.
func (c *Client) LedgerOrder(ctx context.Context, ledger LedgerID, jsn uint64) (*GivenOrder, error) {
	page, told, err := c.journalPage(ctx, ledger, jsn, 1, JournalRead{Payload: true, Request: true}, nil)
	if err != nil {
		return nil, err
	}
	if len(page.Journals) == 0 {
		return nil, distrust("GetJournals", "no journal")
	}
	leaf, envelope := page.Journals[0].Leaf, page.Journals[0].Envelope
	if leaf.Kind != verify.JournalOrder {
		return nil, distrusted("GetJournals", &badOrder{"the journal is no order"})
	}
	if envelope == nil {
		return nil, distrusted("GetJournals", &withheld{jsn: jsn, why: "the content of an order is withheld"})
	}
	given := &GivenOrder{Leaf: leaf}
	if given.Order, err = verify.DecodeOrder(envelope.Payload); err != nil {
		return nil, distrusted("GetJournals", &badOrder{err.Error()})
	}
	if err := checkAuthor(given.Leaf, given.Order); err != nil {
		return nil, distrusted("GetJournals", err)
	}
	// The request is signed by the key in the leaf.
	signed := func(key verify.PublicKey) bool { return key == given.Leaf.Key }
	if err := c.addSigner(ctx, given, ledger, given.Leaf.Member, signed); err != nil {
		return nil, err
	}
	for _, approval := range given.Order.Approvals {
		check := func(key verify.PublicKey) bool {
			return given.Order.SignedBy(key, approval, told.cluster, ledger)
		}
		if c.trust == nil {
			check = nil
		}
		if err := c.addSigner(ctx, given, ledger, approval.Member, check); err != nil {
			return nil, err
		}
	}
	return given, nil
}

// checkAuthor checks that an order came in time, and that its author is counted once among its
// signers.
func checkAuthor(leaf *verify.Leaf, order *verify.Order) error {
	if leaf.JSN > order.Until {
		return &badOrder{"the order came too late"}
	}
	if order.ApprovedBy(leaf.Member) {
		return &badOrder{"the author of the order approves it again"}
	}
	return nil
}

// enough tells whether this number of members may occult together by the rule of a ledger. Nobody
// is owner and regulator, so both together are two.
func enough(occult uint8, signers int) bool {
	return occult == 1 && signers >= 2 || occult == 2 && signers >= 1
}

// badOrder is an order that was applied, and lacks what it needs.
type badOrder struct{ why string }

func (b *badOrder) Error() string { return b.why }

// addSigner reads a member that has signed an order, and checks its key in force at the order.
func (c *Client) addSigner(
	ctx context.Context, given *GivenOrder, ledger LedgerID, id verify.MemberID, check func(verify.PublicKey) bool,
) error {
	member, err := c.memberByID(ctx, ledger, id)
	if err != nil {
		return err
	}
	if member == nil {
		return distrusted("GetMember", &badOrder{"a member of the order is none of the ledger"})
	}
	if check != nil {
		if key, has := member.KeyAt(given.Leaf.JSN); !has || !check(key) {
			return distrusted("GetJournals", &badOrder{"a member of the order has not signed it"})
		}
	}
	given.Signers = append(given.Signers, member)
	return nil
}

// saidOcculted has the journals of an answer that are said to be occulted.
type saidOcculted struct {
	// byOrder has the journals by the numbers of their orders.
	byOrder map[uint64][]verify.Target
	// keys are those of the marks, and marks the journals with the orders that these have to name.
	keys  verify.AboutKeys
	marks map[string]saidMark
}

type saidMark struct{ jsn, order uint64 }

func occultedOf(ledger LedgerID, journals []LedgerJournal) *saidOcculted {
	said := &saidOcculted{byOrder: map[uint64][]verify.Target{}, marks: map[string]saidMark{}}
	for _, journal := range journals {
		if by := journal.OccultedBy; by != nil {
			key := ledger.MarkKey(journal.Leaf.JSN)
			target := verify.Target{JSN: journal.Leaf.JSN, Leaf: journal.Leaf.Hash()}
			said.byOrder[*by] = append(said.byOrder[*by], target)
			said.keys, said.marks[string(key)] = append(said.keys, key), saidMark{journal.Leaf.JSN, *by}
		}
	}
	return said
}

// check compares the marks with the proven ones.
func (s *saidOcculted) check(proven func(key []byte) (mark []byte, found bool, err error)) error {
	for _, key := range s.keys {
		mark, found, err := proven(key)
		if err != nil {
			return err
		}
		said := s.marks[string(key)]
		if by, err := verify.DecodeMark(mark); !found || err != nil || by != said.order {
			return &withheld{
				jsn: said.jsn, why: "the content of a journal is withheld: no order has occulted it",
			}
		}
	}
	return nil
}

// checkOcculted checks that each journal that is said to be occulted has a mark at head, which
// names an order for it. Without them, the coordinator has withheld the content.
func (c *Client) checkOcculted(
	ctx context.Context, k known, ledger LedgerID, journals []LedgerJournal, proof []byte,
) error {
	said := occultedOf(ledger, journals)
	if len(said.keys) == 0 || c.trust == nil {
		return nil
	}
	if len(proof) == 0 {
		first := said.marks[string(said.keys[0])].jsn
		return &withheld{jsn: first, why: "the content of a journal is withheld: no mark is proven"}
	}
	err := c.believe(ctx, k, proof, said.keys, func(v *verify.Verified) error {
		err := said.check(func(key []byte) ([]byte, bool, error) { return provenValue(v, key) })
		if err != nil {
			return err
		}
		return checkHead(v, k)
	})
	if err != nil {
		return err
	}
	return c.checkOrders(ctx, ledger, said)
}

// checkOrders checks that the orders that marks name were signed, and name the journals.
func (c *Client) checkOrders(ctx context.Context, ledger LedgerID, said *saidOcculted) error {
	// The rule never changes, so any version of it is the rule.
	info, err := c.DescribeLedger(ctx, ledger, nil)
	if err != nil {
		return err
	}
	for order, targets := range said.byOrder {
		given, err := c.LedgerOrder(ctx, ledger, order)
		if err != nil {
			return err
		}
		if !enough(info.Founding.Policy.Occult, len(given.Signers)) {
			return &withheld{
				jsn: targets[0].JSN, why: "the content of a journal is withheld: its order lacks signatures",
			}
		}
		for _, target := range targets {
			if !given.Order.Names(target) {
				return &withheld{
					jsn: target.JSN, why: "the content of a journal is withheld: the order does not name it",
				}
			}
		}
	}
	return nil
}

// Occult makes a draft of an order that occults journals. Content that the order names is erased
// for good.
func (d *Draft) Occult(order *verify.Order) *Draft {
	if order.Targets == nil {
		d.err = errors.Join(d.err, errors.New("the order occults nothing"))
	}
	return d.Order(order)
}

// Order makes a draft of an order. The approvals are by members other than the author. The draft
// has no other journal. What a purge sweeps is deleted for good.
func (d *Draft) Order(order *verify.Order) *Draft {
	payload, err := order.Encode()
	d.err = errors.Join(d.err, err)
	return d.add(verify.JournalOrder, payload)
}
