package coppice

import (
	"bytes"
	"context"
	"crypto"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"coppice.dev/sdk/verify"
)

const (
	// orderFormat is the format of an order's file.
	orderFormat = 1
	// orderFileMax is the size of the largest file of an order that is read. An order of 1,024
	// journals with all approvals has a fourth of that.
	orderFileMax = 1 << 20
	// ordersSignersMax is how many members sign an order: its author, and 256 that approve it.
	ordersSignersMax = 257
	// orderJournalsMax is how many journals an order names, or sweeps.
	orderJournalsMax = 1024
)

// OrderFile is an order on its way between the members that sign it, with the cluster and the
// ledger that they sign it for. Encode gives the file of `coppice order`.
type OrderFile struct {
	// Name is the ledger's name when the order was prepared. Only the id counts.
	Name    string
	Cluster verify.ClusterID
	Ledger  LedgerID
	// Order has no approvals: these are beside it, with names.
	Order     *verify.Order
	Approvals []NamedApproval
}

// NamedApproval is the signature of a member over an order.
type NamedApproval struct {
	Member    string
	Signature [64]byte
}

// Approve adds the signature of a member, in place of an older one. It needs no ledger, so the file
// may be signed anywhere. Signers look at Order first: what it sweeps or occults goes for good.
func (f *OrderFile) Approve(member string, key crypto.Signer) error {
	signer, err := newSigner(key)
	if err != nil {
		return err
	}
	signature, err := signer.sign(f.Order.Message(f.Cluster, f.Ledger))
	if err != nil {
		return err
	}
	same := func(a NamedApproval) bool { return a.Member == member }
	approval := NamedApproval{Member: member, Signature: signature}
	f.Approvals = append(slices.DeleteFunc(f.Approvals, same), approval)
	return nil
}

// OrderDraft makes the draft of an order with its approvals. The author's own approval is left out,
// since the request is its signature.
func (a *Author) OrderDraft(file *OrderFile) (*Draft, error) {
	if file.Cluster != a.seen.cluster || file.Ledger != a.place.Ledger {
		return nil, errors.New("coppice: the order is for another cluster or ledger than the author")
	}
	order := *file.Order
	order.Approvals = nil
	for _, approval := range file.Approvals {
		id := verify.MemberIDOf(approval.Member)
		if id != a.place.Member {
			signed := verify.Approval{Member: id, Signature: approval.Signature}
			order.Approvals = append(order.Approvals, signed)
		}
	}
	slices.SortFunc(order.Approvals, func(a, b verify.Approval) int {
		return bytes.Compare(a.Member[:], b.Member[:])
	})
	same := func(a, b verify.Approval) bool { return a.Member == b.Member }
	order.Approvals = slices.CompactFunc(order.Approvals, same)
	draft := new(Draft).Order(&order)
	return draft, draft.err
}

// orderJSON is the file of an order.
type orderJSON struct {
	Format    int            `json:"coppice_order"`
	Ledger    string         `json:"ledger"`
	ClusterID string         `json:"cluster_id"`
	LedgerID  string         `json:"ledger_id"`
	Order     string         `json:"order"`
	Approvals []approvalJSON `json:"approvals"`
}

type approvalJSON struct {
	Member    string `json:"member"`
	Signature string `json:"signature"`
}

// approvalsNone is how the payload of an order ends that nobody approves.
var approvalsNone = []byte{0, 0}

// Encode gives the file of the order.
func (f *OrderFile) Encode() ([]byte, error) {
	order := *f.Order
	order.Approvals = nil
	payload, err := order.Encode()
	if err != nil {
		return nil, fmt.Errorf("coppice: the order: %w", err)
	}
	file := orderJSON{
		Format: orderFormat, Ledger: f.Name, ClusterID: f.Cluster.String(), LedgerID: f.Ledger.String(),
		Order: hex.EncodeToString(payload[:len(payload)-len(approvalsNone)]), Approvals: []approvalJSON{},
	}
	for _, approval := range f.Approvals {
		signature := hex.EncodeToString(approval.Signature[:])
		line := approvalJSON{Member: approval.Member, Signature: signature}
		file.Approvals = append(file.Approvals, line)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err = encoder.Encode(file)
	return text.Bytes(), err
}

// DecodeOrderFile reads the file of an order. Only the order's bytes and the signatures count;
// names are there for people. No signature is verified. But for white space, an order has one file:
// with a field twice, two signers could read two orders.
func DecodeOrderFile(text []byte) (*OrderFile, error) {
	bad := func(why string) (*OrderFile, error) {
		return nil, errors.New("coppice: the file of an order: " + why)
	}
	if len(text) > orderFileMax {
		return bad("it has more than 1 MiB")
	}
	var read orderJSON
	if err := json.Unmarshal(text, &read); err != nil {
		return bad(printable(err.Error()))
	}
	if read.Format != orderFormat || len(read.Approvals) > ordersSignersMax {
		return bad("it has another format, or more signatures than an order has")
	}
	f := &OrderFile{Name: read.Ledger}
	if !unhex(f.Cluster[:], read.ClusterID) || !unhex(f.Ledger[:], read.LedgerID) {
		return bad("an id has 32 hex digits")
	}
	signed, err := hex.DecodeString(read.Order)
	if err != nil {
		return bad("the order is not in hex")
	}
	if f.Order, err = verify.DecodeOrder(append(signed, approvalsNone...)); err != nil {
		return bad(err.Error())
	}
	for _, line := range read.Approvals {
		approval := NamedApproval{Member: line.Member}
		if !unhex(approval.Signature[:], line.Signature) {
			return bad("a signature has 128 hex digits")
		}
		f.Approvals = append(f.Approvals, approval)
	}
	if again, err := f.Encode(); err != nil || !sameJSON(text, again) {
		return bad("it has other fields than an order has, or a field twice")
	}
	return f, nil
}

// sameJSON compares two texts in JSON, but for white space.
func sameJSON(a, b []byte) bool {
	var left, right bytes.Buffer
	err := errors.Join(json.Compact(&left, a), json.Compact(&right, b))
	return err == nil && bytes.Equal(left.Bytes(), right.Bytes())
}

// unhex fills bytes with hex digits, and tells whether there were as many.
func unhex(to []byte, digits string) bool {
	if len(digits) != hex.EncodedLen(len(to)) {
		return false
	}
	_, err := hex.Decode(to, []byte(digits))
	return err == nil
}

// orderFileFor begins the file of an order that is for a ledger of a size, and that is refused once
// the ledger has more journals behind that than within.
func (c *Client) orderFileFor(
	ctx context.Context, ledger LedgerID, name string, size, within uint64, order *verify.Order,
) (*OrderFile, error) {
	seen, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	order.Until = size + min(within, math.MaxUint64-size)
	file := &OrderFile{Name: name, Cluster: seen.cluster, Ledger: ledger, Order: order}
	if _, err := file.Encode(); err != nil {
		return nil, err
	}
	return file, nil
}

// PrepareOccult prepares an order that occults journals with data: 1 to 1,024 of them. It can be
// applied until the ledger has grown by `within` journals. By the ledger's rules an owner and a
// regulator sign it, or an owner alone.
func (c *Client) PrepareOccult(
	ctx context.Context, ledger LedgerID, within uint64, jsns ...uint64,
) (*OrderFile, error) {
	jsns = slices.Compact(slices.Sorted(slices.Values(jsns)))
	if len(jsns) == 0 || len(jsns) > orderJournalsMax {
		return nil, errors.New("coppice: an order occults 1 to 1,024 journals")
	}
	info, err := c.DescribeLedger(ctx, ledger, nil)
	if err != nil {
		return nil, err
	}
	order := &verify.Order{}
	for _, jsn := range jsns {
		page, err := c.JournalPage(ctx, ledger, jsn, 1, JournalRead{}, nil)
		if err != nil {
			return nil, err
		}
		leaf := page.Journals[0].Leaf
		if leaf.Kind != verify.JournalData {
			return nil, fmt.Errorf("coppice: journal %d holds no data: %w", jsn, NotPossible)
		}
		order.Targets = append(order.Targets, verify.Target{JSN: jsn, Leaf: leaf.Hash()})
	}
	return c.orderFileFor(ctx, ledger, info.Founding.Name, info.Size, within, order)
}
