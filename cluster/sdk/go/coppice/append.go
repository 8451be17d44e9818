package coppice

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// Draft has the journals of one request, before it is signed. Its methods add to it:
//
//	draft := new(coppice.Draft).Add(payload, []byte("lot-7")).IfSize(12)
//
// Each journal has a nonce of its own. So an Author appends a draft once, however often it is told
// to.
type Draft struct {
	items      []verify.Item
	conditions []draftCondition
	err        error
}

// draftCondition is a condition before the ledger is known, which the hash of a clue needs.
type draftCondition struct {
	clue   []byte
	number uint64
}

func (d *Draft) add(kind uint8, payload []byte, clues ...[]byte) *Draft {
	envelope := verify.Envelope{Clues: clues, Payload: payload}
	// Never fails: the runtime ends the process if there is no randomness.
	_, _ = rand.Read(envelope.Nonce[:])
	encoded, err := envelope.Encode()
	d.err = errors.Join(d.err, err)
	d.items = append(d.items, verify.Item{Kind: kind, Envelope: encoded})
	return d
}

// Add adds a journal with a payload. The clues name what the journal is about: at most 16, of 1 to
// 256 bytes each.
func (d *Draft) Add(payload []byte, clues ...[]byte) *Draft {
	return d.add(verify.JournalData, payload, clues...)
}

// ChangeMembers makes a draft of changes of members, which hold from the next journal on. Such a
// draft has no other journal.
func (d *Draft) ChangeMembers(changes ...verify.MemberChange) *Draft {
	payload, err := verify.EncodeMemberChanges(changes)
	d.err = errors.Join(d.err, err)
	return d.add(verify.JournalMembers, payload)
}

// IfSize demands that the ledger has this many journals before the first one of the draft.
func (d *Draft) IfSize(size uint64) *Draft {
	d.conditions = append(d.conditions, draftCondition{number: size})
	return d
}

// IfCount demands that this many journals have a clue.
func (d *Draft) IfCount(clue []byte, count uint64) *Draft {
	d.conditions = append(d.conditions, draftCondition{clue: bytes.Clone(clue), number: count})
	if len(clue) == 0 {
		d.err = errors.Join(d.err, errors.New("coppice: a clue has 1 to 256 bytes"))
	}
	return d
}

// sign makes the request that a draft asks for.
func (d *Draft) sign(by *ledgerSigner, signed verify.SignedRequest) (*verify.Request, error) {
	if d.err != nil {
		return nil, fmt.Errorf("coppice: the draft can't be signed: %w", d.err)
	}
	for _, c := range d.conditions {
		condition := verify.Condition{OfClue: c.clue != nil, Number: c.number}
		if condition.OfClue {
			condition.Clue = verify.ClueHash(signed.Ledger, c.clue)
		}
		signed.Conditions = append(signed.Conditions, condition)
	}
	message, err := signed.Over(d.items)
	if err != nil {
		return nil, fmt.Errorf("coppice: the draft can't be signed: %w", err)
	}
	signature, err := by.sign(message)
	if err != nil {
		return nil, err
	}
	return &verify.Request{Signed: message, Signature: signature, Items: d.items}, nil
}

// asks tells whether a request was made from the draft.
func (d *Draft) asks(request *verify.Request) bool {
	if len(d.items) != len(request.Items) {
		return false
	}
	for i, item := range d.items {
		if item.Kind != request.Items[i].Kind || !bytes.Equal(item.Envelope, request.Items[i].Envelope) {
			return false
		}
	}
	return true
}

// ledgerSigner signs with the Ed25519 key of a member.
type ledgerSigner struct {
	signer crypto.Signer
	public verify.PublicKey
}

func newSigner(signer crypto.Signer) (*ledgerSigner, error) {
	if signer == nil {
		return nil, errors.New("coppice: a member signs with a key")
	}
	public, is := signer.Public().(ed25519.PublicKey)
	if !is || len(public) != ed25519.PublicKeySize {
		return nil, errors.New("coppice: the key of a member is one of Ed25519")
	}
	return &ledgerSigner{signer: signer, public: verify.PublicKey(public)}, nil
}

// sign makes a signature and verifies it, since the key may be in another device.
func (s *ledgerSigner) sign(message []byte) (signature [64]byte, err error) {
	made, err := s.signer.Sign(rand.Reader, message, crypto.Hash(0))
	if err != nil {
		return signature, fmt.Errorf("coppice: the key of the member: %w", err)
	}
	if len(made) != len(signature) || !ed25519.Verify(s.public[:], message, made) {
		return signature, errors.New("coppice: the key of the member made a signature that does not verify")
	}
	return [64]byte(made), nil
}

// privatePrefix begins the text of a private key.
const privatePrefix = "PRIVATE+KEY+"

// ParsePrivateKey reads a private key as `coppice keygen` writes it, with the name of its member.
func ParsePrivateKey(text string) (name string, key ed25519.PrivateKey, err error) {
	// The text must not show in an error.
	bad := func(why string) (string, ed25519.PrivateKey, error) { return "", nil, errors.New("coppice: " + why) }
	rest, is := strings.CutPrefix(strings.TrimSpace(text), privatePrefix)
	parts := strings.SplitN(rest, "+", 3)
	if !is || len(parts) != 3 {
		return bad("a private key is written as PRIVATE+KEY+name+id+base64")
	}
	typed, err := base64.StdEncoding.Strict().DecodeString(parts[2])
	if err != nil || len(typed) != 1+ed25519.SeedSize || typed[0] != 1 {
		return bad("the private key is not one of Ed25519 in base64")
	}
	key = ed25519.NewKeyFromSeed(typed[1:])
	public := verify.VKey{Name: parts[0], Key: verify.PublicKey(key.Public().(ed25519.PublicKey))}
	if !strings.HasPrefix(public.String(), parts[0]+"+"+parts[1]+"+") {
		return bad("the private key has another key id")
	}
	return parts[0], key, nil
}

// Appended is the place of the journals of a request.
type Appended struct {
	Ledger LedgerID
	// Stamp is the version that has the journals.
	Stamp Stamp
	// FirstJSN is the number of the first journal. The others follow without gaps.
	FirstJSN uint64
	// Checkpoint is a signed note that covers the version.
	Checkpoint []byte
	// Receipt is the proof file of all journals, as they were signed. A client that verifies has
	// checked it; an unverified one gets none.
	Receipt []byte
	// Replayed tells that the request was applied before.
	Replayed bool
}

// AppendRequest sends a signed request, and waits until it is durable. It is repeated with the
// same bytes while the ledger is unavailable, and may be sent as often as needed: a lane applies a
// number once. A receipt shows exactly the journals of the request. After an error, OutcomeUnknown
// says whether they may have been appended.
func (c *Client) AppendRequest(ctx context.Context, request *verify.Request) (*Appended, error) {
	k := c.known()
	message := &v1.AppendRequest{
		Signed: request.Signed, Signature: request.Signature[:], WantReceipt: c.trust != nil,
	}
	for _, item := range request.Items {
		message.Items = append(message.Items, &v1.LedgerItem{Kind: uint32(item.Kind), Envelope: item.Envelope})
	}
	answer, err := invoke(ctx, c, "Append", safe, message, v1.LedgerClient.Append)
	if err != nil {
		return nil, err
	}
	if len(answer.Ledger) != len(LedgerID{}) {
		return nil, afterCommit("Append", errors.New("an id of another length"))
	}
	appended := &Appended{
		Ledger: LedgerID(answer.Ledger), Stamp: stampOf(answer.Stamp), FirstJSN: answer.FirstJsn,
		Checkpoint: answer.Checkpoint, Receipt: answer.Receipt, Replayed: answer.Replayed,
	}
	if c.trust != nil {
		if err := c.checkAppend(ctx, k, request, appended); err != nil {
			return nil, afterCommit("Append", err)
		}
	}
	return appended, nil
}

// checkAppend checks that a receipt shows all journals of a request as they were signed, at the
// place that the answer names. The checkpoint is then that of the receipt.
func (c *Client) checkAppend(ctx context.Context, k known, request *verify.Request, told *Appended) error {
	signed, err := verify.DecodeSigned(request.Signed)
	if err != nil {
		return err
	}
	subject := verify.AboutRequest(sha256.Sum256(request.Signed))
	return c.believe(ctx, k, told.Receipt, subject, func(v *verify.Verified) error {
		founds := signed.Ledger == LedgerID{}
		shown := v.Journals.Journals
		if v.Journals.Ledger != told.Ledger || !founds && signed.Ledger != told.Ledger ||
			len(shown) != len(request.Items) || shown[0].Leaf.JSN != told.FirstJSN || shown[0].Leaf.Stamp != told.Stamp {
			return errors.New("the receipt is for other journals than the answer")
		}
		for i, journal := range shown {
			if !bytes.Equal(journal.Signed, request.Signed) || journal.Leaf.Signature != request.Signature ||
				journal.Leaf.Commitment != sha256.Sum256(request.Items[i].Envelope) {
				return errors.New("the receipt does not show the journals as they were signed")
			}
		}
		told.Checkpoint = bytes.Clone(v.Note)
		return checkAge(v, k)
	})
}

// SignFounding makes the request that founds a ledger. The founder is one of its first members, an
// owner, and has the key. Keep the request: AppendRequest sends it as often as needed.
func (c *Client) SignFounding(
	ctx context.Context, founding *verify.Founding, founder string, key crypto.Signer,
) (*verify.Request, error) {
	by, err := newSigner(key)
	if err != nil {
		return nil, err
	}
	payload, err := founding.Encode()
	if err != nil {
		return nil, fmt.Errorf("coppice: the founding: %w", err)
	}
	seen, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	draft := new(Draft).add(verify.JournalFounding, payload)
	return draft.sign(by, seen.request(verify.SignedRequest{Member: verify.MemberIDOf(founder), Number: 1}))
}

// FoundLedger founds a ledger. If the outcome may be unknown, SignFounding and AppendRequest are
// the better way: a founding that was sent before is refused with NotPossible, since its name is
// taken.
func (c *Client) FoundLedger(
	ctx context.Context, founding *verify.Founding, founder string, key crypto.Signer,
) (*Appended, error) {
	request, err := c.SignFounding(ctx, founding, founder, key)
	if err != nil {
		return nil, err
	}
	appended, err := c.AppendRequest(ctx, request)
	if err != nil {
		return nil, err
	}
	signed, err := verify.DecodeSigned(request.Signed)
	if err == nil && verify.FoundedID(signed.Cluster, request.Signed, founding.Spread) != appended.Ledger {
		err = errors.New("the answer names another ledger than the one that was founded")
	}
	if err != nil {
		return nil, afterCommit("Append", err)
	}
	return appended, nil
}
