package verify

import (
	"bytes"
	"strings"
	"testing"
)

// checkCanonical holds that what decodes has one spelling: its encoding is the input.
func checkCanonical(t testing.TB, input []byte) (decoded int) {
	t.Helper()
	same := func(what string, encoded []byte, err error) {
		t.Helper()
		decoded++
		if err != nil || !bytes.Equal(encoded, input) {
			t.Fatalf("%s %x is encoded as %x: %v", what, input, encoded, err)
		}
	}
	if envelope, err := DecodeEnvelope(input); err == nil {
		encoded, err := envelope.Encode()
		same("the envelope", encoded, err)
	}
	if leaf, err := DecodeLeaf(input); err == nil {
		same("the leaf", leaf.encode(), nil)
	}
	if founding, err := DecodeFounding(input); err == nil {
		encoded, err := founding.Encode()
		same("the founding", encoded, err)
	}
	if changes, err := DecodeMemberChanges(input); err == nil {
		encoded, err := EncodeMemberChanges(changes)
		same("the changes", encoded, err)
	}
	if order, err := DecodeOrder(input); err == nil {
		encoded, err := order.Encode()
		same("the order", encoded, err)
	}
	if member, err := DecodeMember(input); err == nil {
		same("the member", member.encode(), nil)
	}
	if purge, err := DecodePurge(input); err == nil {
		same("the purge", purge.encode(), nil)
	}
	if anchor, err := DecodeTrustedAnchor(input); err == nil {
		same("the anchor", anchor.Encode(), nil)
	}
	if signed, err := DecodeSigned(input); err == nil {
		same("the request", signed.encode(), nil)
	}
	return decoded
}

func TestRequestsOfTheVectorsAreEncodedAsTheyWere(t *testing.T) {
	var all struct{ Rounds []storedRound }
	vectors(t, "appends.json", &all)
	kinds := map[uint8]int{}
	for _, round := range all.Rounds {
		for _, stored := range round.Requests {
			signed, err := DecodeSigned(stored.Signed)
			if err != nil {
				continue
			}
			var items []Item
			whole := true
			for _, item := range stored.Items {
				items = append(items, Item{Kind: item.Kind, Envelope: item.Envelope})
				envelope, err := DecodeEnvelope(item.Envelope)
				if err != nil {
					whole = false
					continue
				}
				checkCanonical(t, item.Envelope)
				kinds[item.Kind] += checkCanonical(t, envelope.Payload)
			}
			checkCanonical(t, stored.Signed)
			root, over := signed.ItemsRoot, *signed
			encoded, err := over.Over(items)
			if whole && over.ItemsRoot == root && (err != nil || !bytes.Equal(encoded, stored.Signed)) {
				t.Errorf("%x is encoded as %x: %v", stored.Signed, encoded, err)
			}
		}
	}
	if kinds[JournalFounding] == 0 || kinds[JournalMembers] == 0 {
		t.Errorf("the vectors have payloads of these kinds: %v", kinds)
	}
}

func TestWhatNoLedgerTakesIsNotEncoded(t *testing.T) {
	owner := Grant{Name: "bank", Roles: RoleOwner, Key: PublicKey{1}}
	long := strings.Repeat("a", 1<<16+1)
	for i, founding := range []Founding{
		{Name: "", Members: []Grant{owner}},
		{Name: long, Members: []Grant{owner}},
		{Name: "A", Members: []Grant{owner}},
		{Name: "grain"},
		{Name: "grain", Members: []Grant{owner, owner}},
		{Name: "grain", Members: []Grant{{Name: "bank", Roles: RoleWriter, Key: PublicKey{1}}}},
		{Name: "grain", Members: []Grant{{Name: "bank", Roles: RoleOwner | RoleRegulator, Key: PublicKey{1}}}},
		{Name: "grain", Members: []Grant{{Name: long, Roles: RoleOwner, Key: PublicKey{1}}}},
		{Name: "grain", Members: []Grant{{Name: "bank", Roles: RoleOwner, Certificate: make([]byte, 8193)}}},
		{Name: "grain", Members: make([]Grant, 1<<16+1)},
		{Name: "grain", Members: []Grant{owner}, Authorities: make([][]byte, 9)},
		{Name: "grain", Members: []Grant{owner}, TimeAuthorities: [][]byte{make([]byte, 1<<16+1)}},
		{Name: "grain", Members: []Grant{owner}, Policy: LedgerPolicy{Occult: 3}},
	} {
		if encoded, err := founding.Encode(); err == nil {
			t.Errorf("founding %d is encoded as %x", i, encoded)
		}
	}
	for i, changes := range [][]MemberChange{
		nil,
		make([]MemberChange, 257),
		{{Kind: ChangeJoin, Grant: Grant{Name: "Bank"}}},
		{{Kind: ChangeRoles, Roles: 64}},
		{{Kind: ChangeKey, Certificate: make([]byte, 1<<16)}},
		{{Kind: ChangeAgent, Grant: Grant{Name: ""}}},
		{{Kind: ChangeAgent, Grant: Grant{Name: "press"}, Prefix: make([]byte, 257)}},
		{{Kind: 6}},
	} {
		if encoded, err := EncodeMemberChanges(changes); err == nil {
			t.Errorf("changes %d are encoded as %x", i, encoded)
		}
	}
	for i, envelope := range []Envelope{
		{Clues: make([][]byte, 17)}, {Clues: [][]byte{{}}}, {Clues: [][]byte{[]byte("a"), []byte("a")}},
		{Clues: [][]byte{make([]byte, 1<<16+1)}}, {Payload: make([]byte, fileBytesMax+1)},
	} {
		if _, err := envelope.Encode(); err == nil {
			t.Errorf("envelope %d is encoded", i)
		}
	}
	sound, err := (&Envelope{}).Encode()
	if err != nil || len(sound) != envelopeBytesMin {
		t.Fatalf("%d bytes: %v", len(sound), err)
	}
	item := Item{Envelope: sound}
	for i, c := range []struct {
		signed SignedRequest
		items  []Item
	}{
		{SignedRequest{Number: 1, SeenSize: 1}, nil},
		{SignedRequest{Number: 1, SeenSize: 1}, make([]Item, 1025)},
		{SignedRequest{Number: 1, SeenSize: 1}, []Item{{Envelope: []byte("none")}}},
		{SignedRequest{Number: 0, SeenSize: 1}, []Item{item}},
		{SignedRequest{Number: 1, SeenSize: 0}, []Item{item}},
		{SignedRequest{Number: 1, SeenSize: 1, Lane: 16}, []Item{item}},
		{SignedRequest{Number: 1, SeenSize: 1, Conditions: make([]Condition, 65)}, []Item{item}},
	} {
		if _, err := c.signed.Over(c.items); err == nil {
			t.Errorf("request %d is encoded", i)
		}
	}
	if _, err := (&SignedRequest{Number: 1, SeenSize: 1, Lane: 15}).Over([]Item{item}); err != nil {
		t.Error(err)
	}
}
